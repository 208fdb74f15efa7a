"""Checks of `paceline verify`: one function per guarantee decides whether a strategy meets that guarantee.

The functions read the workers' reports, which describe each replica after every step. They compare the replicas with
each other or with the oracle, which is the same training in one process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from paceline.results.commands import Divergence, ReplicaReport, ReplicaStep
from paceline.results.value import changed
from paceline.strategies import Guarantee, Strategy
from paceline.strategies.capabilities import (
    STALENESS,
    drift_bound_of,
    is_synchronised,
    staleness_bound_of,
    steps_to_synchronisation,
)

EXACT_TOLERANCE = 1e-9  # float64 rounds at 1e-16, and a few training steps amplify that by less than 1e7
LEAST_DIFFERENCE = 1e-6  # relative difference from the oracle that a strategy without a guarantee must exceed
# Added to the drift bound, which may be zero, to allow for rounding. It is relative to an update's norm: float64 rounds
# at 1e-16 of a replica's norm, and a replica's norm is less than 1e6 times the norm of an update.
DRIFT_ROUNDING = 1e-9

Reports = dict[str, list[ReplicaReport]]  # reports of all workers, by optimiser


@dataclass(frozen=True)
class Verdict:
    """Result of checking one strategy: its largest error, the tolerance, and whether the guarantee is met."""

    error: float
    tolerance: float
    is_met: bool
    first_divergence: Divergence | None = None
    has_guarantee: bool = True


def judge(strategy: Strategy, num_workers: int, reports: Reports, spread: float = 1.0) -> Verdict:
    """Return a verdict: whether the workers' reports show that the strategy meets its guarantee.

    `spread` is the mean norm of the workers' gradients, divided by the norm of the mean gradient, in the first step.
    """
    return JUDGES[strategy.guarantee](strategy, num_workers, reports, spread)


def _exact(strategy: Strategy, num_workers: int, reports: Reports, spread: float) -> Verdict:  # noqa: ARG001
    """Check that every replica equals the oracle (the same training in one process) after every step."""
    return _within(EXACT_TOLERANCE, list(_oracle_differences(reports, lambda row: row.relative_error)))


def _lossy(strategy: Strategy, num_workers: int, reports: Reports, spread: float) -> Verdict:
    """Check that the error of the first update, relative to the update's norm, is within the codec's bound.

    The error is the distance from the oracle (the same training in one process). A codec's bound is relative to the
    norms of the workers' gradients, but the update is computed from their mean. The bound is therefore multiplied by
    `spread` (see `judge`). The bound does not apply to later steps, because replicas that already differ from the
    oracle compute different gradients. A later step fails only if its error is infinite, NaN or missing.
    """
    found = [
        d for d in _oracle_differences(reports, lambda row: row.relative_to_path) if d.step == 0 or math.isinf(d.error)
    ]
    return _within(strategy.codec.error_bound(num_workers) * spread, found)


def _periodic(strategy: Strategy, num_workers: int, reports: Reports, spread: float) -> Verdict:  # noqa: ARG001
    """Check that replicas are bitwise equal after every synchronisation and after the strategy's `finish`.

    Replicas must also have changed since the start.
    """
    found = [
        _divergence(optimizer, worker, row, 0.0 if row.digest == first.digest else math.inf)
        for optimizer, workers in reports.items()
        for worker in workers
        for row, first in zip(worker.steps, workers[0].steps, strict=True)
        if is_synchronised(strategy, row.step)
    ]
    verdict = _within(0.0, [*found, *_final_differences(reports)])
    return Verdict(verdict.error, 0.0, verdict.is_met and _have_trained(reports), verdict.first_divergence)


def _partial(strategy: Strategy, num_workers: int, reports: Reports, spread: float) -> Verdict:  # noqa: ARG001
    """Check that the distance of each replica from the mean replica stays within the strategy's drift bound.

    Replicas must also be bitwise equal after the strategy's `finish`, and must have changed since the start.
    """
    tolerance = drift_bound_of(strategy, num_workers) + DRIFT_ROUNDING
    verdict = _within(tolerance, [*_drift_differences(reports), *_final_differences(reports)])
    return Verdict(verdict.error, tolerance, verdict.is_met and _have_trained(reports), verdict.first_divergence)


def _stale(strategy: Strategy, num_workers: int, reports: Reports, spread: float) -> Verdict:  # noqa: ARG001
    """Check that no update is staler than the strategy's staleness bound, if the strategy has one.

    Replicas must also be bitwise equal after the strategy's `finish`, and must have changed since the start.
    """
    bound = staleness_bound_of(strategy, num_workers)
    found = []
    for difference, worker in zip(
        _final_differences(reports), (worker for workers in reports.values() for worker in workers), strict=True
    ):
        latest = worker.metrics[STALENESS]["max"] if bound is not None else 0
        if bound is not None and latest > bound:
            text = f"an update with staleness {latest} ({bound} allowed)"
            difference = changed(difference, error=math.inf, tensor=text)
        found.append(difference)
    verdict = _within(0.0, found)
    return Verdict(verdict.error, 0.0, verdict.is_met and _have_trained(reports), verdict.first_divergence)


def _none(strategy: Strategy, num_workers: int, reports: Reports, spread: float) -> Verdict:  # noqa: ARG001
    """Check that at least one replica differs from the oracle, as expected of a strategy without a guarantee.

    The oracle is the same training in one process. With one worker, no difference is possible and the check passes.
    """
    verdict = _within(EXACT_TOLERANCE, list(_oracle_differences(reports, lambda row: row.relative_error)))
    differs = num_workers == 1 or verdict.error > LEAST_DIFFERENCE
    return Verdict(verdict.error, verdict.tolerance, differs, verdict.first_divergence, has_guarantee=False)


JUDGES: dict[Guarantee, Callable[[Strategy, int, Reports, float], Verdict]] = {
    Guarantee.EXACT: _exact,
    Guarantee.LOSSY: _lossy,
    Guarantee.PERIODIC: _periodic,
    Guarantee.PARTIAL: _partial,
    Guarantee.STALE: _stale,
    Guarantee.NONE: _none,
}


def _within(tolerance: float, found: list[Divergence]) -> Verdict:
    worst = max(difference.error for difference in found)
    in_order = sorted(found, key=lambda d: (d.step, d.rank))
    first = next((difference for difference in in_order if difference.error > tolerance), None)
    return Verdict(worst, tolerance, worst <= tolerance, first)


def _oracle_differences(reports: Reports, error_of: Callable[[ReplicaStep], float | None]) -> Iterator[Divergence]:
    for optimizer, workers in reports.items():
        for worker in workers:
            for row in worker.steps:
                yield _divergence(optimizer, worker, row, missing_as_infinite(error_of(row)))


def _drift_differences(reports: Reports) -> Iterator[Divergence]:
    """Yield each replica's distance from the mean replica after every step.

    The distance is divided by the norm of the largest update of any replica so far.
    """
    for optimizer, workers in reports.items():
        longest = 0.0
        for rows in zip(*(worker.steps for worker in workers), strict=True):
            longest = max([longest, *(row.longest_update or 0.0 for row in rows)])
            for worker, row in zip(workers, rows, strict=True):
                drift = row.distance / longest if longest and row.distance is not None else math.inf
                yield _divergence(optimizer, worker, row, missing_as_infinite(drift))


def _final_differences(reports: Reports) -> Iterator[Divergence]:
    """Yield one difference per worker: 0 if its final replica is bitwise equal to that of rank 0, else infinity."""
    for optimizer, workers in reports.items():
        for worker in workers:
            same = worker.final_digest == workers[0].final_digest
            yield _divergence(optimizer, worker, worker.steps[-1], 0.0 if same else math.inf)


def _have_trained(reports: Reports) -> bool:
    """Return whether the parameters of every replica have changed since the start."""
    return all(worker.final_digest != worker.start_digest for workers in reports.values() for worker in workers)


def _divergence(optimizer: str, worker: ReplicaReport, row: ReplicaStep, error: float) -> Divergence:
    tensor = row.tensor or "all together"  # only a comparison with the oracle names a tensor
    return Divergence(optimizer=optimizer, rank=worker.rank, step=row.step, tensor=tensor, error=error)


def steps_to_judge(strategy: Strategy, num_workers: int) -> int:
    """Return how many steps are enough to judge a strategy: one whole cycle plus one step.

    With the guarantee PARTIAL, a cycle has one step per worker. With other guarantees, a cycle ends when all workers
    synchronise.
    """
    if strategy.guarantee is Guarantee.PARTIAL:
        return num_workers + 1
    return steps_to_synchronisation(strategy) + 1


def missing_as_infinite(error: float | None) -> float:
    """Return the error, or infinity if it is missing or NaN, so that comparisons do not overlook it."""
    return math.inf if error is None or math.isnan(error) else error
