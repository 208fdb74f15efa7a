"""Write traces in the JSON event format of chrome://tracing and ui.perfetto.dev.

Times are in microseconds. Slices of one track must be nested or disjoint, which `nested` and `lanes` ensure. An arrow
must start and end within a slice, which `Arrows.between_slices` ensures.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from paceline.durable_files import durable_file
from paceline.results.value import Json

Event = Json


@dataclass(frozen=True)
class Track:
    """A row in the viewer: a thread of a process."""

    pid: int
    tid: int

    @property
    def place(self) -> dict[str, int]:
        """The fields with which an event identifies its track."""
        return {"pid": self.pid, "tid": self.tid}


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A named interval on a track.

    Times are whole nanoseconds, so that nested slices stay nested when written.
    """

    name: str
    category: str
    begin_ns: int
    end_ns: int
    args: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(name: str, category: str, begin_s: float, end_s: float, args: Mapping[str, Any]) -> Slice:
        """Return a slice of at least 1 ns, because viewers attach no arrows to empty slices."""
        begin_ns = nanoseconds(begin_s)
        end_ns = max(nanoseconds(end_s), begin_ns + 1)
        return Slice(name=name, category=category, begin_ns=begin_ns, end_ns=end_ns, args=args)

    def event(self, track: Track) -> Event:
        return {
            "ph": "X",
            "name": self.name,
            "cat": self.category,
            **track.place,
            "ts": micro(self.begin_ns),
            "dur": micro(self.end_ns - self.begin_ns),
            "args": dict(self.args),
        }


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def micro(time_ns: int) -> float:
    return time_ns / 1000


def nested(slices: Iterable[Slice]) -> list[Slice]:
    """Return the slices sorted by begin, shortened where necessary so that all slices are nested or disjoint.

    A slice that extends beyond the end of the slice in which it begins is shortened to that end.
    """
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
    """Return a lane number for each slice. Slices of a lane do not overlap, and there are as few lanes as possible."""
    free_from: list[int] = []
    chosen = [0] * len(slices)
    for index in sorted(range(len(slices)), key=lambda index: slices[index].begin_ns):
        piece = slices[index]
        lane = next((lane for lane, end_ns in enumerate(free_from) if end_ns <= piece.begin_ns), len(free_from))
        free_from[lane : lane + 1] = [piece.end_ns]
        chosen[index] = lane
    return chosen


class Arrows:
    """Creates arrows from one track to another, and gives every arrow a unique number."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def between_slices(
        self, name: str, source: tuple[Track, Slice], target: tuple[Track, Slice], *, leaves_ns: int, arrives_ns: int
    ) -> list[Event]:
        """Return the two events of an arrow from one slice to another.

        A start or end time outside its slice is moved into the slice. Return an empty list if the arrow would then
        point back in time.
        """
        (source_track, source_slice), (target_track, target_slice) = source, target
        leaves_ns, arrives_ns = _clamp(leaves_ns, source_slice), _clamp(arrives_ns, target_slice)
        return self.between_tracks(name, source_track, target_track, leaves_ns=leaves_ns, arrives_ns=arrives_ns)

    def between_tracks(
        self, name: str, source: Track, target: Track, *, leaves_ns: int, arrives_ns: int
    ) -> list[Event]:
        """Return the two events of an arrow from one track to another.

        The viewer attaches the arrow to the slices that are open on the tracks at its start and end. Return an empty
        list if the arrow would point back in time.
        """
        if arrives_ns < leaves_ns:
            return []
        common = {"name": name, "cat": "arrow", "id": next(self._numbers)}
        return [
            {"ph": "s", **common, **source.place, "ts": micro(leaves_ns)},
            {"ph": "f", "bp": "e", **common, **target.place, "ts": micro(arrives_ns)},
        ]


def _clamp(moment_ns: int, piece: Slice) -> int:
    """Return `moment_ns` moved into the slice, at the latest 1 ns before its end."""
    return min(max(moment_ns, piece.begin_ns), piece.end_ns - 1)


def counter(pid: int, name: str, time_s: float, value: float) -> Event:
    event = {"ph": "C", "name": name, "cat": "resources", "pid": pid, "tid": pid}
    return {**event, "ts": micro(nanoseconds(time_s)), "args": {"value": value}}


def process_names(pid: int, name: str, order: int) -> list[Event]:
    return _names("process", Track(pid, pid), name, order)


def thread_names(track: Track, name: str, order: int) -> list[Event]:
    return _names("thread", track, name, order)


def _names(kind: str, track: Track, name: str, order: int) -> list[Event]:
    return [
        {"ph": "M", "name": f"{kind}_name", **track.place, "args": {"name": name}},
        {"ph": "M", "name": f"{kind}_sort_index", **track.place, "args": {"sort_index": order}},
    ]


def write_events(path: Path, events: Sequence[Event], facts: Mapping[str, Any]) -> None:
    """Write a trace as one JSON object with an event per line, compressed if the name ends in .gz."""
    with durable_file(path) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
                packed.writelines(_pieces(events, facts))
        else:
            file.writelines(_pieces(events, facts))


def _pieces(events: Sequence[Event], facts: Mapping[str, Any]) -> Iterator[bytes]:
    yield b'{"displayTimeUnit":"ms","otherData":' + _json(facts) + b',"traceEvents":[\n'
    for index, event in enumerate(events):
        yield (b",\n" if index else b"") + _json(event)
    yield b"\n]}\n"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
