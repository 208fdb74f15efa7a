"""Findings from records of workers: parts of a step, stragglers, target accuracy, network, overhead."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from paceline.measure.stragglers import LEAST_EXCESS, LEAST_STEPS
from paceline.present.numbers import (
    amount,
    bare_percent,
    counted,
    duration,
    join_few,
    join_words,
    milliseconds,
    percentage,
    share,
    signed_percent,
    significant,
)
from paceline.present.page_parts import Finding
from paceline.present.rows import fastest_row, rivals
from paceline.recipe import Recipe
from paceline.results import Overhead, Row, RunResult, Straggler, Target

LEAST_HIDDEN = 0.05  # share of the communication; strategies that hide less are listed together
PRECISE_PERCENT = 5.0  # width of an interval of the profiling overhead; wider intervals are noise
LEAST_PART = 0.005  # share of a step; smaller parts are not reported

_PARTS = {
    "compute_s": "computing",
    "overlap_s": "computing and communicating at once",
    "communication_s": "communication that is not hidden",
    "waiting_s": "waiting for others",
    "data_s": "loading data",
    "rest_s": "other",
}


def time_of_a_step(rows: Sequence[Row]) -> list[Finding]:
    """Return findings on the parts of a step of the fastest strategy, and on hidden communication.

    The second finding lists for all strategies the share of communication that is hidden under computing. A finding is
    left out if its times were not recorded.
    """
    title, found = "Time of a step", []
    fastest = fastest_row(rows)
    if fastest is not None and fastest.split is not None:
        mean = fastest.split.mean
        shares = {words: getattr(mean, key) / (mean.step_s or 1.0) for key, words in _PARTS.items()}
        parts = [f"{bare_percent(part)} % {words}" for words, part in shares.items() if part >= LEAST_PART]
        if parts:
            found.append(
                Finding(f"A step of {fastest.label} ({duration(mean.step_s)}): {join_words(parts)}.", title, "detail")
            )
    hidden = [
        (row, row.split.mean.overlap_fraction)
        for row in rows
        if row.split is not None and row.split.mean.overlap_fraction is not None
    ]
    if hidden:
        hidden.sort(key=lambda pair: -pair[1])
        parts = [f"{row.label} {share(part)}" for row, part in hidden if part >= LEAST_HIDDEN]
        little = [row.label for row, part in hidden if part < LEAST_HIDDEN]
        parts += [f"{join_few(little)} under {share(LEAST_HIDDEN)}"] if little else []
        found.append(Finding(f"Communication hidden under computing: {join_words(parts)}.", title, "detail"))
    return found


def stragglers(rows: Sequence[Row], recipe: Recipe | None = None) -> list[Finding]:
    """Return a problem for each straggler, or a finding that there is none.

    A straggler is a worker that takes longer than the other workers for a phase of a step, or for all phases together.
    Time that a worker waits for others is not counted. If rows have too few steps for detection, the final finding
    says so.
    """
    title = "Stragglers"
    several = [row for row in rows if row.workers > 1]
    checked = [row for row in several if row.stragglers is not None]
    found = []
    slow = _straggler_keys(checked)
    for rank, phase in slow:
        named = [
            (row, one) for row in checked for one in row.stragglers or [] if (one.rank, one.phase) == (rank, phase)
        ]
        labels = [row.label for row, _ in named]
        others = [row.label for row in checked if row.label not in labels]
        where = f" under {join_few(labels)}" if len(several) > 1 else ""
        where += f", not under {join_few(others)}" if others else ""
        found.append(Finding(f"Straggler: {straggler_words([one for _, one in named])}{where}.", title, "problem"))
    if slow:
        found.append(Finding("Time that a worker waits for others is not counted.", title, "detail"))
    elif checked:
        text = f"No straggler: no worker needs over {share(LEAST_EXCESS)} longer than the others, waiting not counted."
        found.append(Finding(text, title, "detail"))
    short = [row for row in several if row.split is not None and row.stragglers is None]
    if short:
        has = "this run has" if len(rows) == 1 else "these runs have"
        if checked:
            has = f"{join_few([row.label for row in short])} {'has' if len(short) == 1 else 'have'}"
        steps = max(row.timed_steps for row in short)
        text = f"Straggler detection needs {LEAST_STEPS} timed steps; {has} {steps}{_remedy(short[0], recipe)}."
        found.append(Finding(text, title))
    return found


def straggler_words(named: Sequence[Straggler]) -> str:
    """Describe how much more time a straggler needs than the other workers, in one phase or in all phases.

    `named` has a measurement for each strategy under which this straggler was found.
    """
    excess = _value_range([one.excess_percent / 100 for one in named], bare_percent)
    added = _value_range([one.excess_s for one in named], milliseconds)
    bounds = [bound / 100 for one in named for bound in one.interval95_percent]
    phase = "all phases" if named[0].phase == "all" else named[0].phase
    return (
        f"worker {named[0].rank} needs {added} ms per step longer than the others in {phase}, {excess} % of their "
        f"working time (95 % interval {bare_percent(min(bounds))} to {bare_percent(max(bounds))} %)"
    )


def _straggler_keys(rows: Sequence[Row]) -> list[tuple[int, str]]:
    """Return the rank and phase of each straggler. Stragglers that were found in the most rows come first."""
    counts: dict[tuple[int, str], int] = {}
    for row in rows:
        for one in row.stragglers or []:
            counts[one.rank, one.phase] = counts.get((one.rank, one.phase), 0) + 1
    return sorted(counts, key=lambda key: (-counts[key], key))


def _remedy(row: RunResult, recipe: Recipe | None) -> str:
    """Return a hint with an option that makes the run long enough to detect stragglers, or an empty text."""
    if recipe is None or not row.steps or row.target is not None:  # a target ends the run early
        return ""
    train, needed = recipe.train, LEAST_STEPS + recipe.train.warmup_iterations
    if train.timed_iterations is not None and train.timed_iterations < needed <= row.steps:
        return f" (use --timed-iterations {needed})"
    if train.iterations is not None and train.iterations <= row.steps:
        return f" (use --iterations {needed})"
    return f" (use --epochs {math.ceil((train.epochs or 1) * needed / row.steps)})"


def target(rows: Sequence[Row]) -> list[Finding]:
    """Return a finding on the strategies that reached the target accuracy, and one on those that did not.

    The finding has the steps, seconds and bytes of the first strategy to reach the target, and the seconds of the
    others. Baselines, such as training on one worker, are listed last.
    """
    title = "Target accuracy"
    asked = [(row, row.target) for row in rows if row.target is not None]
    if not asked:
        return []
    goal = percentage(asked[0][1].accuracy)
    competing = [id(row) for row in rivals(rows)]
    reached = sorted(
        (pair for pair in asked if pair[1].reached),
        key=lambda pair: (id(pair[0]) not in competing, pair[1].train_s or 0),
    )
    found = []
    if reached:
        (first, how), *later = reached
        text = f"Target accuracy of {goal} reached {_after(how)}."
        if len(rows) > 1:
            text = f"First to reach the target accuracy of {goal}: {first.label}, {_after(how)}."
        if later:
            also = [f"{row.label} ({duration(one.train_s or 0)})" for row, one in later]
            text += f" Also reached by {join_few(also)}."
        found.append(Finding(text, title))
    if never := [pair for pair in asked if not pair[1].reached]:
        parts = [f"{row.label} ({_missed(row, one)})" for row, one in never]
        text = f"Target accuracy of {goal} not reached: {join_few(parts)}."
        if len(rows) == 1:
            text = f"Target accuracy of {goal} not reached: {_missed(*never[0])}."
        found.append(Finding(text, title, "problem"))
    return found


def _after(how: Target) -> str:
    sent = "" if how.sent_bytes is None else f", {amount(how.sent_bytes)} sent by all workers"
    epoch = "" if how.epoch is None else f" (epoch {how.epoch:g})"
    return f"after {counted(how.step or 0, 'step')}{epoch}, {duration(how.train_s or 0)} of training{sent}"


def _missed(row: Row, one: Target) -> str:
    some = ""
    if one.repeats is not None and one.repeats_reached is not None and 0 < one.repeats_reached < one.repeats:
        some = f"in {one.repeats - one.repeats_reached} of {one.repeats} repeats, "
    best = "nothing was evaluated" if one.best is None else f"best {percentage(one.best)}"
    final = row.final.test_accuracy
    after = ""
    if final is not None and final >= one.accuracy:
        after = f", {percentage(final)} once replicas were averaged at the end"
    return f"{some}{best}{after}"


def traffic(rows: Sequence[Row]) -> list[Finding]:
    """Return a finding on the worker whose sent bytes, as counted by the kernel, differ most from the prediction."""
    ratios = [
        (one.kernel_sent_bytes / one.predicted_sent_bytes - 1, row.label, one.rank)
        for row in rows
        for one in (row.network.per_worker if row.network is not None else [])
        if one.kernel_sent_bytes is not None and one.predicted_sent_bytes
    ]
    if not ratios:
        return []
    gap, label, rank = max(ratios, key=lambda ratio: abs(ratio[0]))
    side = "above" if gap >= 0 else "below"
    text = (
        f"Bytes sent: the kernel's count, with protocol headers, is at most {significant(abs(gap) * 100)} % {side} the "
        f"prediction (worker {rank} of {label})."
    )
    return [Finding(text, "Network", "detail")]


def overhead(rows: Sequence[Row]) -> list[Finding]:
    """Return a finding with the profiling overhead, in percent of a step, for each row in which it was measured."""
    measured = [(row.label, row.measuring) for row in rows if row.measuring is not None]
    reason = " (the strategy with most to record)" if len(measured) == 1 and len(rows) > 1 else ""
    return [
        Finding(f"Recording spans makes a step of {label}{reason} {_longer(one)}.", "Profiling overhead")
        for label, one in measured
    ]


def _longer(one: Overhead) -> str:
    """Say how much longer profiling makes a step, or why that could not be measured: as in "1.6 % longer"."""
    bounds = one.interval95_percent
    words = f"{abs(one.cost_percent):.1f} % {'shorter' if one.cost_percent < 0 else 'longer'}"
    if bounds is None:
        return f"{words} (too few steps for an interval)"
    if bounds[0] <= 0 <= bounds[1]:
        how = "small" if bounds[1] - bounds[0] <= PRECISE_PERCENT else "noisy"
        words = f"longer by an amount too {how} to measure here"
    return f"{words} (95 % interval {signed_percent(bounds[0])} to {signed_percent(bounds[1])} %)"


def _value_range(values: Sequence[float], text: Callable[[float], str]) -> str:
    """Return the smallest and the largest value as "LOW to HIGH", or one text if both are formatted equally."""
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"
