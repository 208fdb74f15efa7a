"""Invented lines of worker files, for steps whose split is known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Line = dict[str, Any]


def step_line(step: int, begin: float, end: float) -> Line:
    return {"kind": "step", "step": step, "begin_s": begin, "iteration_s": end - begin, "data_s": 0.0, "loss": 1.0}


def span(step: int, phase: str, begin: float, end: float) -> Line:
    return {"kind": "span", "step": step, "phase": phase, "begin_s": begin, "end_s": end}


def op(step: int, number: int, begin: float, end: float, **changes: Any) -> Line:
    line = {"kind": "op", "step": step, "number": number, "op": "all_reduce", "bytes": 1000, "peer": None, "tag": 0}
    return {**line, "begin_s": begin, "end_s": end, "medium": "network", **changes}


def blocked(step: int, number: int, begin: float, end: float, **changes: Any) -> Line:
    line = {"kind": "blocked", "step": step, "op": "all_reduce", "number": number, "peer": None, "tag": 0}
    return {**line, "begin_s": begin, "end_s": end, **changes}


def both(step: int, number: int, begin: float, end: float, **changes: Any) -> list[Line]:
    """An operation that blocks the worker's main thread for its whole duration."""
    return [op(step, number, begin, end, **changes), blocked(step, number, begin, end, **changes)]


def even_steps(count: int, own: dict[str, float], *, step_s: float = 10.0) -> Iterable[Line]:
    """Steps of successive phases; a blocking collective fills the rest of each step."""
    for step in range(count):
        begin = now = step * step_s
        for phase, seconds in own.items():
            yield span(step, phase, now, now + seconds)
            now += seconds
        yield from both(step, step, now, begin + step_s)
        yield step_line(step, begin, begin + step_s)
