"""Synchronisation of the workers of comm `shm`: waiting for peers, and counters of their progress.

A waiting worker spins briefly, then yields, then sleeps on a semaphore until a peer posts the semaphore. Before it
sleeps, it sets its sleep flag, advances operations that peers may wait for, and checks once more whether it has to
wait. A worker that has written data reads its peers' sleep flags, and posts the semaphores of the peers whose flags are
set. The sleeper executes a full memory fence between writing its flag and reading the data, and the writer executes one
between writing the data and reading the flags, so no wake-up is lost. A worker sleeps for SLEEP_SLICE_S at a time, and
checks in between that its peers are still running.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from paceline.comm.base import CommError
from paceline.comm.shm_memory import LINE_BYTES, Segment, libc
from paceline.errors import RunError
from paceline.worker_activity import ACTIVITY

SPIN_S = 500e-6  # workers with a core each are usually late by less; a sleep and a wake-up cost a tenth of this
SPIN_CHECKS = 8  # checks between two yields while spinning
YIELDS = 4
SLEEP_SLICE_S = 0.05
WORDS_PER_LINE = LINE_BYTES // 8


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class ShmWaiter:
    """Lets one thread of a worker sleep until a peer wakes that thread, and lets the thread wake sleeping peers.

    Two threads of a worker can sleep, each with its own slot in shared memory (a flag and a semaphore): the worker's
    own thread, and the helper thread that runs queued jobs in order.
    """

    def __init__(
        self,
        segment: Segment,
        offset: int,
        rank: int,
        world_size: int,
        timeout_s: float,
        *,
        is_helper: bool = False,
        names: Sequence[int] = (),
    ) -> None:
        """Create a waiter. `names` has the ranks to show in error messages, or is empty for 0 to `world_size` - 1."""
        self.names = names or range(world_size)
        self.rank, self.world_size, self.timeout_s = rank, world_size, timeout_s
        self._slot = rank + world_size * is_helper
        # Each slot has a cache line with its sleep flag and process id, and one with its semaphore.
        self._words = segment.words(offset, self.num_bytes(world_size) // 8)
        base = segment.tensor(offset, self.num_bytes(world_size), torch.uint8).data_ptr()
        self._semaphores = [ctypes.c_void_p(base + LINE_BYTES * (2 * peer + 1)) for peer in range(2 * world_size)]
        self._sleep_words = [2 * WORDS_PER_LINE * slot for slot in range(2 * world_size)]
        self._fence = threading.Lock()
        self._pidfds: dict[int, int] = {}
        # With fewer cores than workers, spinning would take the core of the missing peer.
        self.can_spin = len(os.sched_getaffinity(0)) >= world_size and not is_helper
        self.before_sleep: Callable[[], object] = _do_nothing  # advances operations that peers may wait for
        self.num_expired = 0  # slices of sleep that timed out
        libc().sem_init(self._semaphores[self._slot], 1, 0)
        self._words[self._sleep_words[self._slot] + 1] = os.getpid()

    @staticmethod
    def num_bytes(world_size: int) -> int:
        return 4 * LINE_BYTES * world_size

    def wake(self, peer: int) -> None:
        """Wake a peer's main thread if it sleeps; the peer's helper thread is not woken.

        Call this after writing something that the main thread may wait for.
        """
        with self._fence:  # acquiring a lock is a full memory fence
            pass
        if self._words[self._sleep_words[peer]]:
            libc().sem_post(self._semaphores[peer])

    def wake_all(self) -> None:
        """Wake the sleeping threads of all workers."""
        with self._fence:
            pass
        words = self._words
        for slot, word in enumerate(self._sleep_words):
            if words[word]:
                libc().sem_post(self._semaphores[slot])

    def wait(self, first_missing: Callable[[], int], *, whom: str = "") -> None:
        """Wait until `first_missing` returns -1; a return value of 0 or more is the rank of a peer to wait for.

        Raise CommError if the process of any peer has ended, or after the time limit. The error after the time limit
        names the missing peer, or `whom` if this is not empty.
        """
        if first_missing() < 0:
            return
        if self.can_spin:
            end = time.perf_counter() + SPIN_S
            while time.perf_counter() < end:
                for _ in range(SPIN_CHECKS):
                    if first_missing() < 0:
                        return
                os.sched_yield()  # releases the interpreter lock, which other threads of this worker may need
        for _ in range(YIELDS):
            os.sched_yield()
            if first_missing() < 0:
                return
        ACTIVITY.begin_wait()
        try:
            self._sleep(first_missing, whom)
        finally:
            ACTIVITY.end_wait()

    def _sleep(self, first_missing: Callable[[], int], whom: str) -> None:
        me, now = self.names[self.rank], time.monotonic()
        deadline, check_at = now + self.timeout_s, now + SLEEP_SLICE_S
        while self._is_missing_after_sleep(first_missing):
            now = time.monotonic()
            if now < check_at:  # by the clock, because wake-ups may be frequent
                continue
            check_at = now + SLEEP_SLICE_S
            peer = first_missing()
            gone = self._first_gone(peer)
            # A peer may have completed its part before it ended.
            if peer < 0 or (peer := first_missing()) < 0:
                return
            if gone >= 0:
                raise CommError(f"worker {me} lost worker {self.names[gone]}: its process is gone")
            if now > deadline:
                whom = whom or f"worker {self.names[peer]}"
                raise CommError(f"worker {me} received nothing from {whom} in {self.timeout_s:g} s (the time limit)")

    def _is_missing_after_sleep(self, first_missing: Callable[[], int]) -> bool:
        """Return False if no peer is missing. Otherwise sleep until woken, at most SLEEP_SLICE_S, and return True."""
        own = self._sleep_words[self._slot]
        self._words[own] = 1
        try:
            with self._fence:
                pass
            self.before_sleep()
            if first_missing() < 0:
                return False
            self.num_expired += not _wait_semaphore(self._semaphores[self._slot], SLEEP_SLICE_S)
        finally:
            self._words[own] = 0
        return True

    def _first_gone(self, suspect: int) -> int:
        """Return the rank of a peer whose process has ended, or -1 if there is none. Check peer `suspect` first."""
        peers = [suspect, *range(self.world_size)]
        return next((peer for peer in peers if peer != self.rank and self._is_gone(peer)), -1)

    def _is_gone(self, peer: int) -> bool:
        if peer not in self._pidfds:
            pid = int(self._words[self._sleep_words[peer] + 1])
            if pid == 0:
                return False  # it has not connected yet
            try:
                self._pidfds[peer] = os.pidfd_open(pid)
            except ProcessLookupError:
                return True
        poll = select.poll()
        poll.register(self._pidfds[peer], select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.before_sleep = _do_nothing
        for fd in self._pidfds.values():
            os.close(fd)
        self._pidfds.clear()


def _do_nothing() -> None:
    return None


def _wait_semaphore(semaphore: ctypes.c_void_p, seconds: float) -> bool:
    """Sleep until the semaphore is posted; return False if it was not posted within `seconds`."""
    # An old C library offers only the wall clock, which can be set back during the sleep.
    has_clock = hasattr(libc(), "sem_clockwait")
    end = (time.monotonic() if has_clock else time.time()) + seconds
    until = ctypes.byref(_Timespec(int(end), int(end % 1 * 1e9)))
    if has_clock:
        return bool(libc().sem_clockwait(semaphore, time.CLOCK_MONOTONIC, until) == 0)
    return bool(libc().sem_timedwait(semaphore, until) == 0)


OPERATIONS = ("barrier", "all_reduce", "reduce_scatter", "broadcast", "gather", "all_gather", "scatter")


class Collective(NamedTuple):
    """A collective that a worker has called. Workers compare their collectives, to detect calls that do not match."""

    op: str
    nbytes: int = 0
    root: int = 0

    def packed(self) -> int:
        return (OPERATIONS.index(self.op) << 56) + (self.root << 48) + self.nbytes

    @staticmethod
    def unpacked(word: int) -> Collective:
        return Collective(OPERATIONS[word >> 56], word & ((1 << 48) - 1), (word >> 48) & 0xFF)

    def __str__(self) -> str:
        return self.op if self.op == "barrier" else f"{self.op} of {self.nbytes} bytes"


class Counters:
    """Counters of each worker's progress, which never decrease; each worker writes only its own cache line.

    In a comm, a counter holds the index of a piece of a tensor. In a reduction, it holds the index of a range of a
    vector.
    """

    # Kinds: the worker has written its data; it has summed its slice; it no longer reads the memory.
    READY, SUMMED, FREE = 0, 1, 2
    # Position and number of the words with a worker's last collectives; no worker is four pieces ahead of another.
    COLLECTIVES, NUM_COLLECTIVES = 4, 4

    def __init__(self, segment: Segment, offset: int, waiter: ShmWaiter) -> None:
        self._words = segment.words(offset, WORDS_PER_LINE * waiter.world_size)
        self._waiter = waiter
        self._mine = WORDS_PER_LINE * waiter.rank
        self._lines = range(0, WORDS_PER_LINE * waiter.world_size, WORDS_PER_LINE)

    @staticmethod
    def num_bytes(world_size: int) -> int:
        return LINE_BYTES * world_size

    def publish(self, kind: int, number: int) -> None:
        self._words[self._mine + kind] = number
        self._waiter.wake_all()

    def first_behind(self, kind: int, number: int) -> int:
        """Return the lowest rank whose counter of this kind (such as READY) is below `number`, else -1."""
        words = self._words
        for line in self._lines:
            if words[line + kind] < number:
                return line // WORDS_PER_LINE
        return -1

    def wait_all(self, kind: int, number: int) -> None:
        self._waiter.wait(lambda: self.first_behind(kind, number))

    def wait_for(self, peer: int, kind: int, number: int) -> None:
        words, word = self._words, peer * WORDS_PER_LINE + kind
        self._waiter.wait(lambda: peer if words[word] < number else -1)

    # For each piece, a worker publishes which collective it has called, and compares it with those of its peers.

    def mark_ready(self, number: int, collective: Collective) -> None:
        """Publish that this worker has called `collective`, and has no more data to write for piece `number`."""
        self._words[self._mine + self.COLLECTIVES + number % self.NUM_COLLECTIVES] = collective.packed()
        self.publish(self.READY, number)

    def wait_ready_all(self, number: int, collective: Collective) -> None:
        """Wait until all workers have marked piece `number` as ready.

        Raise RunError if a worker has called another collective than `collective`.
        """
        self.wait_all(self.READY, number)
        for peer in range(self._waiter.world_size):
            self._compare(peer, number, collective)

    def wait_ready(self, peer: int, number: int, collective: Collective) -> None:
        """Wait until `peer` has marked piece `number` as ready.

        Raise RunError if the peer has called another collective than `collective`.
        """
        self.wait_for(peer, self.READY, number)
        self._compare(peer, number, collective)

    def _compare(self, peer: int, number: int, collective: Collective) -> None:
        theirs = self._words[peer * WORDS_PER_LINE + self.COLLECTIVES + number % self.NUM_COLLECTIVES]
        if theirs != collective.packed():
            mine, other = self._waiter.names[self._waiter.rank], self._waiter.names[peer]
            raise RunError(
                f"workers are out of step: worker {mine} is in {collective}, worker {other} in "
                f"{Collective.unpacked(theirs)}; every worker must call the same collectives in the same order"
            )
