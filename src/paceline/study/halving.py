"""Successive halving for tune: plan the rungs, select the candidates of each, choose the best. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.measure.stats import interval95, paired_ratio, summarise_if_complete
from paceline.results import RunResult, changed
from paceline.results.study import Candidate, RungResult
from paceline.study.run_results import interval_of

FINALISTS = 4  # without the reference
EARLY_ROUNDS = 2  # repeats of rungs before the last
CHANCE_ERRORS = 3.0  # an accuracy counts if it is this many standard errors above chance
TIE = 1.05  # within this factor of the fastest, if not significantly slower, the stronger guarantee wins
STRENGTH = ("EXACT", "LOSSY", "PERIODIC", "PARTIAL", "STALE", "NONE")


@dataclass(frozen=True)
class Rung:
    """One round of successive halving: steps and repeats per candidate, and how many candidates go on to the next."""

    number: int
    steps: int
    repeats: int
    num_kept: int
    leniency: float  # factor on the margins: wider in early rungs


@dataclass(frozen=True, kw_only=True)
class Margins:
    """Allowed loss against the reference: points of accuracy, or percent of the test loss."""

    points: float = 0.5
    loss_percent: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Guessing:
    """Accuracy of random guessing, from the number of classes (0: unknown) and of test samples."""

    num_classes: int
    num_test_samples: int

    def is_beaten_by(self, accuracy: float) -> bool:
        """Return whether an accuracy is clearly above chance."""
        if not self.num_classes:
            return True
        chance = 1 / self.num_classes
        error = math.sqrt(chance * (1 - chance) / max(self.num_test_samples, 1))
        return accuracy > chance + CHANCE_ERRORS * error


def plan_rungs(
    num_candidates: int, *, total_steps: int, eta: int, repeats: int, warmup: int, period: int
) -> list[Rung]:
    """Plan rungs whose steps grow `eta`-fold up to all steps, as many as needed and possible.

    In every rung but the last, the timed steps are a whole number of periods.
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
    """Return the table of a rung: time, accuracy, loss against the reference, and whether each candidate is kept."""
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
    """Return the candidates of the next rung, always including the reference."""
    return [row.label for row in table.rows if row.end in ("kept", "reference")]


def best_candidate(table: RungResult) -> Candidate:
    """Return the fastest candidate within the margin; among ties the one with the strongest guarantee."""
    accurate = [row for row in table.rows if row.is_within]
    fastest = min(accurate, key=step_time_s)
    ties = [row for row in accurate if row is fastest or _is_tie(row, fastest)]
    return min(ties, key=lambda row: (STRENGTH.index(row.guarantee or STRENGTH[-1]), step_time_s(row)))


def step_time_s(row: Candidate) -> float:
    """Return the step time in seconds; infinite for a failed candidate."""
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
        [0.0] * len(pairs) if first.guarantee == "EXACT" else [_gap(ours, theirs, judged_by) for ours, theirs in pairs]
    )
    gap = statistics.fmean(gaps)
    return Candidate(
        label=first.label,
        end="",  # set once all rows are known
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
    """Return the mean step time of the slowest worker."""
    return max(worker.iteration_s for worker in result.per_worker)


def _gap(ours: RunResult, theirs: RunResult, judged_by: str) -> float:
    """Return what is lost against the reference, in points or percent; infinite if the score is not finite."""
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
