"""Trace event format of chrome://tracing and ui.perfetto.dev: JSON objects with times in microseconds.

Slices of one track must be nested or disjoint, and an arrow binds to the slice that is open at its end. This module
ensures both.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from paceline.results.value import Json

Event = Json


@dataclass(frozen=True)
class Track:
    """A row in the viewer: a thread of a process."""

    pid: int
    tid: int


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A named interval on a track, in whole nanoseconds, so that rounding keeps slices nested."""

    name: str
    category: str
    begin_ns: int
    end_ns: int
    args: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(name: str, category: str, begin_s: float, end_s: float, args: Mapping[str, Any]) -> Slice:
        """Return a slice of at least a nanosecond: viewers attach no arrows to empty slices."""
        begin_ns = nanoseconds(begin_s)
        end_ns = max(nanoseconds(end_s), begin_ns + 1)
        return Slice(name=name, category=category, begin_ns=begin_ns, end_ns=end_ns, args=args)

    def event(self, track: Track) -> Event:
        return {
            "ph": "X",
            "name": self.name,
            "cat": self.category,
            "pid": track.pid,
            "tid": track.tid,
            "ts": micro(self.begin_ns),
            "dur": micro(self.end_ns - self.begin_ns),
            "args": dict(self.args),
        }


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def micro(time_ns: int) -> float:
    return time_ns / 1000


def nested(slices: Iterable[Slice]) -> list[Slice]:
    """Sort slices by time and cut each at the end of the slice that it begins in."""
    found: list[Slice] = []
    around: list[Slice] = []
    for piece in sorted(slices, key=lambda piece: (piece.begin_ns, -piece.end_ns)):
        while around and around[-1].end_ns <= piece.begin_ns:
            around.pop()
        if around and piece.end_ns > around[-1].end_ns:
            piece = replace(piece, end_ns=around[-1].end_ns)
        around.append(piece)
        found.append(piece)
    return found


def lanes(slices: Sequence[Slice]) -> list[int]:
    """Return a lane for each slice, so that slices of a lane do not overlap; uses the fewest lanes."""
    free_from: list[int] = []
    chosen = [0] * len(slices)
    for index in sorted(range(len(slices)), key=lambda index: slices[index].begin_ns):
        piece = slices[index]
        lane = next((lane for lane, end_ns in enumerate(free_from) if end_ns <= piece.begin_ns), len(free_from))
        free_from[lane : lane + 1] = [piece.end_ns]
        chosen[index] = lane
    return chosen


class Arrows:
    """Arrows between slices of different tracks, with unique numbers."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def next_number(self) -> int:
        return next(self._numbers)

    def between(
        self, name: str, source: tuple[Track, Slice], target: tuple[Track, Slice], *, leaves_ns: int, arrives_ns: int
    ) -> list[Event]:
        """Return an arrow from a time in one slice to a time in another; nothing if it would point back in time."""
        (source_track, source_slice), (target_track, target_slice) = source, target
        leaves_ns, arrives_ns = _within(leaves_ns, source_slice), _within(arrives_ns, target_slice)
        if arrives_ns < leaves_ns:
            return []
        common = {"name": name, "cat": "arrow", "id": self.next_number()}
        return [
            {"ph": "s", **common, "pid": source_track.pid, "tid": source_track.tid, "ts": micro(leaves_ns)},
            {
                "ph": "f",
                "bp": "e",
                **common,
                "pid": target_track.pid,
                "tid": target_track.tid,
                "ts": micro(arrives_ns),
            },
        ]


def _within(moment_ns: int, piece: Slice) -> int:
    """Clamp a time into a slice, before its end: at its end a slice is already closed."""
    return min(max(moment_ns, piece.begin_ns), piece.end_ns - 1)


def counter(pid: int, name: str, time_s: float, value: float) -> Event:
    return {
        "ph": "C",
        "name": name,
        "cat": "resources",
        "pid": pid,
        "tid": pid,
        "ts": micro(nanoseconds(time_s)),
        "args": {"value": value},
    }


def process_names(pid: int, name: str, order: int) -> list[Event]:
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": pid, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": pid, "args": {"sort_index": order}},
    ]


def thread_names(track: Track, name: str, order: int) -> list[Event]:
    place = {"pid": track.pid, "tid": track.tid}
    return [
        {"ph": "M", "name": "thread_name", **place, "args": {"name": name}},
        {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": order}},
    ]


def write_events(path: Path, events: Sequence[Event], facts: Mapping[str, Any]) -> None:
    """Write a trace as one JSON object with an event per line, compressed if the name ends in .gz. Atomic."""
    beside = path.with_name(path.name + ".part")
    try:
        with beside.open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
                    packed.writelines(_pieces(events, facts))
            else:
                file.writelines(_pieces(events, facts))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _pieces(events: Sequence[Event], facts: Mapping[str, Any]) -> Iterator[bytes]:
    yield b'{"displayTimeUnit":"ms","otherData":' + _json(facts) + b',"traceEvents":[\n'
    for index, event in enumerate(events):
        yield (b",\n" if index else b"") + _json(event)
    yield b"\n]}\n"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
