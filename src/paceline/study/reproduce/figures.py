"""Comparison with published tables: compute their quantities from runs, and match measured rows with published rows.

The name `ours` stands for measured rows and values, as opposed to published ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.measure.stats import summarise_if_complete
from paceline.results import Evaluation, RunResult, WorkerNetwork, WorkerResources
from paceline.results.study import (
    FigureValue,
    MeasuredFigure,
    OurRow,
    PublishedColumn,
    PublishedRow,
    PublishedTable,
    WorkerLoad,
)
from paceline.study.reproduce.experiment import Experiment, ExperimentRow

Repeats = Sequence[RunResult]


@dataclass(frozen=True)
class FigureInputs:
    """Inputs of the functions that compute quantities. Quantities that compare rows need the runs of all rows."""

    experiment: Experiment
    runs: Mapping[str, Repeats]  # repeats of every row, by key
    batch_sizes: Mapping[str, int]  # global batch size of every row, by key
    compares_accuracy: bool


@dataclass(frozen=True)
class FigureColumn:
    """One compared quantity: its name, its unit, and the function that computes it from the runs of a row."""

    name: str
    unit: str  # s, %, bytes, steps, x (a ratio), or an empty string
    ours: Callable[[str, Repeats, FigureInputs], FigureValue]
    is_accuracy: bool = False  # whether to omit the quantity when accuracies cannot be compared
    is_per_epoch: bool = False  # whether the quantity is extrapolated if a run is shorter than an epoch


def _iteration(key: str, repeats: Repeats, inputs: FigureInputs) -> float | None:  # noqa: ARG001
    return summarise_if_complete(statistics.median, [repeat.iteration_s.mean for repeat in repeats])


def _train(key: str, repeats: Repeats, inputs: FigureInputs) -> float | None:  # noqa: ARG001
    return summarise_if_complete(statistics.median, [repeat.train_s for repeat in repeats])


def steps_per_epoch(key: str, inputs: FigureInputs) -> int:
    """Return how many steps make one epoch of the published experiment, with the batch size of row `key`."""
    return -(-inputs.experiment.epoch_samples // inputs.batch_sizes[key])


def _epoch(key: str, repeats: Repeats, inputs: FigureInputs) -> float | None:
    iteration = _iteration(key, repeats, inputs)
    return None if iteration is None else iteration * steps_per_epoch(key, inputs)


def _one_worker_key(key: str, repeats: Repeats, inputs: FigureInputs) -> str | None:
    """Return the key of the one-worker row with which a row is compared, or None if there is none.

    If batch sizes vary between rows, prefer a one-worker row with the same batch size per worker. Otherwise prefer one
    with the same global batch size.
    """
    single = [other for other, runs in inputs.runs.items() if runs and runs[0].workers == 1]
    size = repeats[0].workers
    weak = [other for other in single if inputs.batch_sizes[other] * size == inputs.batch_sizes[key]]
    same = [other for other in single if inputs.batch_sizes[other] == inputs.batch_sizes[key]]
    return next(iter([*same, *weak] if size > 1 and not _is_varied(inputs) else [*weak, *same]), None)


def _is_varied(inputs: FigureInputs) -> bool:
    return len(set(inputs.batch_sizes.values())) > 1


def _speedup(key: str, repeats: Repeats, inputs: FigureInputs) -> float | None:
    baseline = _one_worker_key(key, repeats, inputs)
    if baseline is None:
        return None
    ours, theirs = _epoch(key, repeats, inputs), _epoch(baseline, inputs.runs[baseline], inputs)
    return None if ours is None or theirs is None else theirs / ours


def _estimated(key: str, repeats: Repeats, inputs: FigureInputs) -> float | None:
    """Estimate the communication time per epoch as the publication does: t_N - t_1 / N, in seconds.

    t_N is the time of an epoch with N workers. Return None for one worker, or without a one-worker row.
    """
    baseline, size = _one_worker_key(key, repeats, inputs), repeats[0].workers
    if baseline is None or size == 1:
        return None
    ours, theirs = _epoch(key, repeats, inputs), _epoch(baseline, inputs.runs[baseline], inputs)
    return None if ours is None or theirs is None else ours - theirs / size


def _part(*names: str) -> Callable[[str, Repeats, FigureInputs], float | None]:
    """Return a function that computes how many seconds per epoch the named parts of a step take."""

    def of(key: str, repeats: Repeats, inputs: FigureInputs) -> float | None:
        found = summarise_if_complete(statistics.median, [_in_split(repeat, names) for repeat in repeats])
        return None if found is None else found * steps_per_epoch(key, inputs)

    return of


def _share(*names: str) -> Callable[[str, Repeats, FigureInputs], float | None]:
    """Return a function that computes which fraction of the step time the named parts of a step take."""

    def of(key: str, repeats: Repeats, inputs: FigureInputs) -> float | None:  # noqa: ARG001
        return summarise_if_complete(statistics.median, [_in_split(repeat, names, of_step=True) for repeat in repeats])

    return of


def _in_split(result: RunResult, names: Sequence[str], *, of_step: bool = False) -> float | None:
    if result.split is None:
        return None
    mean = result.split.mean
    total = sum(float(getattr(mean, f"{name}_s")) for name in names)
    return total / mean.step_s if of_step else total


def _final(name: str) -> Callable[[str, Repeats, FigureInputs], float | None]:
    def of(key: str, repeats: Repeats, inputs: FigureInputs) -> float | None:  # noqa: ARG001
        return summarise_if_complete(statistics.fmean, [getattr(repeat.final, name) for repeat in repeats])

    return of


def _spread(key: str, repeats: Repeats, inputs: FigureInputs) -> str | None:  # noqa: ARG001
    """Return the lowest and highest test accuracy over seeds, as text.

    Return None for a single run, or if a run has no test accuracy.
    """
    found = [score for repeat in repeats if (score := repeat.final.test_accuracy) is not None]
    if len(found) < max(len(repeats), 2):
        return None
    return f"{100 * min(found):.1f} to {100 * max(found):.1f} %"


def _by_rank(name: str) -> Callable[[str, Repeats, FigureInputs], list[float] | None]:
    def of(key: str, repeats: Repeats, inputs: FigureInputs) -> list[float] | None:  # noqa: ARG001
        rows = [[getattr(worker, name) for worker in repeat.per_worker] for repeat in repeats]
        if any(value is None for row in rows for value in row):
            return None
        return [statistics.fmean(column) for column in zip(*rows, strict=True)]

    return of


def _replicas(key: str, repeats: Repeats, inputs: FigureInputs) -> str:  # noqa: ARG001
    if repeats[0].workers == 1:
        return "one replica"
    return "equal on every rank" if all(repeat.replicas_equal for repeat in repeats) else "different between ranks"


def _sent(key: str, repeats: Repeats, inputs: FigureInputs) -> float:  # noqa: ARG001
    """Return how many bytes a worker sends per step, as a mean over workers and steps."""
    rows = [row for repeat in repeats for row in repeat.per_worker]
    return statistics.fmean(row.sent_bytes for row in rows) / repeats[0].steps


def _share_of_ring(key: str, repeats: Repeats, inputs: FigureInputs) -> float | None:
    ring = inputs.runs.get("ring")
    return _sent(key, repeats, inputs) / _sent("ring", ring, inputs) if ring else None


def _messages(key: str, repeats: Repeats, inputs: FigureInputs) -> float:  # noqa: ARG001
    """Return the number of messages per worker and step.

    It is half the number of operations, because every message is a send on one worker and a receive on another.
    """
    rows = [row for repeat in repeats for row in repeat.per_worker]
    return statistics.fmean(row.num_operations for row in rows) / repeats[0].steps / 2


def _converged(name: str) -> Callable[[str, Repeats, FigureInputs], FigureValue]:
    def of(key: str, repeats: Repeats, inputs: FigureInputs) -> FigureValue:  # noqa: ARG001
        found = [convergence(repeat, inputs.experiment.target_accuracy) for repeat in repeats]
        reached = [row for row in found if row is not None]
        if len(reached) < len(found):
            return "never" if not reached else f"in {len(reached)} of {len(found)} runs"
        return statistics.median(float(getattr(row, name)) for row in reached)

    return of


def convergence(result: RunResult, target: float | None) -> Evaluation | None:
    """Return the first evaluation that reached the target accuracy. Return None if no evaluation did."""
    if target is None:
        return None
    return next((row for row in result.evaluations if row.accuracy is not None and row.accuracy >= target), None)


QUANTITIES: dict[str, FigureColumn] = {
    "iteration_s": FigureColumn("Step", "s", _iteration),
    "speedup": FigureColumn("Speed-up", "x", _speedup),
    "train_s": FigureColumn("Training", "s", _train),
    "epoch_s": FigureColumn("Epoch", "s", _epoch, is_per_epoch=True),
    "compute_s": FigureColumn("Compute per epoch", "s", _part("compute", "overlap"), is_per_epoch=True),
    "communication_s": FigureColumn(
        "Communication per epoch, measured", "s", _part("communication", "overlap"), is_per_epoch=True
    ),
    "communication_estimated_s": FigureColumn(
        "Communication per epoch, t_N - t_1 / N", "s", _estimated, is_per_epoch=True
    ),
    "compute_share": FigureColumn("Compute", "%", _share("compute", "overlap")),
    "communication_share": FigureColumn("Communication", "%", _share("communication")),
    "sent_per_step": FigureColumn("Sent per step and worker", "bytes", _sent),
    "share_of_ring": FigureColumn("Bytes, of ring all-reduce", "x", _share_of_ring),
    "messages_per_step": FigureColumn("Messages per step and worker", "", _messages),
    "convergence_s": FigureColumn("Convergence", "s", _converged("train_s")),
    "convergence_steps": FigureColumn("Convergence", "steps", _converged("step")),
    "test_loss": FigureColumn("Test loss", "", _final("test_loss"), is_accuracy=True),
    "test_accuracy": FigureColumn("Test accuracy", "%", _final("test_accuracy"), is_accuracy=True),
    "test_accuracy_spread": FigureColumn("Test accuracy over seeds", "", _spread, is_accuracy=True),
    "train_accuracy_by_rank": FigureColumn("Train accuracy by rank", "%", _by_rank("train_accuracy"), is_accuracy=True),
    "test_accuracy_by_rank": FigureColumn("Test accuracy by rank", "%", _by_rank("test_accuracy"), is_accuracy=True),
    "replicas": FigureColumn("Replicas", "", _replicas),
}


def our_figures(key: str, repeats: Repeats, inputs: FigureInputs) -> dict[str, MeasuredFigure]:
    """Compute the quantities of the experiment for the measured row `key`.

    Leave out quantities that were not measured, and accuracies if these cannot be compared.
    """
    figures = {}
    for name in inputs.experiment.quantities:
        quantity = QUANTITIES[name]
        if quantity.is_accuracy and not inputs.compares_accuracy:
            continue
        value = quantity.ours(key, repeats, inputs)
        if value is not None:
            is_whole = repeats[0].steps >= steps_per_epoch(key, inputs)
            figures[name] = MeasuredFigure(value=value, is_extrapolated=quantity.is_per_epoch and not is_whole)
    return figures


def load_of(result: RunResult) -> list[WorkerLoad]:
    """Return the CPU, memory, network and disk use of every worker of a run.

    Values that were not measured are None.
    """
    samples = [] if result.resources is None else result.resources.per_worker
    counted = {} if result.network is None else {row.rank: row for row in result.network.per_worker}
    return [_load(row, counted.get(row.rank)) for row in sorted(samples, key=lambda row: row.rank)]


def _load(samples: WorkerResources, counted: WorkerNetwork | None) -> WorkerLoad:
    busy = [value for value in samples.cpu_percent or [] if value is not None]
    return WorkerLoad(
        rank=samples.rank,
        cpu_percent=statistics.fmean(busy) if busy else None,
        peak_rss_bytes=samples.peak_rss_bytes,
        network_sent_bytes=None if counted is None else counted.kernel_sent_bytes,
        network_received_bytes=None if counted is None else counted.kernel_received_bytes,
        disk_read_bytes=_last(samples.disk_read_bytes),
        disk_written_bytes=_last(samples.disk_written_bytes),
    )


def _last(values: Sequence[int | None] | None) -> int | None:
    """Return the last value that is not None, or None if there is none."""
    found = [value for value in values or [] if value is not None]
    return found[-1] if found else None


def published_tables(experiment: Experiment, ours: Sequence[OurRow]) -> list[PublishedTable]:
    """Return the published tables. Every row has the key of the row in `ours` that repeats it, or None if none does."""
    return [
        PublishedTable(
            source=table.source,
            setting=table.setting,
            rows=[
                PublishedRow(
                    name=row.name,
                    point=row.point,
                    published=dict(row.figures),
                    ours=next((one.key for one in ours if _is_match(row, one)), None),
                )
                for row in table.rows
            ],
        )
        for table in experiment.published
    ]


def _is_match(row: ExperimentRow, ours: OurRow) -> bool:
    """Return whether the measured row `ours` repeats the published row `row`.

    Both must have the same strategy or quantization stage, and the same point (combination of settings). If the
    published row has no point, the measured row must be at the study's first point, or have no point either.
    """
    if row.ours != ours.label:
        return False
    if row.point:
        return dict(row.point) == ours.point
    return not ours.point or ours.is_first_point


def columns(experiment: Experiment) -> dict[str, PublishedColumn]:
    """Return the name and the unit of every quantity that is compared, by the quantity's key in QUANTITIES."""
    return {
        name: PublishedColumn(name=QUANTITIES[name].name, unit=QUANTITIES[name].unit) for name in experiment.quantities
    }
