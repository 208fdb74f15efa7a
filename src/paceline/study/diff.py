"""The command `paceline runs diff`: compare two runs or studies row by row, with confidence intervals."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.measure.stats import Ratio, block_ratio, unpaired_ratio
from paceline.recipe import Recipe
from paceline.results import SCHEMA, Interval, Json, Row, RunResult, to_json
from paceline.results.commands import Diff, DiffRow, DiffSide
from paceline.runs import Stored, name_of, read, run_folders
from paceline.study.run_results import interval_of
from paceline.worker_files import worker_files, worker_lines

PARTS = ("step_s", "compute_s", "communication_s", "overlap_s", "waiting_s", "data_s", "rest_s")
# Fields of the environment that do not describe the machine.
_NOT_THE_MACHINE = {"command", "load_average"}
# Recipe keys that are not compared. The rows already show the strategies.
_NOT_THE_WORK = {"description", "strategy", "strategies"}
CANNOT_TELL, PASSED, FAILED = "cannot tell", "passed", "failed"


@dataclass(frozen=True)
class Side:
    """One of the two runs or studies that are compared."""

    stored: Stored

    def __post_init__(self) -> None:
        if self.stored.study == "quantize":
            raise UsageError(
                f"{self.name!r} is a quantization, which has no steps to compare; name a run or another study"
            )
        if not self.results:
            raise UsageError(
                f"{self.name!r} has no results to compare, because it is {self.stored.status}; name another"
            )

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def results(self) -> Sequence[RunResult]:
        return self.stored.results

    def facts(self) -> DiffSide:
        stored = self.stored
        return DiffSide(
            name=self.name,
            folder=str(stored.folder),
            kind=stored.kind,
            status=stored.status,
            started=stored.started,
        )

    def steps(self, row: RunResult) -> list[list[float]]:
        """Return one list per run of a row: the times of the run's timed steps in seconds, averaged over workers.

        Runs whose worker files are gone are left out. Rows with different settings, such as numbers of workers, may
        have the same label. Such a row has only the runs whose mean step times are listed in the row.
        """
        found = []
        for folder in run_folders(self.stored.folder):
            run = self.stored if folder == self.stored.folder else read(folder)
            found += [
                _step_times(folder, result)
                for result in (run.results if run.kind == "run" else ())
                if result.label == row.label and _is_of(result, row)
            ]
        return [steps for steps in found if steps]


def _is_of(result: RunResult, row: RunResult) -> bool:
    is_point = isinstance(row, Row) and bool(row.point)
    return not is_point or result.iteration_s.mean in _repeats(row)


def _repeats(result: RunResult) -> list[float]:
    return result.iteration_mean_s_repeats if isinstance(result, Row) else []


def _step_times(folder: Path, result: RunResult) -> list[float]:
    workers = [
        [float(line["iteration_s"]) for line in worker_lines(file) if line["kind"] == "step"]
        for file in worker_files(folder).values()
    ]
    first = result.warmup_steps
    together = zip(*workers, strict=False)  # asynchronous workers may have different numbers of steps
    return [statistics.fmean(times) for times in together][first : first + result.timed_steps]


def diff(a: Stored, b: Stored, *, most_percent: float | None = None) -> Diff:
    """Compare the run or study B with A, row by row.

    If `most_percent` is set, every row gets a gate. The gate is "failed" if B is slower than A by more than that
    percentage, and "passed" if B is not, each with 95 % confidence. If neither is certain, the gate is "cannot tell".
    The gate of the whole comparison is the worst gate of its rows: "failed" is worse than "cannot tell".
    """
    sides = Side(a), Side(b)
    rows = [_row(sides, pair, most_percent) for pair in _pairs(*sides)]
    in_a, in_b = ([name_of(result) for result in side.results] for side in sides)
    judged = {row.gate for row in rows}
    return Diff(
        schema=SCHEMA,
        a=sides[0].facts(),
        b=sides[1].facts(),
        rows=rows,
        only_a=[label for label in in_a if label not in {row.labels[0] for row in rows}],
        only_b=[label for label in in_b if label not in {row.labels[1] for row in rows}],
        recipe=_differing(_flat_recipe(a), _flat_recipe(b), leave_out=_NOT_THE_WORK),
        environment=_differing(to_json(a.environment), to_json(b.environment), leave_out=_NOT_THE_MACHINE),
        fail_if_slower_percent=most_percent,
        gate=None if most_percent is None else next(word for word in (FAILED, CANNOT_TELL, PASSED) if word in judged),
    )


def _pairs(a: Side, b: Side) -> list[tuple[RunResult, RunResult]]:
    """Pair the rows of A and B that have equal labels. Raise UsageError if there are none.

    If A and B have one row each, these two are paired even if their labels differ.
    """
    if len(a.results) == len(b.results) == 1:
        return [(a.results[0], b.results[0])]
    theirs = {name_of(result): result for result in b.results}
    pairs = [(result, theirs[name_of(result)]) for result in a.results if name_of(result) in theirs]
    if not pairs:
        labels = [", ".join(name_of(result) for result in side.results) for side in (a, b)]
        raise UsageError(
            f"{a.name!r} and {b.name!r} have no strategy in common: the first has {labels[0]}, "
            f"and the second {labels[1]}; name runs or studies with a common strategy"
        )
    return pairs


def _row(sides: tuple[Side, Side], pair: tuple[RunResult, RunResult], most_percent: float | None) -> DiffRow:
    old, new = pair
    labels = name_of(old), name_of(new)
    ratio, source = _ratio(sides, pair)
    interval = interval_of(ratio)
    return DiffRow(
        label=labels[0] if labels[0] == labels[1] else f"{labels[0]} to {labels[1]}",
        labels=labels,
        workers=(old.workers, new.workers),
        iteration_s=(old.iteration_s.mean, new.iteration_s.mean),
        ratio=new.iteration_s.mean / old.iteration_s.mean,
        interval95=interval,
        interval_from=source if interval else None,
        verdict=_verdict(interval),
        gate=None if most_percent is None else _gate(interval, 1 + most_percent / 100),
        samples_per_s=(old.samples_per_s, new.samples_per_s),
        test_accuracy=(old.final.test_accuracy, new.final.test_accuracy),
        train_loss=(old.final.train_loss, new.final.train_loss),
        sent_bytes=(_most_sent(old), _most_sent(new)),
        target=(old.target, new.target),
        split=_split(pair),
    )


def _most_sent(result: RunResult) -> int:
    return max((worker.sent_bytes for worker in result.per_worker), default=0)


def _ratio(sides: tuple[Side, Side], pair: tuple[RunResult, RunResult]) -> tuple[Ratio, str]:
    """Return the ratio of step times B / A with a confidence interval, and the interval's source.

    The source is "repeats" if both rows have at least two repeats. Otherwise it is "steps" if both rows have stored
    steps. If neither is the case, there is no interval, and the source is an empty string.
    """
    old, new = (_repeats(result) for result in pair)
    if min(len(old), len(new)) >= 2:
        return unpaired_ratio(new, old), "repeats"
    steps = [side.steps(result) for side, result in zip(sides, pair, strict=True)]
    if all(steps):
        return block_ratio(steps[1], steps[0]), "steps"
    return Ratio(pair[1].iteration_s.mean / pair[0].iteration_s.mean, None, None), ""


def _verdict(interval: Interval | None) -> str:
    if interval is None:
        return CANNOT_TELL
    if interval[0] <= 1 <= interval[1]:
        return "no difference"
    return "slower" if interval[0] > 1 else "faster"


def _gate(interval: Interval | None, most: float) -> str:
    """Compare the interval of the ratio B / A with the largest allowed ratio.

    Return FAILED if the interval lies above `most`, PASSED if it lies below, and CANNOT_TELL if it includes `most` or
    is None.
    """
    if interval is None or interval[0] <= most < interval[1]:
        return CANNOT_TELL
    return FAILED if interval[0] > most else PASSED


def _split(pair: tuple[RunResult, RunResult]) -> dict[str, tuple[float, float]] | None:
    """Return the parts of the step time in seconds, each for A and B, or None if A or B was not profiled."""
    old, new = (result.split.mean if result.split is not None else None for result in pair)
    if old is None or new is None:
        return None
    return {part: (getattr(old, part), getattr(new, part)) for part in PARTS}


def _flat_recipe(stored: Stored) -> Json:
    """Return all recipe keys with their values. Keys that are not stored have the defaults of this version."""
    return {**_flat(Recipe().to_dict()), **_flat(stored.recipe_values)}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Json:
    flat: Json = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _differing(a: Mapping[str, Any], b: Mapping[str, Any], *, leave_out: set[str]) -> dict[str, tuple[Any, Any]]:
    keys = [*a, *(key for key in b if key not in a)]
    return {key: (a.get(key), b.get(key)) for key in keys if key not in leave_out and a.get(key) != b.get(key)}
