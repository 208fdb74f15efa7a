"""What a scaling study found, in sentences for terminal and report alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.study.entries import ONE_WORKER
from paceline.study.scaling import SAME, WEAK, best_of, lines_of, modes_of, paying

Row = Mapping[str, Any]
TITLES = {"strong": "Strong scaling", "weak": "Weak scaling"}


def batch_words(study: Mapping[str, Any], mode: str) -> str:
    """What a mode keeps."""
    kept = study["modes"][mode]
    if mode == WEAK:
        return f"every worker keeps its batch of {kept['worker_batch_size']}"
    return f"the global batch of {kept['batch_size']} is kept"


def headline(results: Sequence[dict[str, Any]]) -> str:
    """The one sentence to take away, without its full stop: who scales best, and how far."""
    parts = []
    for mode in modes_of(results):
        rows = [row for line in lines_of(results, mode).values() for row in line]
        rows = [row for row in rows if row["guarantee"] != "NONE"] or rows
        if not rows or rows[0]["scaling"]["speedup"] is None:
            continue
        best = best_of(rows)
        speedup, efficiency = best["scaling"]["speedup"], best["scaling"]["efficiency"]
        where = f"{TITLES[mode].lower()}: "
        if speedup > 1:
            parts.append(
                f"{where}{best['label']} scales best, {times(speedup)} times one worker on {best['workers']} "
                f"(efficiency {100 * efficiency:.0f} %)"
            )
        else:
            parts.append(f"{where}no strategy is faster than one worker")
    text = "; ".join(parts)
    if not text:
        is_alone = all(row["label"] == ONE_WORKER for row in results)
        text = "only one worker was measured" if is_alone else "without the one worker's run there is no speed-up"
    return text[0].upper() + text[1:]


def paying_lines(results: Sequence[dict[str, Any]], mode: str) -> list[str]:
    """Where each strategy stops paying in one mode; limits, whose workers never agree, are left out."""
    rows = [row for row in paying(results) if row["mode"] == mode and row["guarantee"] != "NONE"]
    return [_paying(row) for row in rows if row["best_workers"] is not None]


def beyond_lines(results: Sequence[dict[str, Any]], mode: str) -> list[str]:
    """What the largest point of each strategy takes beyond perfect scaling, beside what was measured."""
    found = []
    for label, line in lines_of(results, mode).items():
        row, scaling = line[-1], line[-1]["scaling"]
        beyond, communication, waiting = (scaling[key] for key in ("beyond_ideal_s", "communication_s", "waiting_s"))
        if None in (beyond, communication, waiting):
            continue
        rest = beyond - communication - waiting
        hidden = scaling["overlap_s"]
        parts = [f"communication {ms(communication)}", f"waiting {ms(waiting)}", f"the rest {ms(rest)}"]
        under = f"; {ms(hidden)} ms of communication were hidden" if hidden and ms(hidden) != ms(0) else ""
        found.append(f"{label} on {row['workers']}: {ms(beyond)} ms ({', '.join(parts)}{under})")
    return found


def refused_lines(study: Mapping[str, Any]) -> list[str]:
    return [f"{_where(row)} cannot run: {row['reason']}." for row in study.get("refused", ())]


def failed_lines(study: Mapping[str, Any]) -> list[str]:
    return [f"{_where(row)} failed in repeat {row['repeat']}: {row['error']}." for row in study.get("failed", ())]


def ideal_name(mode: str) -> str:
    """What a step would take if workers cost nothing."""
    return "t_1" if mode == WEAK else "t_1/N"


def times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def ms(seconds: float) -> str:
    """Two digits of few milliseconds, one of many; what rounds to nothing has no sign."""
    rounded = round(1000 * seconds, 2 if abs(seconds) < 0.01 else 1) + 0.0
    return f"{rounded:.2f}" if abs(seconds) < 0.01 else f"{rounded:.1f}"


def _where(row: Row) -> str:
    point = row["point"]
    return f"{row['label']} on {_workers(point['workers'])} ({point['mode']})"


def _paying(row: Row) -> str:
    label, numbers, until = row["label"], row["workers"], row["pays_until"]
    if until is None:
        return _risen(row)
    if until == 1:
        return _unpaid(row)
    if until == numbers[-1]:
        return f"{label} pays up to {until} workers, the most tried: they give {_gain(row['last_gain'])}."
    gain = row["next_gain"]
    noise = ", which is noise" if gain["verdict"] == SAME else ""
    return f"{label} stops paying after {until} workers: {gain['workers']} give {_gain(gain)}{noise}."


def _unpaid(row: Row) -> str:
    """Slower than one worker, or not to be told from it."""
    best, bounds = row["best_speedup"], row["best_speedup_interval95"]
    interval = f" (95 %: {times(bounds[0])} to {times(bounds[1])})" if bounds else ""
    if best > 1:
        return (
            f"{row['label']} cannot be told to pay: at best it has {times(best)} times the throughput of one worker, "
            f"on {row['best_workers']}, which is within noise{interval}."
        )
    return f"{row['label']} does not pay: at best it has {times(best)} times the throughput of one worker{interval}."


def _risen(row: Row) -> str:
    """Of one repeat: what it saw, and no more."""
    label, best = row["label"], row["best_workers"]
    if best == 1:
        return f"{label} was never faster than one worker in this one repeat (at best {times(row['best_speedup'])})."
    most = "the most tried" if best == row["workers"][-1] else f"of {', '.join(map(str, row['workers']))}"
    return (
        f"{label} had most throughput on {_workers(best)} ({most}) in this one repeat: {times(row['best_speedup'])}x."
    )


def _gain(gain: Row) -> str:
    bounds = gain["interval95"]
    interval = f" (95 %: {times(bounds[0])} to {times(bounds[1])})" if bounds else " (one repeat)"
    return f"{times(gain['ratio'])} times the throughput of {gain['over_workers']}{interval}"


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"
