"""Successive halving: how long each rung is, who passes it, who is best in the end. Pure, values in, values out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.measure.stats import interval95, paired_ratio
from paceline.study.results import Result

FINALISTS = 4  # beside the reference
EARLY_ROUNDS = 2  # of rungs before the last
CHANCE_ERRORS = 3.0  # standard errors above guessing, below which an accuracy says nothing
TIE = 1.05  # times the fastest; closer, and not told apart by the repeats, the stronger guarantee is preferred
STRENGTH = ("EXACT", "LOSSY", "PERIODIC", "PARTIAL", "STALE", "NONE")

Row = dict[str, Any]


@dataclass(frozen=True)
class Rung:
    """So many steps for everybody who is left, so many times; then so many go on. Margins are wider early on."""

    number: int
    steps: int
    repeats: int
    num_kept: int
    leniency: float  # what margins are multiplied by


@dataclass(frozen=True, kw_only=True)
class Margins:
    """How much worse than exact may be: in points of accuracy, or in percent of the loss where that has to judge."""

    points: float = 0.5
    loss_percent: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Guessing:
    """What accuracy is worth nothing: that of guessing, on so many test samples. No classes: nothing is known."""

    num_classes: int
    num_test_samples: int

    def is_beaten_by(self, accuracy: float) -> bool:
        if not self.num_classes:
            return True
        chance = 1 / self.num_classes
        error = math.sqrt(chance * (1 - chance) / max(self.num_test_samples, 1))
        return accuracy > chance + CHANCE_ERRORS * error


def plan_rungs(
    num_candidates: int, *, total_steps: int, eta: int, repeats: int, warmup: int, period: int
) -> list[Rung]:
    """Rungs that grow `eta`-fold up to all steps, as many as candidates need and steps allow.

    Timed steps of every rung but the last are a whole number of periods.
    """
    least = warmup + period
    wanted = 1 + max(math.ceil(math.log(max(num_candidates / FINALISTS, 1), eta) - 1e-9), 0)
    possible = 1 + max(math.floor(math.log(max(total_steps / least, 1), eta) + 1e-9), 0)
    count = min(wanted, possible)
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
    measured: Mapping[str, Sequence[Result]],
    failures: Mapping[str, str],
    *,
    reference: str,
    margins: Margins,
    guessing: Guessing,
) -> dict[str, Any]:
    """The rung's table: for everybody time, accuracy, what was lost against exact, and whether it goes on."""
    exact = measured[reference]
    by = _what_judges(exact, guessing)
    margin = (margins.points if by == "accuracy" else margins.loss_percent) * rung.leniency
    rows = [_row(results, exact, by, margin, is_reference=label == reference) for label, results in measured.items()]
    rivals = sorted((row for row in rows if row["is_within"]), key=lambda row: float(row["iteration_s"]))
    kept = [row["label"] for row in rivals[: rung.num_kept]]
    for row in rows:
        row["end"] = _end(row, kept)
    failed = [{"label": label, "end": "failed", "reason": reason} for label, reason in failures.items()]
    return {
        "rung": rung.number,
        "steps": rung.steps,
        "repeats": rung.repeats,
        "judged_by": by,
        "margin": margin,
        "rows": [*rows, *failed],
    }


def survivors(table: Mapping[str, Any]) -> list[str]:
    """Who goes on to the next rung: the reference always does."""
    return [row["label"] for row in table["rows"] if row["end"] in ("kept", "reference")]


def best_of(table: Mapping[str, Any]) -> Row:
    """The fastest that lost no more than allowed; of those that cannot be told from it, the strongest guarantee."""
    rivals = [row for row in table["rows"] if row.get("is_within")]
    fastest = min(rivals, key=lambda row: float(row["iteration_s"]))
    ties = [row for row in rivals if row is fastest or _is_tie(row, fastest)]
    return min(ties, key=lambda row: (STRENGTH.index(row["guarantee"]), row["iteration_s"]))


def _is_tie(row: Row, fastest: Row) -> bool:
    ratio = paired_ratio(row["iteration_s_repeats"], fastest["iteration_s_repeats"])
    return row["iteration_s"] <= TIE * fastest["iteration_s"] and not ratio.is_different


def _what_judges(exact: Sequence[Result], guessing: Guessing) -> str:
    scores = [result["final"]["test_accuracy"] for result in exact]
    if any(score is None for score in scores):
        return "loss"
    return "accuracy" if guessing.is_beaten_by(statistics.fmean(scores)) else "loss"


def _row(results: Sequence[Result], exact: Sequence[Result], by: str, margin: float, *, is_reference: bool) -> Row:
    first = results[0]
    times = [slowest_s(result) for result in results]
    pairs = list(zip(results, exact, strict=False))
    # Two exact strategies differ by rounding alone, which is no finding.
    gaps = [0.0] * len(pairs) if first["guarantee"] == "EXACT" else [_gap(ours, theirs, by) for ours, theirs in pairs]
    bounds = interval95(gaps) if all(map(math.isfinite, gaps)) else None
    ratio = paired_ratio(times, [slowest_s(result) for result in exact])
    gap = statistics.fmean(gaps)
    return {
        **{key: first[key] for key in ("label", "strategy", "options", "codec", "guarantee")},
        "iteration_s": statistics.median(times),
        "iteration_s_repeats": times,
        "versus_reference": statistics.median(times) / statistics.median(map(slowest_s, exact)),
        "versus_reference_interval95": None if ratio.low is None else [ratio.low, ratio.high],
        "test_accuracy": _mean([result["final"]["test_accuracy"] for result in results]),
        "test_loss": _mean([result["final"]["test_loss"] for result in results]),
        "sent_bytes": max(worker["sent_bytes"] for worker in first["per_worker"]),
        "lost": gap,  # in points of accuracy, or in percent of the loss
        "lost_interval95": list(bounds) if bounds else None,
        "is_within": gap <= margin,
        "is_reference": is_reference,
    }


def slowest_s(result: Result) -> float:
    """Mean time of a step of the slowest worker: the others wait for it sooner or later."""
    return max(float(row["iteration_s"]) for row in result["per_worker"])


def _gap(ours: Result, theirs: Result, by: str) -> float:
    """How much was lost against exact; what is not a finite number has lost everything."""
    key = f"test_{by}"
    mine, other = ours["final"][key], theirs["final"][key]
    if mine is None or not math.isfinite(mine):
        return math.inf
    if by == "accuracy":
        return 100 * float(other - mine)
    return 100 * float(mine / other - 1) if other > 0 else 0.0


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.fmean(found) if len(found) == len(values) else None


def _end(row: Row, kept: Sequence[str]) -> str:
    if row["label"] in kept:
        return "kept"
    if row["is_reference"]:
        return "reference"
    return "slower" if row["is_within"] else "less accurate"
