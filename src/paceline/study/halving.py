"""Successive halving for `paceline tune`: plan its rounds, drop candidates after each, and choose the winner.

A candidate is a strategy with its options and codec. A rung is one round: it runs fewer candidates for more steps than
the rung before. The reference is an exact strategy with which all candidates are compared. All functions are pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.measure.stats import interval95, paired_ratio, summarise_if_complete
from paceline.results import RunResult, changed
from paceline.results.study import Candidate, RungResult
from paceline.study.run_results import interval_of

FINALISTS = 4  # candidates in the last rung, besides the reference
EARLY_ROUNDS = 2  # largest number of repeats in the rungs before the last
CHANCE_ERRORS = 3.0  # standard errors by which an accuracy must exceed that of random guessing to be meaningful
TIE = 1.05  # a candidate ties with the fastest if it takes at most TIE times as long, and not significantly longer
STRENGTH = ("EXACT", "LOSSY", "PERIODIC", "PARTIAL", "STALE", "NONE")  # guarantees, strongest first


@dataclass(frozen=True)
class Rung:
    """One round of successive halving: how long and how often each candidate runs, and how many advance."""

    number: int
    steps: int
    repeats: int
    num_kept: int
    leniency: float  # factor by which the margins are wider than in the last rung


@dataclass(frozen=True, kw_only=True)
class Margins:
    """How much worse than the reference a candidate may be, in test accuracy or in test loss."""

    points: float = 0.5  # percentage points of test accuracy
    loss_percent: float = 2.0  # percent of the reference's test loss


@dataclass(frozen=True, kw_only=True)
class Guessing:
    """Accuracy of random guessing on a test set. The two fields determine its mean and its standard error.

    `num_classes` is 0 if the number of classes is unknown.
    """

    num_classes: int
    num_test_samples: int

    def is_beaten_by(self, accuracy: float) -> bool:
        """Return whether an accuracy is clearly above that of guessing. Return True if `num_classes` is 0 (unknown)."""
        if not self.num_classes:
            return True
        chance = 1 / self.num_classes
        error = math.sqrt(chance * (1 - chance) / max(self.num_test_samples, 1))
        return accuracy > chance + CHANCE_ERRORS * error


def plan_rungs(
    num_candidates: int, *, total_steps: int, eta: int, repeats: int, warmup: int, period: int
) -> list[Rung]:
    """Plan the rungs (rounds). Each has about `eta` times the steps of the one before, and the last has all steps.

    There are as many rungs as are needed to reduce the candidates to FINALISTS, but no more than the steps allow: the
    first rung has at least the steps of the warm-up and of one synchronisation period. In every rung but the last, the
    timed steps are a whole number of periods.
    """
    least = warmup + period
    num_useful = 1 + max(math.ceil(math.log(max(num_candidates / FINALISTS, 1), eta) - 1e-9), 0)
    num_possible = 1 + max(math.floor(math.log(max(total_steps / least, 1), eta) + 1e-9), 0)
    count = min(num_useful, num_possible)
    shrink = (FINALISTS / num_candidates) ** (1 / (count - 1)) if count > 1 else 1.0
    rungs = []
    for number in range(count):
        left = count - 1 - number
        periods = max(round((total_steps / eta**left - warmup) / period), 1)
        rungs.append(
            Rung(
                number=number + 1,
                steps=total_steps if left == 0 else min(warmup + periods * period, total_steps),
                repeats=repeats if left == 0 else min(EARLY_ROUNDS, repeats),
                num_kept=1 if left == 0 else max(math.ceil(num_candidates * shrink ** (number + 1) - 1e-9), 1),
                leniency=float(eta**left),
            )
        )
    return rungs


def judge_rung(
    rung: Rung,
    measured: Mapping[str, Sequence[RunResult]],
    failures: Mapping[str, str],
    *,
    reference: str,
    margins: Margins,
    guessing: Guessing,
) -> RungResult:
    """Return the table of a rung (round): every candidate's time, accuracy, gap to the reference, and outcome."""
    exact = measured[reference]
    judged_by = _judged_by(exact, guessing)
    margin = (margins.points if judged_by == "accuracy" else margins.loss_percent) * rung.leniency
    rows = [
        _row(results, exact, judged_by, margin, is_reference=label == reference) for label, results in measured.items()
    ]
    kept = [row.label for row in sorted((row for row in rows if row.is_within), key=step_time_s)[: rung.num_kept]]
    failed = [Candidate(label=label, end="failed", reason=reason) for label, reason in failures.items()]
    return RungResult(
        rung=rung.number,
        steps=rung.steps,
        repeats=rung.repeats,
        judged_by=judged_by,
        margin=margin,
        rows=[*(changed(row, end=_outcome(row, kept)) for row in rows), *failed],
    )


def survivors(table: RungResult) -> list[str]:
    """Return the labels of the candidates that advance to the next rung (round), including the reference."""
    return [row.label for row in table.rows if row.end in ("kept", "reference")]


def best_candidate(table: RungResult) -> Candidate:
    """Return the winner: the fastest of the candidates that are accurate enough.

    If other candidates tie with the fastest (see TIE), the one with the strongest guarantee wins.
    """
    accurate = [row for row in table.rows if row.is_within]
    fastest = min(accurate, key=step_time_s)
    ties = [row for row in accurate if row is fastest or _is_tie(row, fastest)]
    return min(ties, key=lambda row: (STRENGTH.index(row.guarantee or STRENGTH[-1]), step_time_s(row)))


def step_time_s(row: Candidate) -> float:
    """Return the step time of a candidate in seconds. It is infinite for a candidate that failed."""
    return math.inf if row.iteration_s is None else row.iteration_s


def _is_tie(row: Candidate, fastest: Candidate) -> bool:
    ratio = paired_ratio(row.iteration_s_repeats or [], fastest.iteration_s_repeats or [])
    return step_time_s(row) <= TIE * step_time_s(fastest) and not ratio.is_different


def _judged_by(exact: Sequence[RunResult], guessing: Guessing) -> str:
    mean = summarise_if_complete(statistics.fmean, [result.final.test_accuracy for result in exact])
    return "accuracy" if mean is not None and guessing.is_beaten_by(mean) else "loss"


def _row(
    results: Sequence[RunResult], exact: Sequence[RunResult], judged_by: str, margin: float, *, is_reference: bool
) -> Candidate:
    first = results[0]
    times = [slowest_worker_s(result) for result in results]
    pairs = list(zip(results, exact, strict=False))
    # Exact strategies differ from the reference by rounding only.
    gaps = (
        [0.0] * len(pairs)
        if first.guarantee == "EXACT"
        else [_shortfall(ours, theirs, judged_by) for ours, theirs in pairs]
    )
    gap = statistics.fmean(gaps)
    return Candidate(
        label=first.label,
        end="",  # set by `judge_rung` once all rows are known
        strategy=first.strategy,
        options=first.options,
        codec=first.codec,
        guarantee=first.guarantee,
        iteration_s=statistics.median(times),
        iteration_s_repeats=times,
        versus_reference=statistics.median(times) / statistics.median(map(slowest_worker_s, exact)),
        versus_reference_interval95=interval_of(paired_ratio(times, [slowest_worker_s(result) for result in exact])),
        test_accuracy=summarise_if_complete(statistics.fmean, [result.final.test_accuracy for result in results]),
        test_loss=summarise_if_complete(statistics.fmean, [result.final.test_loss for result in results]),
        sent_bytes=max(worker.sent_bytes for worker in first.per_worker),
        lost=gap,
        lost_interval95=interval95(gaps) if all(map(math.isfinite, gaps)) else None,
        is_within=gap <= margin,
        is_reference=is_reference,
    )


def slowest_worker_s(result: RunResult) -> float:
    """Return the mean step time of the slowest worker of a run, in seconds."""
    return max(worker.iteration_s for worker in result.per_worker)


def _shortfall(ours: RunResult, theirs: RunResult, judged_by: str) -> float:
    """Return how much worse `ours` is than `theirs`, the result of the reference: negative if `ours` is better.

    The unit is percentage points of accuracy, or percent of the reference's test loss. Return infinity if the score of
    `ours` is missing or not finite. Return 0 if the reference's score is missing, or is a test loss of 0 or less.
    """
    if judged_by == "accuracy":
        mine, other = ours.final.test_accuracy, theirs.final.test_accuracy
    else:
        mine, other = ours.final.test_loss, theirs.final.test_loss
    if mine is None or not math.isfinite(mine):
        return math.inf
    if other is None or (judged_by == "loss" and other <= 0):
        return 0.0
    return 100 * (other - mine) if judged_by == "accuracy" else 100 * (mine / other - 1)


def _outcome(row: Candidate, kept: Sequence[str]) -> str:
    if row.label in kept:
        return "kept"
    if row.is_reference:
        return "reference"
    return "slower" if row.is_within else "less accurate"
