"""Observers that write the worker's file and emit the worker's progress events."""

from __future__ import annotations

import os
import socket
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from paceline.measure.exchange import Clock
from paceline.measure.observer import Observer, RunFacts
from paceline.measure.spool import (
    BLOCKED,
    CHUNK_NUMBERS,
    MEDIUM_CODES,
    NO_PEER,
    OP,
    OP_CODES,
    PHASE_CODES,
    SPAN,
    STEP,
    Spool,
)
from paceline.measure.steps import records_spans
from paceline.results import Json

SCHEMA = 1
QUEUE_EVERY_S = 0.5  # if a worker is killed, about this period of its records is lost
PROGRESS_EVERY_S = 0.2
WINDOW_S = 2.0  # period of the throughput and blocked time in a progress event
MOST_STEPS = 200  # limit of steps in the period of WINDOW_S; older steps are ignored


class RecordedComm(Protocol):
    """The members of a comm (the object through which workers communicate) that the recorder uses."""

    listener: Any

    def settle(self, end: float) -> None: ...


class Recorder(Observer):
    """Observer that writes a line for every step of one worker to the worker's file.

    With `has_spans`, it also records phases and comm operations; in a long run, only those of some steps.

    During a step, numbers are appended to a list. After the step they are packed into an array, which is handed to the
    writer thread about every QUEUE_EVERY_S seconds.
    """

    def __init__(
        self,
        path: Path,
        rank: int,
        clock: Clock,
        comms: Sequence[RecordedComm],
        *,
        has_spans: bool,
        is_continued: bool = False,
    ) -> None:
        """Create the worker's file at `path`, or continue it. With `has_spans`, record operations of all `comms`."""
        self.clock = clock
        self.step = -1  # step whose operations are recorded; -1 for none
        head = {
            "kind": "head",
            "schema": SCHEMA,
            "rank": rank,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "clock_offset_s": clock.first.seconds,
            "clock_error_s": clock.first.error_s,
        }
        # The head of a continued file stays, so that the file still has one.
        self.spool = Spool(path, None if is_continued else head, clock.first.seconds - clock.origin)
        self._comms, self._has_spans = comms, has_spans
        self._last_step = 0
        self._numbers: list[float] = []
        self._packed = array("d")
        self._queued_at = 0.0
        # Time that the worker was blocked in steps with recorded operations, and the duration of these steps.
        self.blocked_s = self.recorded_s = 0.0

    def run_begins(self, facts: RunFacts) -> None:  # noqa: ARG002
        if self._has_spans:
            for comm in self._comms:
                comm.listener = self

    def step_begins(self, step: int) -> None:
        self._last_step = step
        self.step = step if self._has_spans and records_spans(step) else -1

    def phase_ends(self, phase: str, begin: float, end: float) -> None:
        if self.step >= 0 or (self._has_spans and phase == "evaluation"):
            if phase == "backward":
                for comm in self._comms:
                    comm.settle(end)
            self._numbers.extend((SPAN, self._last_step, PHASE_CODES[phase], begin, end))

    def op(
        self,
        op: str,
        nbytes: int,
        peer: int | None,
        tag: int,
        begin: float,
        end: float,
        number: int,
        medium: str,
        step: int,
    ) -> None:
        peer = NO_PEER if peer is None else peer
        self._numbers.extend((OP, step, number, OP_CODES[op], nbytes, peer, tag, MEDIUM_CODES[medium], begin, end))

    def blocked(
        self, op: str, peer: int | None, tag: int, begin: float, end: float, number: int, *, is_busy: bool = False
    ) -> None:
        if self.step >= 0:
            self.blocked_s += end - begin
            peer = NO_PEER if peer is None else peer
            self._numbers.extend((BLOCKED, self.step, number, OP_CODES[op], peer, tag, is_busy, begin, end))

    def step_ends(self, step: int, facts: Json) -> None:
        begin, iteration_s = facts["begin"], facts["iteration_s"]
        others = ("data_s", "loss", "num_right", "num_answers", "num_samples", "sent_bytes")
        self._numbers.extend((STEP, step, begin, iteration_s, *(facts[name] for name in others)))
        if self.step >= 0:
            self.recorded_s += iteration_s
        self._pack()
        now = begin + iteration_s
        if len(self._packed) >= CHUNK_NUMBERS or now - self._queued_at > QUEUE_EVERY_S:
            self._queued_at = now
            self._enqueue()

    def flush(self) -> None:
        self._pack()
        self._enqueue()

    def run_ends(self) -> None:
        for comm in self._comms:
            comm.listener = None
        self.flush()
        self.spool.close(self.clock.run_time)

    def _pack(self) -> None:
        self.step = -1
        self._packed.fromlist(self._numbers)
        self._numbers.clear()

    def _enqueue(self) -> None:
        packed, self._packed = self._packed, array("d")
        self.spool.put(packed)


class _Step(NamedTuple):
    end: float
    num_samples: int
    num_right: int
    num_answers: int
    blocked_s: float  # since the run's start, in steps whose operations were recorded
    recorded_s: float  # duration of the steps whose operations were recorded, since the run's start


class ProgressObserver(Observer):
    """Observer that emits progress events with throughput and the share of blocked time.

    It emits at most one progress event per PROGRESS_EVERY_S seconds, and one more after the last step. In addition,
    rank 0 emits a log event every `log_every` steps.
    """

    def __init__(
        self,
        emit: Callable[[Json], None],
        *,
        log_every: int = 0,
        blocked_time: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
        more: Callable[[], Json] = dict,
    ) -> None:
        """Create the observer. `emit` receives each event, and `more` returns fields to add to an event.

        `blocked_time` returns two totals since the run's start, in seconds: the time blocked in the comm, and the
        duration of the steps in which blocked time was recorded.
        """
        self._emit, self._log_every, self._blocked_time, self._more = emit, log_every, blocked_time, more
        self._in_comm_percent: float | None = None
        self._recent: deque[_Step] = deque(maxlen=MOST_STEPS)
        self._emitted_at = float("-inf")
        self._last: Json | None = None  # fields of the last step

    def run_begins(self, facts: RunFacts) -> None:
        self._facts = facts
        self._recent.append(_Step(time.perf_counter(), 0, 0, 0, *self._blocked_time()))

    def step_ends(self, step: int, facts: Json) -> None:
        now = time.perf_counter()
        num_samples, num_right, num_answers = facts["num_samples"], facts["num_right"], facts["num_answers"]
        self._recent.append(_Step(now, num_samples, num_right, num_answers, *self._blocked_time()))
        is_log = self._facts.rank == 0 and self._log_every > 0 and (step + 1) % self._log_every == 0
        self._last = {
            "rank": self._facts.rank,
            "step": step + 1,
            "total_steps": self._facts.total_steps,
            "epoch": step // self._facts.steps_per_epoch + 1,
            "iteration": step % self._facts.steps_per_epoch + 1,
            "loss": facts["loss"],
        }
        if is_log or now - self._emitted_at >= PROGRESS_EVERY_S:
            self._emit_event("log" if is_log else "progress", now)

    def steps_end(self) -> None:
        """Emit a final event, because `step_ends` may have emitted none for the last step."""
        if self._last is not None:
            self._emit_event("progress", self._recent[-1].end)

    def _emit_event(self, kind: str, now: float) -> None:
        self._emitted_at = now
        self._emit({"kind": kind, **(self._last or {}), **self._recently(now), **self._more()})

    def _recently(self, now: float) -> Json:
        while len(self._recent) > 2 and self._recent[1].end < now - WINDOW_S:
            self._recent.popleft()
        first, *steps = self._recent
        elapsed_s = max(now - first.end, 1e-9)
        answers = sum(step.num_answers for step in steps)
        recorded_s = steps[-1].recorded_s - first.recorded_s
        if recorded_s > 0:  # in a long run, only some steps are recorded; until the next one, repeat the last value
            self._in_comm_percent = 100 * (steps[-1].blocked_s - first.blocked_s) / recorded_s
        return {
            "accuracy": sum(step.num_right for step in steps) / answers if answers else None,
            "samples_per_s": sum(step.num_samples for step in steps) / elapsed_s,
            "in_comm_percent": self._in_comm_percent,
        }
