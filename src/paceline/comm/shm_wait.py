"""Waiting for peers in shared memory: spin briefly, then yield, then sleep on a semaphore until a peer posts it.

A worker that is about to sleep sets its flag, checks once more, and sleeps; a worker that changed something posts the
semaphores of those whose flag is set. Both execute a full memory fence between their write and their read, so no
wake-up is lost. Before it sleeps, a worker advances operations that peers may be waiting for. It sleeps in slices, and
checks in between that the missing peer is still running.
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

SPIN_S = 500e-6  # the usual lateness of a worker on a free core; a sleep and a wake-up cost a tenth of it
LOOKS = 8
YIELDS = 4
SLICE_S = 0.05
WORDS_PER_LINE = LINE_BYTES // 8


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)  # calls through it release the interpreter lock


class ShmWaiter:
    """Lets one thread sleep until a peer wakes it, and wake sleeping peers.

    A worker has two slots: one for its own thread, one for its ordered helper thread.
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
        # Each slot has a cache line with its sleep flag and process id, and one with its semaphore.
        self._words = segment.words(offset, self.num_bytes(world_size) // 8)
        base = segment.tensor(offset, self.num_bytes(world_size), torch.uint8).data_ptr()
        self._semaphores = [ctypes.c_void_p(base + LINE_BYTES * (2 * peer + 1)) for peer in range(2 * world_size)]
        self._sleep_words = [2 * WORDS_PER_LINE * slot for slot in range(2 * world_size)]
        self._fence = threading.Lock()
        self._pidfds: dict[int, int] = {}
        # With fewer cores than workers, spinning would take the core from the peer that is waited for.
        self.can_spin = len(os.sched_getaffinity(0)) >= world_size and not is_helper
        self.meanwhile: Callable[[], object] = _nothing  # called before each sleep: advances what peers may wait for
        self.num_expired = 0  # slices of sleep that timed out
        _libc().sem_init(self._semaphores[self._slot], 1, 0)
        self._words[self._sleep_words[self._slot] + 1] = os.getpid()

    @staticmethod
    def num_bytes(world_size: int) -> int:
        return 4 * LINE_BYTES * world_size

    def wake(self, peer: int) -> None:
        """Wake a peer's own thread if it sleeps; call it after writing something that the peer may wait for."""
        with self._fence:  # its lock instruction is the fence
            pass
        if self._words[self._sleep_words[peer]]:
            _libc().sem_post(self._semaphores[peer])

    def wake_all(self) -> None:
        """Wake all sleeping threads."""
        with self._fence:
            pass
        words = self._words
        for slot, word in enumerate(self._sleep_words):
            if words[word]:
                _libc().sem_post(self._semaphores[slot])

    def wait(self, missing: Callable[[], int], *, whom: str = "") -> None:
        """Wait until `missing` returns -1 rather than the rank of a missing peer.

        `whom` describes the peer in the error if a rank cannot.
        """
        if missing() < 0:
            return
        if self.can_spin:
            end = time.perf_counter() + SPIN_S
            while time.perf_counter() < end:
                for _ in range(LOOKS):
                    if missing() < 0:
                        return
                os.sched_yield()  # releases the interpreter lock, which other threads of this worker may need
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
            if now < check_at:  # by the clock, because wake-ups may be frequent
                continue
            check_at = now + SLICE_S
            peer = missing()
            gone = self._first_gone(peer)
            # A peer may have completed its part before it ended.
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
        """Return a peer whose process has ended, checking the suspect first; -1 if all are running."""
        peers: list[int] = [suspect, *range(self.world_size)]
        for peer in peers:
            if peer != self.rank and self._is_gone(peer):
                return peer
        return -1

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
        self.meanwhile = _nothing
        for fd in self._pidfds.values():
            os.close(fd)
        self._pidfds.clear()


def _nothing() -> None:
    return None


def _wait_semaphore(semaphore: ctypes.c_void_p, seconds: float) -> bool:
    """Sleep until the semaphore is posted; return False on timeout."""
    # An old C library offers only the wall clock, which can be set back during the sleep.
    has_clock = hasattr(_libc(), "sem_clockwait")
    end = (time.monotonic() if has_clock else time.time()) + seconds
    until = ctypes.byref(_Timespec(int(end), int(end % 1 * 1e9)))
    if has_clock:
        return bool(_libc().sem_clockwait(semaphore, time.CLOCK_MONOTONIC, until) == 0)
    return bool(_libc().sem_timedwait(semaphore, until) == 0)
