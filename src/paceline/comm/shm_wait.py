"""Waiting for peers through shared memory: a short spin, then giving way, then sleep until a peer rings.

A worker that waits says so in a word of its own, looks once more, and sleeps on its semaphore; a worker that changed
something rings those that say they sleep. Both put a full memory fence between their write and their look, so one of
the two always sees the other. Before it sleeps a worker does what peers may wait for. Sleep is in slices: in between
it is checked that the missing peer still lives.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache

import torch

from paceline.comm.base import CommError
from paceline.comm.shm_segment import LINE_BYTES, Segment

SPIN_S = 500e-6  # about what a worker is late by when all run freely; a sleep and a wake-up cost a tenth of it
LOOKS = 8
YIELDS = 4
SLICE_S = 0.05
WORDS_PER_LINE = LINE_BYTES // 8


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)  # calls through it let go of the interpreter lock


class ShmWaiter:
    """One thread's means to sleep until a peer has something for it, and to wake those that sleep.

    A worker has two seats: one for its own thread, one for the first of the threads that help it.
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
        """`names` are the workers' ranks in a larger world, for errors."""
        self.names = names or range(world_size)
        self.rank, self.world_size, self.timeout_s = rank, world_size, timeout_s
        self._slot = rank + world_size * is_helper
        # For each slot a line with the word that says it sleeps and its process, and a line with its semaphore.
        self._words = segment.words(offset, self.num_bytes(world_size) // 8)
        base = segment.tensor(offset, self.num_bytes(world_size), torch.uint8).data_ptr()
        self._semaphores = [ctypes.c_void_p(base + LINE_BYTES * (2 * peer + 1)) for peer in range(2 * world_size)]
        self._sleep_words = [2 * WORDS_PER_LINE * slot for slot in range(2 * world_size)]
        self._fence = threading.Lock()
        self._pidfds: dict[int, int] = {}
        # A spin takes the core from whoever is waited for when there are fewer cores than workers.
        self.can_spin = len(os.sched_getaffinity(0)) >= world_size and not is_helper
        self.meanwhile: Callable[[], object] = _nothing  # what a peer may need of this worker before it comes
        self.num_expired = 0  # slices of sleep that nobody ended
        _libc().sem_init(self._semaphores[self._slot], 1, 0)
        self._words[self._sleep_words[self._slot] + 1] = os.getpid()

    @staticmethod
    def num_bytes(world_size: int) -> int:
        return 4 * LINE_BYTES * world_size

    def wake(self, peer: int) -> None:
        """Wake a peer's own thread if it sleeps: something that it may wait for has just been written."""
        with self._fence:  # its lock instruction is the fence
            pass
        if self._words[self._sleep_words[peer]]:
            _libc().sem_post(self._semaphores[peer])

    def wake_all(self) -> None:
        """Wake everybody who sleeps."""
        with self._fence:
            pass
        words = self._words
        for slot, word in enumerate(self._sleep_words):
            if words[word]:
                _libc().sem_post(self._semaphores[slot])

    def wait(self, missing: Callable[[], int], *, whom: str = "") -> None:
        """Return when `missing` says -1; until then it names who is waited for, and `whom` where it cannot."""
        if missing() < 0:
            return
        if self.can_spin:
            end = time.perf_counter() + SPIN_S
            while time.perf_counter() < end:
                for _ in range(LOOKS):
                    if missing() < 0:
                        return
                os.sched_yield()  # lets go of the interpreter lock, which other threads of this worker may need
        for _ in range(YIELDS):
            os.sched_yield()
            if missing() < 0:
                return
        self._sleep(missing, whom)

    def _sleep(self, missing: Callable[[], int], whom: str) -> None:
        me, now = self.names[self.rank], time.monotonic()
        deadline, check_at = now + self.timeout_s, now + SLICE_S
        while self._is_missing_after_a_slice(missing):
            now = time.monotonic()
            if now < check_at:  # by the clock: others may ring all the time
                continue
            check_at = now + SLICE_S
            peer = missing()
            gone = self._first_gone(peer)
            # What a worker did before it went still counts.
            if peer < 0 or (peer := missing()) < 0:
                return
            if gone >= 0:
                raise CommError(f"worker {me} lost worker {self.names[gone]}: its process is gone")
            if now > deadline:
                whom = whom or f"worker {self.names[peer]}"
                raise CommError(f"worker {me} received nothing from {whom} in {self.timeout_s:g} s (the time limit)")

    def _is_missing_after_a_slice(self, missing: Callable[[], int]) -> bool:
        own = self._sleep_words[self._slot]
        self._words[own] = 1
        try:
            with self._fence:
                pass
            self.meanwhile()
            if missing() < 0:
                return False
            self.num_expired += not _wait_semaphore(self._semaphores[self._slot], SLICE_S)
        finally:
            self._words[own] = 0
        return True

    def _first_gone(self, suspect: int) -> int:
        """A peer whose process has ended, the suspect before others; -1 when all live."""
        peers: list[int] = [suspect, *range(self.world_size)]
        for peer in peers:
            if peer != self.rank and self._is_gone(peer):
                return peer
        return -1

    def _is_gone(self, peer: int) -> bool:
        if peer not in self._pidfds:
            pid = int(self._words[self._sleep_words[peer] + 1])
            if pid == 0:
                return False  # it has not come yet
            try:
                self._pidfds[peer] = os.pidfd_open(pid)
            except ProcessLookupError:
                return True
        poll = select.poll()
        poll.register(self._pidfds[peer], select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.meanwhile = _nothing
        for fd in self._pidfds.values():
            os.close(fd)
        self._pidfds.clear()


def _nothing() -> None:
    return None


def _wait_semaphore(semaphore: ctypes.c_void_p, seconds: float) -> bool:
    """Sleep until the semaphore was posted; False when the time is up."""
    # The wall clock may be set back, and sleep would last as long; but an old C library knows no other.
    has_clock = hasattr(_libc(), "sem_clockwait")
    end = (time.monotonic() if has_clock else time.time()) + seconds
    until = ctypes.byref(_Timespec(int(end), int(end % 1 * 1e9)))
    if has_clock:
        return bool(_libc().sem_clockwait(semaphore, time.CLOCK_MONOTONIC, until) == 0)
    return bool(_libc().sem_timedwait(semaphore, until) == 0)
