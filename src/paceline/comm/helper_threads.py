"""Threads beside a worker's own that move and add numbers on cores that nobody else uses.

Jobs are torch's own operations, which let go of the interpreter lock; between them the threads wait in native code.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Block = TypeVar("Block")
Job = Callable[[], None]
WhenDone = Callable[[BaseException | None], object]  # with what went wrong, if anything did
MOST = 3  # more than this, and memory is the limit


def spare_cores(num_workers: int) -> int:
    """Cores per worker of this host that no worker computes on."""
    return max(min(len(os.sched_getaffinity(0)) // num_workers - 1, MOST), 0)


class HelperThreads:
    """A first mate that does jobs in order, and others that lend a hand with what can be divided."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._shared_jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=_run_jobs, args=(self._jobs if index == 0 else self._shared_jobs,), daemon=True)
            for index in range(size)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Have the first mate do a job, after all that were submitted before it."""
        self._jobs.put(job)

    def share(self, job: Job, count: int) -> None:
        """Have so many of the other mates do the same job at once: what it divides, they share."""
        for _ in range(min(count, self.size - 1)):
            self._shared_jobs.put(job)

    def close(self) -> None:
        self._jobs.put(None)
        for _ in self._threads[1:]:
            self._shared_jobs.put(None)
        for thread in self._threads:
            thread.join()


class SharedJob(Generic[Block]):
    """Something done block by block by whoever comes; the one that does the last block says so."""

    def __init__(self, blocks: Sequence[Block], do: Callable[[Block], object], when_done: WhenDone) -> None:
        self._rest = iter(blocks)  # taking the next one is a single step of the interpreter: nobody takes it twice
        self._do = do
        self._lock = threading.Lock()
        self._left = len(blocks)
        self._when_done = when_done
        self._error: BaseException | None = None
        if not blocks:
            when_done(None)

    @property
    def num_left(self) -> int:
        return self._left

    def run(self) -> None:
        for block in self._rest:
            try:
                self._do(block)
            except BaseException as error:  # whoever divided the work raises it, not one that helps
                self._error = error
            with self._lock:
                self._left -= 1
                is_last = self._left == 0
            if is_last:
                self._when_done(self._error)


def _run_jobs(orders: queue.SimpleQueue[Job | None]) -> None:
    while (job := orders.get()) is not None:
        job()
