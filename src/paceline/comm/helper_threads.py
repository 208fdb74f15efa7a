"""Helper threads with which comm `shm` copies and adds tensors on free cores.

The threads' jobs are torch operations, which release the interpreter lock; between jobs the threads wait in native
code. A long tensor is divided into blocks, which several threads process in parallel.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Block = TypeVar("Block")
Job = Callable[[], None]
WhenDone = Callable[[BaseException | None], object]  # receives the error, if any
MAX_HELPERS = 3  # beyond this, memory bandwidth is the limit


def spare_cores(num_workers: int) -> int:
    """Return how many helper threads each worker of this host can have without sharing cores: 0 to MAX_HELPERS."""
    return max(min(len(os.sched_getaffinity(0)) // num_workers - 1, MAX_HELPERS), 0)


class HelperThreads:
    """A worker's helper threads: an ordered thread for queued jobs, and other threads for shared jobs.

    The ordered thread runs queued jobs one after the other. The other threads process blocks of shared jobs in
    parallel.
    """

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
        """Queue a job for the ordered thread, which runs jobs in the order of their submission."""
        self._jobs.put(job)

    def share(self, job: Job, count: int) -> None:
        """Let up to `count` threads other than the ordered thread call `job`, which is a SharedJob's method `run`."""
        for _ in range(min(count, self.size - 1)):
            self._shared_jobs.put(job)

    def close(self) -> None:
        self._jobs.put(None)
        for _ in self._threads[1:]:
            self._shared_jobs.put(None)
        for thread in self._threads:
            thread.join()


class SharedJob(Generic[Block]):
    """A job divided into blocks. Every thread that calls `run` processes blocks until none is left.

    The thread that completes the last block calls `when_done` with the error of a failed block, or with None if no
    block failed. If there are no blocks, the constructor calls `when_done`.
    """

    def __init__(self, blocks: Sequence[Block], do: Callable[[Block], object], when_done: WhenDone) -> None:
        self._remaining = iter(blocks)  # next() is atomic under the interpreter lock: no block is processed twice
        self._do = do
        self._lock = threading.Lock()
        self._unfinished = len(blocks)
        self._when_done = when_done
        self._error: BaseException | None = None
        if not blocks:
            when_done(None)

    @property
    def num_unfinished(self) -> int:
        return self._unfinished

    def run(self) -> None:
        for block in self._remaining:
            try:
                self._do(block)
            except BaseException as error:  # `when_done` receives it
                self._error = error
            with self._lock:
                self._unfinished -= 1
                is_last = self._unfinished == 0
            if is_last:
                self._when_done(self._error)


def _run_jobs(jobs: queue.SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
