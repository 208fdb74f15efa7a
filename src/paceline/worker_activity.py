"""What a worker process is doing at the moment, in a page of memory that the launching process reads.

The worker writes the page with plain stores, so the launching process can read it even after the worker was stopped or
killed. A worker on another host sends a copy of the page with every heartbeat instead.
"""

from __future__ import annotations

import ipaddress
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

STAGES = (
    "start-up", "rendezvous", "set-up", "data", "forward", "backward", "optimizer", "communication", "evaluation",
    "finish",
)  # fmt: skip
OPERATIONS = (
    "", "send", "recv", "recv_any", "all_reduce", "reduce_scatter", "broadcast", "gather", "scatter", "all_gather",
    "barrier",
)  # fmt: skip
_STAGE_CODES = {name: code for code, name in enumerate(STAGES)}
_OPERATION_CODES = {name: code for code, name in enumerate(OPERATIONS)}

# Words of the page, each a signed 64-bit number.
_STEP, _STAGE, _OPERATION, _NUMBER, _USUAL, _TOTAL, _WAITING, _SINCE, _HEARTBEAT, _UNREACHABLE = range(10)
MOST_UNREACHABLE = 6
NUM_WORDS = _UNREACHABLE + MOST_UNREACHABLE
PAGE_BYTES = 8 * NUM_WORDS


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A worker's activity at one moment."""

    step: int  # -1: before the first step
    stage: str
    operation: str  # the last operation of the comm that began; empty: none in this step
    number: int  # of this operation in the step, counted from 1
    usual: int  # operations in the step before
    total: int  # operations since the task began
    is_waiting: bool  # whether a thread of the worker waits for a peer
    waiting_s: float
    silent_s: float  # time since the last heartbeat
    unreachable: tuple[str, ...]  # addresses of peers that acknowledge nothing

    def __str__(self) -> str:
        """Return a description such as `step 41, in all_reduce 3 of 10 (backward)`."""
        words = f"step {self.step}" if self.step >= 0 else "before the first step"
        if not self.operation:
            return f"{words}, in {self.stage}"
        count = f" {self.number} of {self.usual}" if self.number <= self.usual else f" {self.number}"
        return f"{words}, {'in' if self.is_waiting else 'after'} {self.operation}{count} ({self.stage})"


class Activity:
    """The page of one worker. The worker calls the methods that write, the launching process calls `read`."""

    def __init__(self, memory: memoryview | None = None) -> None:
        self._words = (memory or memoryview(bytearray(PAGE_BYTES))).cast("q")
        self._lock = threading.Lock()  # several threads of a worker may wait

    def share(self, descriptor: int) -> None:
        """From now on, write to the page behind a file descriptor, and close the descriptor."""
        self._words = _map(descriptor).cast("q")

    def begin_task(self) -> None:
        for index in range(NUM_WORDS):
            self._words[index] = 0
        self._words[_STEP] = -1
        self.beat()

    def begin_step(self, step: int) -> None:
        words = self._words
        words[_USUAL], words[_NUMBER], words[_OPERATION], words[_STEP] = words[_NUMBER], 0, 0, step
        self.enter("data")  # the first phase of a step

    def enter(self, stage: str) -> None:
        self._words[_STAGE] = _STAGE_CODES[stage]

    def begin_operation(self, operation: str) -> None:
        words = self._words
        words[_OPERATION] = _OPERATION_CODES[operation]
        words[_NUMBER] += 1
        words[_TOTAL] += 1

    def begin_wait(self) -> None:
        with self._lock:
            if not self._words[_WAITING]:
                self._words[_SINCE] = time.monotonic_ns()
            self._words[_WAITING] += 1

    def end_wait(self) -> None:
        with self._lock:
            self._words[_WAITING] -= 1

    def beat(self) -> None:
        self._words[_HEARTBEAT] = time.monotonic_ns()

    def set_unreachable(self, addresses: Sequence[str]) -> None:
        numbers = [int(ipaddress.IPv4Address(address)) for address in addresses[:MOST_UNREACHABLE]]
        for index in range(MOST_UNREACHABLE):
            self._words[_UNREACHABLE + index] = numbers[index] if index < len(numbers) else 0

    def copy(self) -> bytes:
        return bytes(self._words)

    def load(self, page: bytes) -> None:
        """Replace this page by the copy of a worker on another host, whose clock differs, and note a heartbeat."""
        self._words[:] = memoryview(page).cast("q")
        self._words[_SINCE] = time.monotonic_ns()
        self.beat()

    def read(self) -> Snapshot:
        words, now = self._words.tolist(), time.monotonic_ns()
        return Snapshot(
            step=words[_STEP],
            stage=_name(STAGES, words[_STAGE]),
            operation=_name(OPERATIONS, words[_OPERATION]),
            number=words[_NUMBER],
            usual=words[_USUAL],
            total=words[_TOTAL],
            is_waiting=words[_WAITING] > 0,
            waiting_s=(now - words[_SINCE]) / 1e9 if words[_WAITING] > 0 else 0.0,
            silent_s=(now - words[_HEARTBEAT]) / 1e9,
            unreachable=tuple(str(ipaddress.IPv4Address(w & 0xFFFFFFFF)) for w in words[_UNREACHABLE:] if w),
        )


def _name(names: tuple[str, ...], code: int) -> str:
    """Return the name with this code. A worker on another host may send any number."""
    return names[code] if 0 <= code < len(names) else "?"


def new_page() -> tuple[Activity, int]:
    """Create a page to share with a child process. Return this process's view of it, and the descriptor to pass on."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("paceline-activity")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, PAGE_BYTES)
    activity = Activity(_map(os.dup(descriptor)))
    activity.begin_task()
    return activity, descriptor


def _map(descriptor: int) -> memoryview:
    try:
        return memoryview(mmap.mmap(descriptor, PAGE_BYTES))
    finally:
        os.close(descriptor)


ACTIVITY = Activity()  # of this process
