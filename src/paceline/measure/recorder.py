"""Recorder of a worker's file: an observer of the loop and a listener to the comm's operations."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from paceline.measure.clock import Clock
from paceline.measure.observer import Observer, Row, RunFacts
from paceline.measure.spans import BLOCKED, MEDIUM_CODES, NO_PEER, OP, OP_CODES, PHASE_CODES, SPAN, STEP, is_kept
from paceline.measure.spool import CHUNK_NUMBERS, Spool

SCHEMA = 1
HAND_OVER_S = 0.5  # most that a killed worker loses


class RecordedComm(Protocol):
    """The members of a comm that the recorder uses."""

    listener: Any

    def settle(self, end: float) -> None: ...


class Recorder(Observer):
    """Records every step of one worker; with spans, also its phases and operations of its comm.

    During a step, numbers are appended to a list; after it they are packed, and queued for the writer thread every
    HAND_OVER_S.
    """

    def __init__(self, path: Path, rank: int, clock: Clock, comms: Sequence[RecordedComm], *, has_spans: bool) -> None:
        """`comms`: the comm of all workers first."""
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
        self.spool = Spool(path, head, clock.first.seconds - clock.origin)
        self._comms, self._has_spans = comms, has_spans
        self._last_step = 0
        self._numbers: list[float] = []
        self._packed = array("d")
        self._handed_over = 0.0
        # Time blocked in recorded steps, and the duration of those steps.
        self.blocked_s = self.heard_s = 0.0

    def run_begins(self, facts: RunFacts) -> None:
        del facts
        if self._has_spans:
            for comm in self._comms:
                comm.listener = self

    def step_begins(self, step: int) -> None:
        self._last_step = step
        self.step = step if self._has_spans and is_kept(step) else -1

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
        self._numbers.extend(
            (
                OP,
                step,
                number,
                OP_CODES[op],
                nbytes,
                NO_PEER if peer is None else peer,
                tag,
                MEDIUM_CODES[medium],
                begin,
                end,
            )
        )

    def blocked(
        self, op: str, peer: int | None, tag: int, begin: float, end: float, number: int, *, is_busy: bool = False
    ) -> None:
        if self.step >= 0:
            self.blocked_s += end - begin
            peer = NO_PEER if peer is None else peer
            self._numbers.extend((BLOCKED, self.step, number, OP_CODES[op], peer, tag, is_busy, begin, end))

    def step_ends(self, step: int, facts: Row) -> None:
        begin, iteration_s = facts["begin"], facts["iteration_s"]
        self._numbers.extend(
            (
                STEP,
                step,
                begin,
                iteration_s,
                facts["data_s"],
                facts["loss"],
                facts["num_right"],
                facts["num_answers"],
                facts["num_samples"],
                facts["sent_bytes"],
            )
        )
        if self.step >= 0:
            self.heard_s += iteration_s
        self.step = -1
        self._packed.fromlist(self._numbers)
        self._numbers.clear()
        now = begin + iteration_s
        if len(self._packed) >= CHUNK_NUMBERS or now - self._handed_over > HAND_OVER_S:
            self._handed_over = now
            self._hand_over()

    def run_ends(self) -> None:
        for comm in self._comms:
            comm.listener = None
        self.step = -1
        self._packed.fromlist(self._numbers)
        self._numbers.clear()
        self._hand_over()
        self.spool.close(self.clock.run_time)

    def _hand_over(self) -> None:
        packed, self._packed = self._packed, array("d")
        self.spool.put(packed)
