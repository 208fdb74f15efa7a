"""Convergence of a run: training curves, evaluations, and the cost of reaching a target accuracy."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from paceline.measure.stats import of_all
from paceline.results import Curve, Evaluation, Target, changed
from paceline.results.worker_report import WorkerReport

CURVE_POINTS = 400


def curve_of(workers: Sequence[WorkerReport]) -> Curve:
    """Return loss, accuracy, time and bytes over steps for all workers together, thinned for charts.

    Asynchronous workers may have different numbers of steps; each contributes to its own steps only.
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
            curve.sent_bytes.append(sent_until(workers, end))
    return curve


def _loss_sum(workers: Sequence[WorkerReport], first: int, end: int) -> float:
    return float(
        sum(
            loss * count
            for worker in workers
            for loss, count in zip(worker.loss[first:end], worker.num_samples[first:end], strict=True)
        )
    )


def sent_until(workers: Sequence[WorkerReport], step: int) -> int | None:
    """Bytes that all workers have sent by the end of a step; None if they were not counted."""
    total = 0
    for worker in workers:
        if worker.step_sent_bytes is None:
            return None
        total += int(worker.step_sent_bytes[min(step, len(worker.step_sent_bytes)) - 1])
    return total


def evaluations_of(workers: Sequence[WorkerReport]) -> list[Evaluation]:
    """Return rank 0's evaluations, each with the bytes that all workers had sent by then."""
    return [
        changed(evaluation, sent_bytes=sent_until(workers, evaluation.step)) for evaluation in workers[0].evaluations
    ]


def target_of(accuracy: float | None, workers: Sequence[WorkerReport]) -> Target | None:
    """Return the cost of reaching the target, or the best accuracy; None if there is no target."""
    if accuracy is None:
        return None
    scored = [(row, row.accuracy) for row in evaluations_of(workers) if row.accuracy is not None]
    reached = next((row for row, score in scored if score >= accuracy), None)
    if reached is None:
        return Target(accuracy=accuracy, reached=False, best=max((score for _, score in scored), default=None))
    if len({len(worker.loss) for worker in workers}) > 1:
        # Asynchronous workers reach the same step at different times, but all stop at about the same time.
        reached = changed(reached, sent_bytes=sent_until(workers, max(len(worker.loss) for worker in workers)))
    return Target(
        accuracy=accuracy,
        reached=True,
        step=reached.step,
        epoch=reached.epoch,
        train_s=reached.train_s,
        sent_bytes=reached.sent_bytes,
    )


def combined_targets(targets: Sequence[Target | None]) -> Target | None:
    """Combine repeats: medians if all reached the target; otherwise the best accuracy of those that did not."""
    found = [target for target in targets if target is not None]
    if not found or len(found) < len(targets):
        return None
    reached = [target for target in found if target.reached]
    first = Target(
        accuracy=found[0].accuracy,
        reached=len(reached) == len(found),
        repeats_reached=len(reached),
        repeats=len(found),
    )
    if not first.reached:
        best = [target.best for target in found if not target.reached and target.best is not None]
        return changed(first, best=max(best, default=None))
    return changed(  # lower medians, so that each is the value of a repeat
        first,
        step=of_all(statistics.median_low, [target.step for target in reached]),
        epoch=of_all(statistics.median_low, [target.epoch for target in reached]),
        sent_bytes=of_all(statistics.median_low, [target.sent_bytes for target in reached]),
        train_s=statistics.median(target.train_s for target in reached if target.train_s is not None),
    )
