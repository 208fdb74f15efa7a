"""What a sweep says in words: who was fast, who learnt most, and what large batches cost and remedies bring back."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.results import Row
from paceline.results.study import Sweep
from paceline.study.points import BATCH_KEYS


def sweep_lines(study: Sweep) -> list[str]:
    """Sentences; none says more than was measured."""
    results = study.results
    if len(results) < 2:
        return []
    lines = [*_extremes(results), *_batch_lines(results)]
    if study.repeats in (None, 1):
        lines.append("One repeat cannot tell small differences from noise: --repeats 3 gives intervals.")
    return lines


def _extremes(results: Sequence[Row]) -> list[str]:
    fastest = max(results, key=lambda r: r.samples_per_s)
    lines = [f"Most samples per second: {fastest.label} ({fastest.samples_per_s:,.0f})."]
    scored = [r for r in results if accuracy_of(r) is not None]
    if scored:
        best = max(scored, key=_accuracy)
        tied = [r.label for r in scored if _accuracy(r) == _accuracy(best)]
        more = f" and {len(tied) - 1} more" if len(tied) > 1 else ""
        lines.append(f"Highest test accuracy: {best.label}{more} ({100 * _accuracy(best):.1f} %).")
    return lines


def _batch_lines(results: Sequence[Row]) -> list[str]:
    """From the smallest batch to the largest: what is gained in time, lost in accuracy, and brought back."""
    keys = set(results[0].point or {})
    if len(keys) != 1 or not keys <= BATCH_KEYS:
        return []
    plain = sorted((r for r in results if not r.remedy), key=lambda r: r.batch_size or 0)
    if len(plain) < 2 or any(accuracy_of(r) is None for r in results):
        return []
    small, large = plain[0], plain[-1]
    gain = large.samples_per_s / small.samples_per_s
    lost = 100 * (_accuracy(large) - _accuracy(small))
    lines = [
        f"From batch {small.batch_size} to {large.batch_size}: {gain:.2f} times the samples per second, "
        f"{lost:+.1f} points of test accuracy after as many epochs."
    ]
    remedied = [r for r in results if r.remedy and r.batch_size == large.batch_size]
    if remedied:
        best = max(remedied, key=_accuracy)
        back = 100 * (_accuracy(best) - _accuracy(large))
        lines.append(f"Best remedy at batch {large.batch_size}: {best.remedy}, {back:+.1f} points.")
    return lines


def accuracy_of(result: Row) -> float | None:
    return result.final.test_accuracy


def _accuracy(result: Row) -> float:
    return result.final.test_accuracy or 0.0
