"""Invented scaling studies: one worker takes 40 ms a step; a table sets the communication time of strategies."""

from __future__ import annotations

from typing import Any

from paceline.results import Row, RunResult, Split, SplitMean, WorkerSplit, changed, convert
from paceline.results.study import ScaleResult
from paceline.study.entries import ONE_WORKER
from paceline.study.run_results import combine
from paceline.study.scale_analysis import WEAK, add_scaling, paying
from report_samples import ENVIRONMENT, recipe, result

ALONE_S = 0.040
NOISE = (1.0, 1.004, 0.997)  # factors of the repeats, in a different order for every number of workers
# Milliseconds of communication with 2, 3 and 4 workers.
COSTS: dict[str, dict[int, float]] = {
    "gather-scatter": {2: 12.0, 3: 21.0, 4: 30.0},  # slower with every worker
    "all-reduce": {2: 8.0, 3: 8.0, 4: 11.4},  # no gain from the fourth worker
    "overlap": {2: 1.0, 3: 1.2, 4: 1.5},  # every worker pays off
}


def split_of(step_s: float, communication_s: float, num_workers: int) -> Split:
    waiting_s = 0.1 * communication_s
    mean = SplitMean(
        step_s=step_s,
        compute_s=step_s - communication_s - 0.001,
        communication_s=communication_s - waiting_s,
        overlap_s=0.0,
        waiting_s=waiting_s,
        data_s=0.0005,
        rest_s=0.0005,
        overlap_fraction=0.0 if communication_s else None,
        bandwidth_bytes_per_s=None,
        phases_s={},
        caused_waiting_s=0.0,
    )
    return Split(mean=mean, per_worker=[WorkerSplit(rank=rank, **mean) for rank in range(num_workers)])


def one_run(label: str, num_workers: int, step_s: float, communication_s: float, **changes: Any) -> RunResult:
    """One repeat of a point."""
    made = result(label, step_s, **changes)
    return changed(
        made,
        # The sample's steps differ slightly; here the mean must be exact.
        iteration_s=changed(made.iteration_s, mean=step_s),
        workers=num_workers,
        per_worker=made.per_worker[:num_workers],
        split=split_of(step_s, communication_s, num_workers),
        stragglers=None,
    )


def point_row(
    label: str, mode: str, num_workers: int, step_s: float, communication_s: float, repeats: int = 3, **changes: Any
) -> Row:
    noises = [NOISE[(repeat + num_workers) % 3] if repeats > 1 else 1.0 for repeat in range(repeats)]
    runs = [one_run(label, num_workers, step_s * noise, communication_s * noise, **changes) for noise in noises]
    batch = 25 * num_workers if mode == WEAK else 100
    point = {"workers": num_workers, "mode": mode}
    return changed(combine(runs), point=point, batch_size=batch, samples_per_s=batch / step_s)


def rows(mode: str, *, repeats: int = 3, costs: dict[str, dict[int, float]] = COSTS) -> list[Row]:
    """Rows for one worker and for every strategy with 2, 3 and 4 workers."""
    found = [point_row(ONE_WORKER, mode, 1, ALONE_S, 0.0, repeats)]
    for label, by_workers in costs.items():
        for number, cost in by_workers.items():
            own = ALONE_S if mode == WEAK else ALONE_S / number
            guarantee = "NONE" if label == "none" else "EXACT"
            found.append(point_row(label, mode, number, own + cost / 1e3, cost / 1e3, repeats, guarantee=guarantee))
    return found


def scaled(results: list[Row]) -> list[Row]:
    return add_scaling(results)


def scale_study(*modes: str, repeats: int = 3, results: list[Row] | None = None, **changes: Any) -> ScaleResult:
    """A scaling study in its stored form."""
    found = add_scaling(results if results is not None else [row for m in modes for row in rows(m, repeats=repeats)])
    kept = {"strong": {"batch_size": 100}, "weak": {"worker_batch_size": 25}}
    values = {
        "schema": 1,
        "kind": "study",
        "study": "scale",
        "name": "sample",
        "started": "2026-01-02T03:04:05+0000",
        "status": "done",
        "recipe": recipe(strategies=list(COSTS)).to_dict(),
        "environment": ENVIRONMENT,
        "repeats": repeats,
        "workers": [1, 2, 3, 4],
        "modes": {mode: kept[mode] for mode in modes},
        "num_points": len(found),
        "wall_s": 1.0,
        **changes,
    }
    return changed(convert(values, ScaleResult), results=found, paying=paying(found))
