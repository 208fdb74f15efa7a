"""What a scaling study found, in sentences for terminal and report alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.results import Failure, Gain, Row
from paceline.results.study import Paying
from paceline.study.entries import ONE_WORKER
from paceline.study.scaling import SAME, WEAK, best_of, lines_of, modes_of, paying, speedup_of

TITLES = {"strong": "Strong scaling", "weak": "Weak scaling"}


def batch_words(modes: Mapping[str, Mapping[str, int]], mode: str) -> str:
    """What a mode keeps."""
    kept = modes[mode]
    if mode == WEAK:
        return f"every worker keeps its batch of {kept['worker_batch_size']}"
    return f"the global batch of {kept['batch_size']} is kept"


def headline(results: Sequence[Row]) -> str:
    """The one sentence to take away, without its full stop: who scales best, and how far."""
    parts = []
    for mode in modes_of(results):
        rows = [row for line in lines_of(results, mode).values() for row in line]
        rows = [row for row in rows if row.guarantee != "NONE"] or rows
        speedup = speedup_of(best_of(rows)) if rows else None
        if speedup is None:
            continue
        best = best_of(rows)
        where = f"{TITLES[mode].lower()}: "
        if speedup > 1:
            parts.append(
                f"{where}{best.label} scales best, {times(speedup)} times one worker on {best.workers} "
                f"(efficiency {100 * speedup / best.workers:.0f} %)"
            )
        else:
            parts.append(f"{where}no strategy is faster than one worker")
    text = "; ".join(parts)
    if not text:
        is_alone = all(row.label == ONE_WORKER for row in results)
        text = "only one worker was measured" if is_alone else "without the one worker's run there is no speed-up"
    return text[0].upper() + text[1:]


def paying_lines(results: Sequence[Row], mode: str) -> list[str]:
    """Where each strategy stops paying in one mode; limits, whose workers never agree, are left out."""
    rows = [row for row in paying(results) if row.mode == mode and row.guarantee != "NONE"]
    return [_paying(row) for row in rows if row.best_workers is not None]


def beyond_lines(results: Sequence[Row], mode: str) -> list[str]:
    """What the largest point of each strategy takes beyond perfect scaling, beside what was measured."""
    found = []
    for label, line in lines_of(results, mode).items():
        row, scaling = line[-1], line[-1].scaling
        if scaling is None:
            continue
        beyond, communication, waiting = scaling.beyond_ideal_s, scaling.communication_s, scaling.waiting_s
        if beyond is None or communication is None or waiting is None:
            continue
        rest = beyond - communication - waiting
        hidden = scaling.overlap_s
        parts = [f"communication {ms(communication)}", f"waiting {ms(waiting)}", f"the rest {ms(rest)}"]
        under = f"; {ms(hidden)} ms of communication were hidden" if hidden and ms(hidden) != ms(0) else ""
        found.append(f"{label} on {row.workers}: {ms(beyond)} ms ({', '.join(parts)}{under})")
    return found


def refused_lines(refused: Sequence[Failure]) -> list[str]:
    return [f"{_where(row)} cannot run: {row.reason}." for row in refused]


def failed_lines(failed: Sequence[Failure]) -> list[str]:
    return [f"{_where(row)} failed in repeat {row.repeat}: {row.error}." for row in failed]


def ideal_name(mode: str) -> str:
    """What a step would take if workers cost nothing."""
    return "t_1" if mode == WEAK else "t_1/N"


def times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def ms(seconds: float) -> str:
    """Two digits of few milliseconds, one of many; what rounds to nothing has no sign."""
    rounded = round(1000 * seconds, 2 if abs(seconds) < 0.01 else 1) + 0.0
    return f"{rounded:.2f}" if abs(seconds) < 0.01 else f"{rounded:.1f}"


def _where(row: Failure) -> str:
    point = row.point or {}
    return f"{row.label} on {_workers(point.get('workers'))} ({point.get('mode')})"


def _paying(row: Paying) -> str:
    until, gain = row.pays_until, row.next_gain
    if until is None:
        return _risen(row)
    if until == 1:
        return _unpaid(row)
    if until == row.workers[-1] and row.last_gain is not None:
        return f"{row.label} pays up to {until} workers, the most tried: they give {_gain(row.last_gain)}."
    assert gain is not None, "a number of workers that does not pay has a gain below the next one"
    noise = ", which is noise" if gain.verdict == SAME else ""
    return f"{row.label} stops paying after {until} workers: {gain.workers} give {_gain(gain)}{noise}."


def _unpaid(row: Paying) -> str:
    """Slower than one worker, or not to be told from it."""
    best, bounds = row.best_speedup or 0.0, row.best_speedup_interval95
    interval = f" (95 %: {times(bounds[0])} to {times(bounds[1])})" if bounds else ""
    if best > 1:
        return (
            f"{row.label} cannot be told to pay: at best it has {times(best)} times the throughput of one worker, "
            f"on {row.best_workers}, which is within noise{interval}."
        )
    return f"{row.label} does not pay: at best it has {times(best)} times the throughput of one worker{interval}."


def _risen(row: Paying) -> str:
    """Of one repeat: what it saw, and no more."""
    label, best, speedup = row.label, row.best_workers, row.best_speedup or 0.0
    if best == 1:
        return f"{label} was never faster than one worker in this one repeat (at best {times(speedup)})."
    most = "the most tried" if best == row.workers[-1] else f"of {', '.join(map(str, row.workers))}"
    return f"{label} had most throughput on {_workers(best)} ({most}) in this one repeat: {times(speedup)}x."


def _gain(gain: Gain) -> str:
    bounds = gain.interval95
    interval = f" (95 %: {times(bounds[0])} to {times(bounds[1])})" if bounds else " (one repeat)"
    return f"{times(gain.ratio)} times the throughput of {gain.over_workers}{interval}"


def _workers(number: object) -> str:
    return "1 worker" if number == 1 else f"{number} workers"
