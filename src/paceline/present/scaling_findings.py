"""Findings of a scaling study: the strategy that scales best, and up to how many workers throughput grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.present import comparison_findings, measurement_findings
from paceline.present.charts.scale import ideal_name, scaling_of
from paceline.present.comparison_page import cautions
from paceline.present.numbers import counted, factor, milliseconds, share, times, times_interval
from paceline.present.page_parts import Finding
from paceline.present.pages import PageContent
from paceline.results import Failure, Gain, Row
from paceline.results.study import ScaleResult, ScalingLimit
from paceline.study.entries import ONE_WORKER
from paceline.study.scale_analysis import SAME, WEAK, best_point, modes_of, paying, rows_by_strategy

TITLES = {"strong": "Strong scaling", "weak": "Weak scaling"}


def batch_words(modes: Mapping[str, Mapping[str, int]], mode: str) -> str:
    """Describe the batch size that stays constant in a scaling mode while workers are added."""
    batches = modes[mode]
    if mode == WEAK:
        return f"every worker keeps its batch of {batches['worker_batch_size']}"
    return f"the global batch of {batches['batch_size']} is kept"


def refused_words(one: Failure) -> str:
    return f"{_point_words(one)} cannot run: {one.reason}."


def failed_words(one: Failure) -> str:
    return f"{_point_words(one)} failed in repeat {one.repeat}: {one.error}."


def findings(study: ScaleResult, material: PageContent) -> list[Finding]:
    rows, modes = study.results, modes_of(study.results)
    found = [headline(rows)]
    for mode in modes:
        before = f"{TITLES[mode]}: " if len(modes) > 1 else ""
        found += [Finding(f"{before}{text}", TITLES[mode]) for text in paying_words(rows, mode)]
        beyond = _beyond_words(rows, mode)
        if beyond:
            text = f"Time of a step beyond perfect scaling ({ideal_name(mode)}): {'; '.join(beyond)}."
            found.append(Finding(f"{before}{text}", f"Beyond {ideal_name(mode)}", "detail"))
        found += _with_most_workers(rows, mode, is_only=len(modes) == 1)
    if study.repeats == 1 and any(row.workers > 1 for row in rows):
        text = "One repeat cannot tell a gain from noise; --repeats 3 gives intervals."
        found.append(Finding(text, "Repeats", "caution"))
    found += [Finding(refused_words(one), "Refused", "caution") for one in study.refused]
    found += [Finding(failed_words(one), "Failed", "problem") for one in study.failed]
    found += [
        *measurement_findings.overhead(material.rows),
        *measurement_findings.stragglers(material.rows, material.recipe),
    ]
    return [*found, *cautions(material)]


def headline(rows: Sequence[Row]) -> Finding:
    """Return a finding with the strategy of the highest speed-up in strong and in weak scaling.

    Strategies that never synchronise are considered only if there are no others. If no strategy is faster than one
    worker, or one worker was not measured, the finding says so.
    """
    parts = []
    for mode in modes_of(rows):
        several = [row for line in rows_by_strategy(rows, mode).values() for row in line]
        several = [row for row in several if row.guarantee != "NONE"] or several
        best = best_point(several) if several else None
        speedup = None if best is None else scaling_of(best).speedup
        if best is None or speedup is None:
            continue
        if speedup > 1:
            parts.append(
                f"{TITLES[mode]}: {best.label} scales best, {times(speedup)} times one worker on "
                f"{counted(best.workers, 'worker')} (efficiency {share(speedup / best.workers)})."
            )
        else:
            parts.append(f"{TITLES[mode]}: no strategy is faster than one worker.")
    if not parts:
        is_alone = all(row.label == ONE_WORKER for row in rows)
        parts = ["Only one worker was measured." if is_alone else "No speed-up can be given: one worker has no result."]
    return Finding(" ".join(parts), kind="headline")


def paying_words(rows: Sequence[Row], mode: str) -> list[str]:
    """Return one sentence per strategy, on the number of workers up to which its throughput grows.

    Strategies that never synchronise are left out.
    """
    found = [one for one in paying(rows) if one.mode == mode and one.guarantee != "NONE"]
    return [_paying(one) for one in found if one.best_workers is not None]


def _paying(one: ScalingLimit) -> str:
    if one.pays_until is None:
        return _in_one_repeat(one)
    if one.pays_until == 1:
        return _unpaid(one)
    if one.pays_until == one.workers[-1] and one.last_gain is not None:
        return f"{one.label} gains throughput up to {one.pays_until} workers, the most tried: {_gain(one.last_gain)}."
    gain = one.next_gain
    if gain is None:
        return f"{one.label} gains throughput up to {one.pays_until} workers."
    noise = ", which is noise" if gain.verdict == SAME else ""
    return f"{one.label} gains throughput up to {one.pays_until} workers; {gain.workers} have {_gain(gain)}{noise}."


def _unpaid(one: ScalingLimit) -> str:
    """Describe a strategy whose throughput is not significantly above that of one worker."""
    best, bounds = one.best_speedup or 0.0, one.best_speedup_interval95
    interval = f" (95 % interval {times_interval(bounds)})" if bounds else ""
    if best > 1:
        return (
            f"{one.label}: no gain over one worker at 95 % confidence; at best {times(best)} times its throughput, on "
            f"{one.best_workers}{interval}."
        )
    return f"{one.label} gains no throughput over one worker: at best {times(best)} times{interval}."


def _in_one_repeat(one: ScalingLimit) -> str:
    best = one.best_workers or 1
    if best == 1:
        return f"{one.label} was not faster than one worker in this one repeat (at best {times(one.best_speedup)})."
    most = "the most tried" if best == one.workers[-1] else f"of {', '.join(map(str, one.workers))}"
    return (
        f"{one.label} had the highest throughput on {counted(best, 'worker')} ({most}) in this one repeat: "
        f"{factor(one.best_speedup)}."
    )


def _gain(gain: Gain) -> str:
    interval = f" (95 % interval {times_interval(gain.interval95)})" if gain.interval95 else " (one repeat)"
    return f"{times(gain.ratio)} times the throughput of {gain.over_workers}{interval}"


def _beyond_words(rows: Sequence[Row], mode: str) -> list[str]:
    """Describe for each strategy how much longer a step takes than under perfect scaling.

    Each description is for the strategy's largest number of workers, and splits the additional time into
    communication, waiting and the rest. Strategies for which these times are unknown are left out.
    """
    found = []
    for label, line in rows_by_strategy(rows, mode).items():
        scaling = scaling_of(line[-1])
        beyond, communication, waiting = scaling.beyond_ideal_s, scaling.communication_s, scaling.waiting_s
        if beyond is None or communication is None or waiting is None:
            continue
        rest, hidden = beyond - communication - waiting, milliseconds(scaling.overlap_s or 0.0)
        parts = [f"communication {milliseconds(communication)}", f"waiting {milliseconds(waiting)}"]
        parts.append(f"the rest {milliseconds(rest)}")
        under = f"; {hidden} ms of communication were hidden" if hidden != milliseconds(0.0) else ""
        found.append(f"{label} on {line[-1].workers} {milliseconds(beyond)} ms ({', '.join(parts)}{under})")
    return found


def _with_most_workers(rows: Sequence[Row], mode: str, *, is_only: bool) -> list[Finding]:
    """Return the findings that compare strategies on the largest number of workers."""
    several = [row for line in rows_by_strategy(rows, mode).values() for row in line]
    most = max((row.workers for row in several), default=0)
    largest = [row for row in several if row.workers == most]
    if not largest:
        return []
    subjects = (
        comparison_findings.speed,
        comparison_findings.synchronisation_cost,
        comparison_findings.learning,
        comparison_findings.replicas,
    )
    on_largest = [finding for subject in subjects for finding in subject(largest)]
    where = f"{most} workers" if is_only else f"{most} workers ({mode})"
    return [
        Finding(f"On {where}: {_as_clause(one.text, largest)}", f"{one.title}, {where}", one.kind, one.places)
        for one in on_largest
    ]


def _as_clause(text: str, rows: Sequence[Row]) -> str:
    """Return a sentence with a lower-case first letter, for use after a colon.

    A sentence that begins with the name of a strategy is unchanged.
    """
    return text if any(text.startswith(row.label) for row in rows) else f"{text[0].lower()}{text[1:]}"


def _point_words(one: Failure) -> str:
    point: Mapping[str, Any] = one.point or {}
    return f"{one.label} on {counted(int(point.get('workers', 0)), 'worker')} ({point.get('mode')})"
