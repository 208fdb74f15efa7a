"""What follows from the points of a scaling study: speed-up, efficiency, gains, and where they end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.measure.stats import interval95, paired_ratio
from paceline.study.entries import ONE_WORKER
from paceline.study.results import Result, add_comparisons

STRONG, WEAK = "strong", "weak"
MODES = (STRONG, WEAK)
MORE, SAME, LESS, UNKNOWN = "more", "no difference", "less", "one repeat cannot tell"
AGAINST_ONE: tuple[str, ...] = ("reference_s", "ideal_s", "speedup", "speedup_interval95", "efficiency")
AGAINST_ONE += ("efficiency_interval95", "beyond_ideal_s", "beyond_ideal_s_interval95")
PARTS = ("compute", "communication", "overlap", "waiting", "data", "rest")


def modes_of(results: Sequence[Result]) -> list[str]:
    """The modes that were measured, strong scaling first."""
    found = {result["point"]["mode"] for result in results}
    return [mode for mode in MODES if mode in found]


def reference_of(results: Sequence[Result], mode: str) -> Result | None:
    """The one worker that all points of a mode are measured by; None where it has no result."""
    return next((r for r in results if r["label"] == ONE_WORKER and r["point"]["mode"] == mode), None)


def lines_of(results: Sequence[Result], mode: str) -> dict[str, list[Result]]:
    """The points of every strategy in one mode, by label, from few workers to many; the reference is not among them."""
    found: dict[str, list[Result]] = {}
    for result in sorted(results, key=_num_workers):
        if result["point"]["mode"] == mode and result["label"] != ONE_WORKER:
            found.setdefault(result["label"], []).append(result)
    order = list(dict.fromkeys(result["label"] for result in results))
    return {label: found[label] for label in order if label in found}


def add_scaling(results: list[Result]) -> None:
    """Give every point its `scaling`, and compare strategies with each other where they had equally many workers."""
    for mode in modes_of(results):
        reference = reference_of(results, mode)
        lines = lines_of(results, mode)
        for line in lines.values():
            before = reference
            for row in line:
                row["scaling"] = _scaling(row, reference, before)
                before = row
        if reference is not None:
            reference["scaling"] = _scaling(reference, reference, None)
        for num_workers in {_num_workers(row) for line in lines.values() for row in line}:
            _compare([row for line in lines.values() for row in line if _num_workers(row) == num_workers])


def best_of(results: Sequence[Result]) -> Result:
    """The point with the most samples per second, of those whose workers agree where there are some."""
    several = [r for r in results if r["workers"] > 1]
    rivals = [r for r in several if r["guarantee"] != "NONE"] or several or results
    return max(rivals, key=lambda r: float(r["samples_per_s"]))


def paying(results: Sequence[Result]) -> list[dict[str, Any]]:
    """For every mode and strategy: up to how many workers more of them pay.

    From one worker on, a number pays when its throughput is above that of the last number that did, beyond noise.
    `pays_until` is the last of them; 1 where none does, null where nothing tells noise (one repeat, or no reference).
    """
    found = []
    for mode in modes_of(results):
        reference = reference_of(results, mode)
        for label, line in lines_of(results, mode).items():
            speedups = {1: 1.0, **{_num_workers(row): row["scaling"]["speedup"] or 0.0 for row in line}}
            is_known = any(row["scaling"]["speedup_interval95"] for row in line)
            best = max(line, key=lambda row: row["scaling"]["speedup"] or 0.0)["scaling"]
            until, reached, next_gain = _climb(line, reference)
            found.append(
                {
                    "mode": mode,
                    "label": label,
                    "guarantee": line[0]["guarantee"],
                    "workers": [_num_workers(row) for row in line],
                    "pays_until": until if is_known else None,
                    "last_gain": reached,
                    "next_gain": next_gain,
                    "best_workers": max(speedups, key=lambda n: speedups[n]) if reference is not None else None,
                    "best_speedup": best["speedup"],
                    "best_speedup_interval95": best["speedup_interval95"],
                }
            )
    return found


def _climb(
    line: Sequence[Result], reference: Result | None
) -> tuple[int, dict[str, Any] | None, dict[str, Any] | None]:
    """The last number of workers that pays, its gain over the one before that did, and that of the next over it."""
    last, reached, missed = reference, None, None
    if last is None:
        return 1, None, None
    for row in line:
        gain = _gain(row, last)
        if gain["verdict"] == MORE:
            last, reached, missed = row, gain, None
        else:
            missed = missed or gain
    return _num_workers(last), reached, missed


def _scaling(row: Result, reference: Result | None, before: Result | None) -> dict[str, Any]:
    """One point against one worker, and against the point with fewer workers before it."""
    num_workers, mean = _num_workers(row), row["iteration_s"]["mean"]
    found: dict[str, Any] = dict.fromkeys(AGAINST_ONE)
    if reference is not None:
        alone = reference["iteration_s"]["mean"]
        speedup, bounds = _throughput(row, reference)
        share = _work(row) / num_workers  # of one worker's step that is left to each
        pairs = zip(row["iteration_mean_s_repeats"], reference["iteration_mean_s_repeats"], strict=False)
        differences = interval95([ours - theirs * share for ours, theirs in pairs])
        found |= {
            "reference_s": alone,
            "ideal_s": alone * share,
            "speedup": speedup,
            "speedup_interval95": bounds,
            "efficiency": speedup / num_workers,
            "efficiency_interval95": [bound / num_workers for bound in bounds] if bounds else None,
            "beyond_ideal_s": mean - alone * share,
            "beyond_ideal_s_interval95": list(differences) if differences and row is not reference else None,
        }
    return {**found, **_parts(row), "gain": _gain(row, before) if before is not None else None}


def _gain(row: Result, before: Result) -> dict[str, Any]:
    ratio, bounds = _throughput(row, before)
    if bounds is None:
        verdict = UNKNOWN
    else:
        verdict = SAME if bounds[0] <= 1 <= bounds[1] else MORE if bounds[0] > 1 else LESS
    where = {"workers": _num_workers(row), "over_workers": _num_workers(before)}
    return {**where, "ratio": ratio, "interval95": bounds, "verdict": verdict}


def _throughput(row: Result, other: Result) -> tuple[float, list[float] | None]:
    """Samples per second over those of another point, with an interval from repeats taken side by side.

    A point that failed in a later repeat has fewer of them: those that both have are compared.
    """
    work = _work(row) / _work(other)
    ours, theirs = row["iteration_mean_s_repeats"], other["iteration_mean_s_repeats"]
    common = min(len(ours), len(theirs))
    value = work * other["iteration_s"]["mean"] / row["iteration_s"]["mean"]
    ratio = paired_ratio(theirs[:common], ours[:common])
    if row is other or ratio.low is None or ratio.high is None:
        return value, None
    return value, [work * ratio.low, work * ratio.high]


def _parts(row: Result) -> dict[str, Any]:
    """Where the time of a step goes, in seconds; null where that was not measured."""
    mean = (row.get("split") or {}).get("mean") or {}
    step = mean.get("step_s")
    share = (mean.get("communication_s") or 0.0) / step if step else None
    return {**{f"{part}_s": mean.get(f"{part}_s") for part in PARTS}, "communication_share": share}


def _compare(rows: list[Result]) -> None:
    """Strategies with equally many workers in one mode, by the repeats that all of them have."""
    common = min(len(row["iteration_mean_s_repeats"]) for row in rows)
    same = [{**row, "iteration_mean_s_repeats": row["iteration_mean_s_repeats"][:common]} for row in rows]
    add_comparisons(same)
    for row, compared in zip(rows, same, strict=True):
        row.update({key: compared[key] for key in ("versus_fastest", "versus_none") if key in compared})


def _work(row: Result) -> int:
    """The samples of a step, in batches of the reference."""
    return _num_workers(row) if row["point"]["mode"] == WEAK else 1


def _num_workers(row: Result) -> int:
    return int(row["point"]["workers"])
