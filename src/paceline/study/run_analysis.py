"""Analysis of one run: training curve, parts of the step time, cost of a target accuracy, stragglers, and trace.

The cost of a target accuracy is the number of steps, epochs, seconds and bytes that it took to reach the accuracy.

The functions take the workers' reports, the files that the workers wrote, or the results of repeats.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.comm import comms
from paceline.errors import UsageError
from paceline.measure.analysis import Analysis, analyse_folder
from paceline.measure.split import Factors
from paceline.measure.stats import summarise_if_complete
from paceline.measure.steps import StepRange
from paceline.measure.trace_file import TraceSummary, write_merged
from paceline.recipe import Recipe
from paceline.results import RUNNING, Curve, Evaluation, Link, RunResult, Straggler, Target, changed
from paceline.results.worker_report import WorkerReport
from paceline.runs import list_runs, read

CURVE_POINTS = 400


@dataclass(frozen=True, kw_only=True)
class RunAnalysis:
    """Results of `analyse_run`: analysis of workers' files, and bytes sent between each pair of processes, if known."""

    files: Analysis = field(default_factory=Analysis)
    links: list[Link] | None = None


def analyse_run(recipe: Recipe, workers: Sequence[WorkerReport], folder: Path | None) -> RunAnalysis:
    """Analyse the workers' files, if any, and list the bytes sent between each pair of processes, if known."""
    analysis = Analysis()
    if folder is not None and (folder / "workers").is_dir():
        first, last = timed_steps(recipe, len(workers[0].iteration_s))
        analysis = analyse_folder(folder, first=first, last=last, factors=_wire_factors(recipe.comm, len(workers)))
    links = [link for worker in workers for link in worker.links]
    return RunAnalysis(files=analysis, links=links or None)


def timed_steps(recipe: Recipe, num_steps: int) -> tuple[int, int]:
    """Return the numbers of the first and the last timed step, counted from 0.

    The steps of the warm-up are timed only if there are no other steps.
    """
    last = min(num_steps, recipe.train.timed_iterations or num_steps) - 1
    first = recipe.train.warmup_iterations
    return (first, last) if first <= last else (0, last)


def stragglers_of_most_repeats(repeats: Sequence[RunResult]) -> list[Straggler] | None:
    """Return the workers that were stragglers in the same phase in more than half of the repeats.

    Repeats in which stragglers could not be determined are ignored. If no repeat is left, return None. A straggler's
    excess and its interval are medians over the repeats in which the worker was a straggler. Its number of steps is the
    sum over these repeats.
    """
    measured = [repeat.stragglers for repeat in repeats if repeat.stragglers is not None]
    if not measured:
        return None
    by_phase: dict[tuple[int, str], list[Straggler]] = {}
    for repeat in measured:
        for one in repeat:
            by_phase.setdefault((one.rank, one.phase), []).append(one)
    common = [_median_straggler(ones) for ones in by_phase.values() if len(ones) > len(measured) / 2]
    return sorted(common, key=lambda one: -one.excess_s)


def _median_straggler(ones: list[Straggler]) -> Straggler:
    return changed(
        ones[0],
        excess_s=statistics.median(one.excess_s for one in ones),
        excess_percent=statistics.median(one.excess_percent for one in ones),
        interval95_percent=tuple(statistics.median(one.interval95_percent[end] for one in ones) for end in (0, 1)),
        steps=sum(one.steps for one in ones),
    )


def _wire_factors(comm_name: str, world_size: int) -> Factors:
    """Return a function that says how many bytes an operation sends and receives per byte of payload."""
    comm = comms.get(comm_name)

    def factors(op: str, peer: int | None, rank: int) -> tuple[float, float]:
        # A barrier has no payload.
        return (0.0, 0.0) if op == "barrier" else comm.wire_factors(op, peer, rank, world_size)

    return factors


def trace_run(path: Path, *, target: Path | None = None, steps: StepRange | None = None) -> TraceSummary:
    """Merge the traces of a run's workers into one file and summarise it. Raise UsageError if `path` is a study."""
    stored = read(path)
    folder = stored.folder
    if stored.kind != "run":
        inner = [str(run.folder) for run in list_runs(folder / "runs")]
        advice = f"name one of its runs: {', '.join(inner)}" if inner else "it has no runs"
        raise UsageError(f"{str(path)!r} is a study, but a trace is made from one run; {advice}")
    if stored.status == RUNNING:
        raise UsageError(f"run {folder.name!r} is running; its measurements can be traced when it has ended")
    return write_merged(folder, target, steps)


def training_curve(workers: Sequence[WorkerReport]) -> Curve:
    """Return loss, accuracy, time and bytes over steps, for all workers together.

    In long runs, each point summarises several steps, so that charts have at most CURVE_POINTS points. `train_s` and
    `sent_bytes` are totals up to the last of these steps, and the other values are averages over the steps.
    Asynchronous workers may have different numbers of steps. The last points are then averages over fewer workers.
    """
    num_steps = max(len(worker.loss) for worker in workers)
    stride = max(-(-num_steps // CURVE_POINTS), 1)
    has_bytes = all(worker.step_sent_bytes is not None for worker in workers)
    curve = Curve(step=[], train_s=[], loss=[], accuracy=[], iteration_s=[], sent_bytes=[] if has_bytes else None)
    elapsed_s = 0.0
    for first in range(0, num_steps, stride):
        end = min(first + stride, num_steps)
        times = [
            max(worker.iteration_s[step] for worker in workers if step < len(worker.iteration_s))
            for step in range(first, end)
        ]
        samples = sum(sum(worker.num_samples[first:end]) for worker in workers)
        answers = sum(sum(worker.num_answers[first:end]) for worker in workers)
        right = sum(sum(worker.num_right[first:end]) for worker in workers)
        elapsed_s += sum(times)
        curve.step.append(end)
        curve.train_s.append(elapsed_s)
        curve.loss.append(_loss_sum(workers, first, end) / samples)
        curve.accuracy.append(right / answers if answers else None)
        curve.iteration_s.append(statistics.fmean(times))
        if curve.sent_bytes is not None:
            curve.sent_bytes.append(total_sent_bytes(workers, end))
    return curve


def _loss_sum(workers: Sequence[WorkerReport], first: int, end: int) -> float:
    return float(
        sum(
            loss * count
            for worker in workers
            for loss, count in zip(worker.loss[first:end], worker.num_samples[first:end], strict=True)
        )
    )


def total_sent_bytes(workers: Sequence[WorkerReport], step: int) -> int | None:
    """Return how many bytes all workers together sent in the first `step` steps, or None if bytes were not counted."""
    total = 0
    for worker in workers:
        if worker.step_sent_bytes is None:
            return None
        total += int(worker.step_sent_bytes[min(step, len(worker.step_sent_bytes)) - 1])
    return total


def evaluations_with_bytes(workers: Sequence[WorkerReport]) -> list[Evaluation]:
    """Return rank 0's evaluations, each with the bytes that all workers together had sent by then."""
    return [changed(one, sent_bytes=total_sent_bytes(workers, one.step)) for one in workers[0].evaluations]


def cost_of_target(accuracy: float | None, workers: Sequence[WorkerReport]) -> Target | None:
    """Return how many steps, epochs, seconds and bytes it took to reach the target accuracy.

    If the target was not reached, the result has the best accuracy instead. Return None if there is no target.
    """
    if accuracy is None:
        return None
    scored = [(row, row.accuracy) for row in evaluations_with_bytes(workers) if row.accuracy is not None]
    reached = next((row for row, score in scored if score >= accuracy), None)
    if reached is None:
        return Target(accuracy=accuracy, reached=False, best=max((score for _, score in scored), default=None))
    if len({len(worker.loss) for worker in workers}) > 1:
        # Asynchronous workers reach a step at different times, so their bytes up to one step belong to different times.
        # All workers stop soon after the target is reached, so the bytes of the whole run are counted.
        reached = changed(reached, sent_bytes=total_sent_bytes(workers, max(len(worker.loss) for worker in workers)))
    return Target(
        accuracy=accuracy,
        reached=True,
        step=reached.step,
        epoch=reached.epoch,
        train_s=reached.train_s,
        sent_bytes=reached.sent_bytes,
    )


def combine_targets(targets: Sequence[Target | None]) -> Target | None:
    """Combine the costs of reaching the target accuracy over all repeats.

    If every repeat reached the target, the costs are medians. Otherwise the result has the best accuracy of the repeats
    that did not reach the target. Return None if a repeat has no target.
    """
    known = [target for target in targets if target is not None]
    if not known or len(known) < len(targets):
        return None
    reached = [target for target in known if target.reached]
    combined = Target(
        accuracy=known[0].accuracy,
        reached=len(reached) == len(known),
        repeats_reached=len(reached),
        repeats=len(known),
    )
    if not combined.reached:
        best = [target.best for target in known if not target.reached and target.best is not None]
        return changed(combined, best=max(best, default=None))
    return changed(  # steps, epochs and bytes are lower medians, so that each is a value of some repeat
        combined,
        step=summarise_if_complete(statistics.median_low, [target.step for target in reached]),
        epoch=summarise_if_complete(statistics.median_low, [target.epoch for target in reached]),
        sent_bytes=summarise_if_complete(statistics.median_low, [target.sent_bytes for target in reached]),
        train_s=statistics.median(target.train_s for target in reached if target.train_s is not None),
    )
