"""Threads beside a worker's own that move and add numbers on cores that nobody else uses.

Jobs are torch's own operations, which let go of the interpreter lock; between them the threads wait in native code.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence

Job = Callable[[], None]
MOST = 3  # more than this, and memory is the limit


def spare_cores(num_workers: int) -> int:
    """Cores per worker of this host that no worker computes on."""
    return max(min(len(os.sched_getaffinity(0)) // num_workers - 1, MOST), 0)


class Crew:
    """A first mate that does jobs in order, and others that lend a hand with a job that can be divided."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._orders: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._calls: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=_obey, args=(self._orders if index == 0 else self._calls,), daemon=True)
            for index in range(size)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Have a job done after all that were submitted before it."""
        self._orders.put(job)

    def share(self, jobs: Sequence[Job]) -> None:
        """Do jobs in any order, together with mates that are free; return when all are done."""
        if len(jobs) < 2 or self.size < 2:
            for job in jobs:
                job()
            return
        rest = iter(jobs)  # taking the next one is a single step of the interpreter: nobody takes it twice
        done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def lend_a_hand() -> None:
            for job in rest:
                try:
                    job()
                    done.put(None)
                except BaseException as error:
                    done.put(error)

        for _ in range(min(self.size - 1, len(jobs) - 1)):
            self._calls.put(lend_a_hand)
        lend_a_hand()
        errors = [error for _ in jobs if (error := done.get()) is not None]
        if errors:
            raise errors[0]

    def close(self) -> None:
        self._orders.put(None)
        for _ in self._threads[1:]:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()


def _obey(orders: queue.SimpleQueue[Job | None]) -> None:
    while (job := orders.get()) is not None:
        job()
