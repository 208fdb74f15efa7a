"""Run the torch profiler on chosen steps, and write one Chrome trace per worker.

The module also converts a worker's trace to tracks of the merged trace of all workers. The traces of single workers can
be read by the tool Holistic Trace Analysis.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from paceline.errors import RunError, UsageError
from paceline.measure.observer import Observer, RunFacts
from paceline.measure.steps import StepRange
from paceline.measure.trace_format import Arrows, Event, Slice, Track, nested, thread_names
from paceline.results import Json

FOLDER = "trace"  # folder of the traces, in a run's folder
PREFIX = "paceline."  # prefix of phase names in a trace
METADATA = "paceline"  # key in a trace for the time of the run's start and the profiled steps
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
LAUNCH = "ac2g"  # torch's category of arrows from the call on the CPU to the kernel on the GPU
FIRST_TRACK = 5000  # first thread id of profiled tracks, above the thread ids of the loop and of communication
INTERNAL_FIELDS = {"External id", "Ev Idx", "Record function id", "Sequence number", "Fwd thread id", "correlation"}


class Profiler(Observer):
    """Observer that profiles a range of steps of one worker, with phases as named ranges.

    The profiler starts and stops between two steps, so that no step includes the time of starting and stopping. The
    trace is written when the run ends.
    """

    def __init__(self, steps: StepRange, *, backend: str, has_gpu: bool) -> None:
        self.steps = steps
        self._backend = backend
        self._activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_gpu else [])]
        self._profile: profile | None = None
        self._is_running = False
        self._ranges: list[record_function] = []

    def run_begins(self, facts: RunFacts) -> None:
        self._facts = facts
        # Otherwise Kineto prints messages to the terminal whenever it starts or stops.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        warm_up = self._new_profile()  # the first profile of a process takes a second
        warm_up.start()
        warm_up.stop()
        if self.steps.first == 0:
            self._start()

    def step_begins(self, step: int) -> None:
        if self._is_running:
            self._open(f"ProfilerStep#{step}")  # the name that torch uses and trace tools expect

    def phase_begins(self, phase: str) -> None:
        if self._is_running:
            self._open(f"{PREFIX}{phase}")

    def phase_ends(self, phase: str, begin: float, end: float) -> None:  # noqa: ARG002
        if self._is_running:
            self._close()

    def step_ends(self, step: int, facts: Json) -> None:  # noqa: ARG002
        if self._is_running:
            self._close()
            if step + 1 >= self.steps.end:
                self._stop()
        elif self._profile is None and step + 1 in self.steps:
            self._start()

    def run_ends(self) -> None:
        """Write the trace. If the run ended early, the trace has only the steps that were run."""
        if self._is_running:
            self._stop()
        if self._profile is None or not self._facts.folder:
            return
        target = rank_file(Path(self._facts.folder), self._facts.rank)
        try:
            target.parent.mkdir(exist_ok=True)
            self._profile.export_chrome_trace(str(target))
        except OSError as error:
            raise RunError(f"{target.name} cannot be written: {error.strerror}") from error

    def _new_profile(self) -> profile:
        # Profile all threads, because threads other than the loop's fill and reduce the gradient buckets.
        config = _ExperimentalConfig(profile_all_threads=True)
        return profile(activities=self._activities, experimental_config=config)

    def _start(self) -> None:
        self._profile = self._new_profile()
        self._profile.start()
        self._is_running = True
        facts = self._facts
        info = {"backend": self._backend, "rank": facts.rank, "world_size": facts.world_size}
        self._profile.add_metadata_json("distributedInfo", json.dumps(info))
        # Event times are in the host's time of day. `read_profiled` needs the run's start to convert them.
        start_ns = _start_of_run_ns(facts.run_time)
        own = {"run_start_ns": start_ns, "first_step": self.steps.first, "end_step": self.steps.end}
        self._profile.add_metadata_json(METADATA, json.dumps(own))

    def _stop(self) -> None:
        assert self._profile is not None
        while self._ranges:
            self._close()
        self._profile.stop()
        self._is_running = False

    def _open(self, name: str) -> None:
        self._ranges.append(record_function(name))
        self._ranges[-1].__enter__()

    def _close(self) -> None:
        self._ranges.pop().__exit__(None, None, None)


def _start_of_run_ns(run_time: Callable[[float], float]) -> int:
    """Return the run's start on the host's clock, in nanoseconds since 1970.

    The host's clock and `perf_counter` are read together 10 times. The result is from the fastest reading.
    """
    best_s, start_ns = math.inf, 0
    for _ in range(10):
        before = time.perf_counter()
        now_ns = time.time_ns()
        after = time.perf_counter()
        if after - before < best_s:
            best_s, start_ns = after - before, now_ns - round(run_time((before + after) / 2) * 1e9)
    return start_ns


@dataclass(frozen=True)
class ProfiledTrace:
    """The torch profiler's trace of one worker."""

    steps: StepRange
    shift_ns: int  # to add to the trace's times, to get times since the run's start
    events: list[Mapping[str, Any]]


def rank_file(folder: Path, rank: int) -> Path:
    """Return the path of the torch profiler's trace of a worker."""
    return folder / FOLDER / f"rank-{rank}.json.gz"


def read_profiled(folder: Path, rank: int) -> ProfiledTrace | None:
    """Read the torch profiler's trace of a worker, or return None if the worker was not profiled.

    Raises UsageError if the file is damaged.
    """
    file = rank_file(folder, rank)
    if not file.is_file():
        return None
    try:
        with gzip.open(file, "rb") as packed:
            trace = json.load(packed)
        own = trace[METADATA]
        return ProfiledTrace(
            StepRange(int(own["first_step"]), int(own["end_step"])),
            int(trace["baseTimeNanoseconds"]) - int(own["run_start_ns"]),
            list(trace["traceEvents"]),
        )
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"{file.name} is damaged, or not a trace of this program ({reason})") from None


def profiled_events(trace: ProfiledTrace, pid: int, arrows: Arrows) -> list[Event]:
    """Convert a worker's trace to events of the merged trace of all workers.

    There is one track per thread with its operators, one per GPU stream with its kernels, and an arrow from the launch
    of each kernel to the kernel.
    """
    tracks: dict[tuple[Any, Any], Track] = {}  # by pid and tid in the trace
    slices: dict[tuple[Any, Any], list[Slice]] = {}
    names = {
        (event["pid"], event["tid"]): str(event["args"]["name"])
        for event in trace.events
        if event.get("ph") == "M" and event.get("name") == "thread_name"
    }
    for event in trace.events:
        if event.get("ph") != "X" or isinstance(event.get("pid"), str):
            continue  # internal spans of the profiler have text as pid
        place = (event["pid"], event["tid"])
        begin_ns = _run_ns(trace, event)
        slices.setdefault(place, []).append(
            Slice(
                name=event["name"],
                category=event.get("cat", "profiled"),
                begin_ns=begin_ns,
                end_ns=begin_ns + max(round(float(event.get("dur", 0)) * 1000), 1),
                args={key: value for key, value in event.get("args", {}).items() if key not in INTERNAL_FIELDS},
            )
        )
        if event.get("cat") in ON_GPU:
            names[place] = f"GPU {event['pid']}, stream {event['tid']}"
    found: list[Event] = []
    for number, place in enumerate(sorted(slices, key=str)):
        tracks[place] = Track(pid, pid + FIRST_TRACK + number)
        name = names.get(place, f"thread {place[1]}")
        found += thread_names(tracks[place], f"profiled: {name}", FIRST_TRACK + number)
        found += [piece.event(tracks[place]) for piece in nested(slices[place])]
    return [*found, *_launches(trace, tracks, arrows)]


def _run_ns(trace: ProfiledTrace, event: Mapping[str, Any]) -> int:
    return round(float(event["ts"]) * 1000) + trace.shift_ns


def _launches(trace: ProfiledTrace, tracks: Mapping[tuple[Any, Any], Track], arrows: Arrows) -> Iterator[Event]:
    """Yield an arrow from each kernel launch on the CPU to its kernel on the GPU."""
    starts = {event["id"]: event for event in trace.events if event.get("cat") == LAUNCH and event.get("ph") == "s"}
    for end in trace.events:
        if end.get("cat") != LAUNCH or end.get("ph") != "f" or end["id"] not in starts:
            continue
        start = starts[end["id"]]
        source, target = (tracks.get((event["pid"], event["tid"])) for event in (start, end))
        if source is not None and target is not None:
            times = {"leaves_ns": _run_ns(trace, start), "arrives_ns": _run_ns(trace, end)}
            yield from arrows.between_tracks("launch", source, target, **times)
