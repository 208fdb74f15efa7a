"""Findings from comparing strategies, such as speed-up, cost of synchronising and accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.present.numbers import (
    bare_percent,
    counted,
    duration,
    duration_interval,
    join_few,
    join_words,
    percentage,
    significant,
    times,
    times_interval,
)
from paceline.present.page_parts import Finding, Kind
from paceline.present.rows import fastest_row, rivals
from paceline.results import Row, Versus

MAX_ACCURACY_GROUPS = 4  # a sentence lists at most this many accuracies
ONE_REPEAT = "one repeat cannot tell"  # the verdict of study/run_results.py without confidence intervals
ONE_REPEAT_TEXT = "One repeat cannot tell small differences from noise; --repeats 3 gives intervals."


def headline(rows: Sequence[Row]) -> Finding:
    """Return a finding that names the fastest strategy, and says so if one worker is faster.

    If all strategies tie at 95 % confidence, the finding names all. If rows were not compared, because their workloads
    differ, the finding says so.
    """
    fastest, competing = fastest_row(rows), rivals(rows)
    if fastest is None:
        return Finding(
            f"{counted(len(rows), 'result')} with different workloads: no fastest strategy.", kind="headline"
        )
    verdicts = {row.label: row.versus_fastest.verdict for row in competing if row is not fastest and row.versus_fastest}
    # The verdict can be "faster" than the fastest row: if a row is faster in its paired repeats but not in its median
    # time, or if its guarantee is neither exact nor lossy (see `fastest_of`). Such rows count as ties here.
    ties = [label for label, verdict in verdicts.items() if verdict not in ("slower", ONE_REPEAT)]
    same = join_words([fastest.label, *ties]) if ties and len(ties) == len(verdicts) else ""
    where, adjective = _where(competing), _guarantee_adjective(fastest)
    alone = faster_one_worker(rows)
    if alone is not None:
        text = _one_worker_first(alone, fastest, rows, same=same, adjective=adjective)
    elif len(competing) == 1:
        text = f"{fastest.label}: {_time(fastest, where)}"
    elif same:
        text = f"No difference in time per step at 95 % confidence {where}: {same}"
    else:
        text = f"Fastest {adjective} strategy: {fastest.label}, {_time(fastest, where)}"
    compared = [row.versus_fastest for row in (*competing, alone) if row is not None and row.versus_fastest]
    once = " (one repeat)" if any(versus.verdict == ONE_REPEAT for versus in compared) else ""
    return Finding(f"{text}{once}.", kind="headline")


def faster_one_worker(rows: Sequence[Row]) -> Row | None:
    """Return the row with one worker if it is faster than the fastest strategy, else None."""
    fastest, alone = fastest_row(rows), _one_worker(rows)
    if fastest is None or fastest.workers == 1 or alone is None or alone.versus_fastest is None:
        return None
    versus = alone.versus_fastest
    return alone if versus.ratio < 1 and versus.verdict != "no difference" else None


def _one_worker(rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if row.workers == 1), None)


def _one_worker_first(alone: Row, fastest: Row, rows: Sequence[Row], *, same: str, adjective: str) -> str:
    """Return the headline without its full stop for a comparison in which one worker is faster than every strategy.

    `same` lists the strategies if all of them tie.
    """
    name, took = fastest.label, duration(fastest.iteration_s.mean)
    longer = f"{_times_as_long(_versus(alone))}{_inverse_interval(_versus(alone))}"
    competing = rivals(rows)
    if len(competing) == 1:
        text = f"{name} takes {took}, {longer}"
    elif same:
        text = f"{same} do not differ at 95 % confidence; {name} takes {took}, {longer}"
    else:
        text = f"{name} is the fastest {adjective} strategy ({took}), {longer}"
    is_fastest = all(row.iteration_s.mean >= alone.iteration_s.mean for row in rows)
    first = f"One worker is {'fastest' if is_fastest else 'faster'} ({duration(alone.iteration_s.mean)} per step)."
    return f"{first} With {_where(competing).removeprefix('on ')}, {text}"


def _guarantee_adjective(fastest: Row) -> str:
    """Return the word before "strategy" in the headline "Fastest ... strategy".

    The word is the guarantee of the fastest strategy, such as "exact". The exception is a lossy strategy: the word is
    then "synchronous", which covers exact and lossy, because the strategy is the fastest of both kinds.
    """
    return {"EXACT": "exact", "LOSSY": "synchronous"}.get(fastest.guarantee, fastest.guarantee.lower())


def speed(rows: Sequence[Row]) -> list[Finding]:
    """Return findings that compare the fastest competing strategy with each of the others, by time per step."""
    fastest = fastest_row(rows)
    if fastest is None:
        return []
    others = sorted(
        (row for row in rivals(rows) if row is not fastest and row.versus_fastest), key=lambda row: _versus(row).ratio
    )
    name = fastest.label
    found = []
    if slower := [row for row in others if _versus(row).verdict == "slower"]:
        first, *rest = slower
        parts = [f"{_less(first)} less time per step than {first.label}{_less_bounds(first, '95 % interval ')}"]
        parts += [f"{_less(row)} less than {row.label}{_less_bounds(row)}" for row in rest]
        found.append(Finding(f"{name} takes {join_few(parts)}.", "Speed", "detail"))
    if ties := [row for row in others if _versus(row).verdict in ("no difference", "faster")]:
        parts = [f"{row.label} ({times(_versus(row).ratio)} times as long{_bounds(row)})" for row in ties]
        kind: Kind = "detail" if len(ties) == len(others) else "finding"  # if all tie, the headline says so already
        found.append(Finding(f"Not distinguishable from {name} at 95 % confidence: {join_few(parts)}.", "Speed", kind))
    if unknown := [row for row in others if _versus(row).verdict == ONE_REPEAT]:
        parts = [f"{row.label} takes {times(_versus(row).ratio)} times as long" for row in unknown]
        found.append(Finding(f"Compared with {name} in this one repeat: {join_few(parts)}.", "Speed", "detail"))
    return found


def one_repeat(rows: Sequence[Row], repeats: int | None) -> list[Finding]:
    """Return a caution if several strategies compete and there is only one repeat.

    With one repeat, a difference between strategies cannot be distinguished from noise.
    """
    if repeats != 1 or len(rivals(rows)) < 2 or len(rows) < 2:
        return []
    return [Finding(ONE_REPEAT_TEXT, "Speed", "caution")]


def against_one_worker(rows: Sequence[Row]) -> list[Finding]:
    """Return a finding with the speed-up of the fastest strategy over one-worker training at the same global batch.

    If one-worker training is faster, the finding is of kind "problem". If no row has one worker, the finding says so.
    There is no finding if no row has several workers, if the fastest row has one worker, or if rows were not compared.
    """
    title = "Against one worker"
    fastest, alone = fastest_row(rows), _one_worker(rows)
    if fastest is None or not any(row.workers > 1 for row in rows):
        return []
    if alone is None:
        return [Finding("No speed-up can be given: one worker was not measured.", title, "detail")]
    if fastest.workers == 1 or alone.versus_fastest is None:
        return []
    versus, name, where = alone.versus_fastest, fastest.label, _where([fastest])
    if versus.verdict == "no difference":
        text = f"Not distinguishable from one worker at 95 % confidence: {name} {where}."
        return [Finding(text, title)]
    once = " in this one repeat" if versus.verdict == ONE_REPEAT else ""
    if faster_one_worker(rows):
        text = (
            f"One worker is faster: a step of {name} {where} takes {_times_as_long(versus)} as with one worker and the "
            f"same global batch{once}{_inverse_interval(versus)}."
        )
        return [Finding(text, title, "problem")]
    text = (
        f"Speed-up over one worker with the same global batch: {name} {times(versus.ratio)} times {where}{once}"
        f"{_in_brackets(versus)}, an efficiency of {bare_percent(versus.ratio / fastest.workers)} %."
    )
    behind = [row for row in rivals(rows) if row.workers > 1 and row.speedup is not None and row.speedup < 1]
    if behind:
        parts = [f"{row.label} (speed-up {times(row.speedup)})" for row in behind]
        text += f" Slower than one worker: {join_words(parts)}."
    return [Finding(text, title, "detail")]


def synchronisation_cost(rows: Sequence[Row]) -> list[Finding]:
    """Return findings on how much longer steps take than with workers that never synchronise.

    Return an empty list if workers that never synchronise were not measured.
    """
    title = "Cost of synchronising"
    pairs = [(row, row.versus_none) for row in rows if row.versus_none is not None and row.guarantee != "NONE"]
    if not pairs:
        return []
    ordered = sorted(pairs, key=lambda pair: pair[1].ratio)
    parts = [f"{row.label} {times(versus.ratio)}x{_brackets(versus)}" for row, versus in ordered]
    limit = ordered[0][1]
    slowest = "" if limit.limit_s is None else f", slowest worker {duration(limit.limit_s)}"
    text = f"Time per step relative to workers that never synchronise ({limit.label}{slowest}): {', '.join(parts)}."
    found = [Finding(text, title)]
    fastest = fastest_row(rows)
    if fastest is None or fastest.versus_none is None or fastest.guarantee == "NONE":
        return found
    versus = fastest.versus_none
    if versus.interval95 and versus.interval95[0] <= 1:
        text = f"Synchronising has no measurable cost for {fastest.label}: not distinguishable from {versus.label}."
        found.append(Finding(text, title, "detail"))
    elif versus.ratio > 1 and versus.limit_s is not None:
        more_s, part = versus.limit_s * (versus.ratio - 1), bare_percent(1 - 1 / versus.ratio)
        once = "" if versus.interval95 else " (one repeat)"
        text = f"Synchronising costs {fastest.label} {duration(more_s)} per step, {part} % of its time{once}."
        found.append(Finding(text, title, "detail"))
    return found


def learning(rows: Sequence[Row]) -> list[Finding]:
    """Return a finding with the final test accuracies, and a problem if the final loss of a strategy is not finite."""
    title = "Learning"
    lost = [row.label for row in rows if row.final.train_loss is None]
    found = []
    if lost:
        text = f"Training diverged: the loss of {join_words(lost)} is not a finite number at the end."
        found.append(Finding(text, title, "problem"))
    groups: dict[str, list[str]] = {}
    scored = [(row, row.final.test_accuracy) for row in rows if row.final.test_accuracy is not None]
    for row, accuracy in sorted(scored, key=lambda pair: -pair[1]):
        groups.setdefault(percentage(accuracy), []).append(row.label)
    if len(groups) == 1:
        ((figure, labels),) = groups.items()
        whose = f" for {join_words(labels)}" if len(scored) < len(rows) else " for all" if len(scored) > 1 else ""
        found.append(Finding(f"Test accuracy at the end: {figure}{whose}.", title, "detail"))
    elif groups:
        parts = [f"{figure} ({join_words(labels)})" for figure, labels in groups.items()]
        is_long = len(parts) > MAX_ACCURACY_GROUPS
        text = f"from {parts[-1]} to {parts[0]}" if is_long else join_words(parts)
        found.append(Finding(f"Test accuracy at the end: {text}.", title, "detail"))
    return found


def replicas(rows: Sequence[Row]) -> list[Finding]:
    """Return findings that say whether the workers of each strategy ended with equal parameters.

    For unequal parameters under an exact strategy, the finding is of kind "problem".
    """
    title = "Replicas"
    several = [row for row in rows if row.workers > 1]
    apart = [row for row in several if not row.replicas_equal]
    found = [
        Finding(
            f"{row.label} is exact, but its replicas differ at the end (drift {significant(row.replica_drift)}): do "
            "not trust its figures.",
            title,
            "problem",
        )
        for row in apart
        if row.guarantee == "EXACT"
    ]
    sentences = []
    if same := [row.label for row in several if row.replicas_equal and not row.replica_drift]:
        which = "every worker" if len(same) == len(several) else f"every worker of {join_few(same)}"
        sentences.append(f"Replicas are equal: {which} ended with the same parameters, bit for bit.")
    if joined := [row for row in several if row.replicas_equal and row.replica_drift]:
        parts = [f"{row.label} (drift {significant(row.replica_drift)})" for row in joined]
        sentences.append(f"Replicas differed during training and were averaged at the end: {join_words(parts)}.")
    if allowed := [row for row in apart if row.guarantee != "EXACT"]:
        parts = [
            f"{row.label} (drift {significant(row.replica_drift)}, guarantee {row.guarantee.lower()})"
            for row in allowed
        ]
        sentences.append(f"Replicas differ at the end, as the guarantee allows: {join_words(parts)}.")
    return [*found, *([Finding(" ".join(sentences), title, "detail")] if sentences else [])]


def _where(rows: Sequence[Row]) -> str:
    counts = sorted({row.workers for row in rows})
    return f"on {join_words([str(count) for count in counts], 'or')} worker{'' if counts == [1] else 's'}"


def _time(row: Row, where: str) -> str:
    bounds = row.iteration_mean_s_interval95
    text = f"{duration(row.iteration_s.mean)} per step {where}"
    return f"{text} (95 % interval {duration_interval(bounds)})" if bounds else text


def _versus(row: Row) -> Versus:
    assert row.versus_fastest is not None
    return row.versus_fastest


def _less(row: Row) -> str:
    return f"{bare_percent(1 - 1 / _versus(row).ratio)} %"


def _less_bounds(row: Row, what: str = "") -> str:
    bounds = _versus(row).interval95
    return f" ({what}{bare_percent(1 - 1 / bounds[0])} to {bare_percent(1 - 1 / bounds[1])} %)" if bounds else ""


def _bounds(row: Row) -> str:
    bounds = _versus(row).interval95
    return f", {times_interval(bounds)}" if bounds else ""


def _times_as_long(versus: Versus) -> str:
    """Say how many times as long the fastest strategy takes, given the verdict of one worker, which is faster."""
    return f"{times(1 / versus.ratio)} times as long"


def _inverse_interval(versus: Versus) -> str:
    bounds = versus.interval95
    return f" (95 % interval {times(1 / bounds[1])} to {times(1 / bounds[0])})" if bounds else ""


def _in_brackets(versus: Versus) -> str:
    return f" (95 % interval {times_interval(versus.interval95)})" if versus.interval95 else ""


def _brackets(versus: Versus) -> str:
    return f" ({times_interval(versus.interval95)})" if versus.interval95 else ""
