"""What torch's profiler saw in each worker, put on the run's clock and beside that worker's other tracks."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.measure.events import Arrows, Event, Slice, Track, micro, nested, thread_names
from paceline.measure.steps import StepRange

FOLDER = "trace"
METADATA = "paceline"  # the key under which a trace says how its clock stands to the run's
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
LAUNCH = "ac2g"  # torch's arrows from the call on the CPU to the kernel on the GPU
FIRST_TRACK = 5000  # within a worker's numbers, clear of the loop's and the communication's
# The profiler's own bookkeeping, of use to programs alone.
LEFT_OUT = {"External id", "Ev Idx", "Record function id", "Sequence number", "Fwd thread id", "correlation"}


@dataclass(frozen=True)
class ProfiledTrace:
    """One worker's trace as torch wrote it."""

    name: str
    steps: StepRange
    shift_ns: int  # from the trace's times to the run's
    events: list[Mapping[str, Any]]


def rank_file(folder: Path, rank: int) -> Path:
    """Where a worker's own trace lies in a run's folder."""
    return folder / FOLDER / f"rank-{rank}.json.gz"


def read_profiled(folder: Path, rank: int) -> ProfiledTrace | None:
    """A worker's own trace; None where it was not profiled."""
    file = rank_file(folder, rank)
    if not file.is_file():
        return None
    try:
        with gzip.open(file, "rb") as packed:
            trace = json.load(packed)
        own = trace[METADATA]
        return ProfiledTrace(
            file.name,
            StepRange(int(own["first_step"]), int(own["end_step"])),
            int(trace["baseTimeNanoseconds"]) - int(own["run_start_ns"]),
            list(trace["traceEvents"]),
        )
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"{file.name} is damaged, or not a trace of this program ({reason})") from None


def profiled_events(trace: ProfiledTrace, pid: int, arrows: Arrows) -> list[Event]:
    """A track per thread and per stream of a GPU, with operators and kernels, and arrows from one to the other."""
    tracks: dict[tuple[Any, Any], Track] = {}
    slices: dict[tuple[Any, Any], list[Slice]] = {}
    names = _thread_titles(trace)
    for event in trace.events:
        if event.get("ph") != "X" or isinstance(event.get("pid"), str):
            continue  # the profiler's own spans lie in processes that are words
        place = (event["pid"], event["tid"])
        begin_ns = _run_ns(trace, event)
        slices.setdefault(place, []).append(
            Slice(
                name=event["name"],
                category=event.get("cat", "profiled"),
                begin_ns=begin_ns,
                end_ns=begin_ns + max(round(float(event.get("dur", 0)) * 1000), 1),
                args={key: value for key, value in event.get("args", {}).items() if key not in LEFT_OUT},
            )
        )
        if event.get("cat") in ON_GPU:
            names[place] = f"GPU {event['pid']}, stream {event['tid']}"
    found: list[Event] = []
    for number, place in enumerate(sorted(slices, key=str)):
        tracks[place] = Track(pid, pid + FIRST_TRACK + number)
        found += thread_names(
            tracks[place], f"profiled: {names.get(place, f'thread {place[1]}')}", FIRST_TRACK + number
        )
        found += [piece.event(tracks[place]) for piece in nested(slices[place])]
    return [*found, *_launches(trace, tracks, arrows)]


def _thread_titles(trace: ProfiledTrace) -> dict[tuple[Any, Any], str]:
    return {
        (event["pid"], event["tid"]): str(event["args"]["name"])
        for event in trace.events
        if event.get("ph") == "M" and event.get("name") == "thread_name"
    }


def _run_ns(trace: ProfiledTrace, event: Mapping[str, Any]) -> int:
    return round(float(event["ts"]) * 1000) + trace.shift_ns


def _launches(trace: ProfiledTrace, tracks: Mapping[tuple[Any, Any], Track], arrows: Arrows) -> Iterator[Event]:
    """Arrows from launches to kernels, where the trace holds both ends."""
    starts = {event["id"]: event for event in trace.events if event.get("cat") == LAUNCH and event.get("ph") == "s"}
    for end in trace.events:
        if end.get("cat") != LAUNCH or end.get("ph") != "f" or end["id"] not in starts:
            continue
        start = starts[end["id"]]
        source, target = (tracks.get((event["pid"], event["tid"])) for event in (start, end))
        leaves_ns, arrives_ns = _run_ns(trace, start), _run_ns(trace, end)
        if source is None or target is None or arrives_ns < leaves_ns:
            continue
        common = {"name": "launch", "cat": "arrow", "id": arrows.next_number()}
        yield {"ph": "s", **common, "pid": source.pid, "tid": source.tid, "ts": micro(leaves_ns)}
        yield {"ph": "f", "bp": "e", **common, "pid": target.pid, "tid": target.tid, "ts": micro(arrives_ns)}
