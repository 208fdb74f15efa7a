"""A queue that runs asynchronous operations one after the other, as torch.distributed expects."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.comm.base import CommError

NO_LIMIT = timedelta(0)  # torch passes this value if the user gave no time limit


class WorkQueue:
    """Runs operations one after the other, in the order of the calls of `start`.

    An operation runs in the caller's thread, or in a thread of the queue while the caller computes. After a CommError
    every later operation fails with the same error, because the workers' queues are no longer at the same operation.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[QueuedWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._num_waiting = 0
        self._failure: CommError | None = None

    def start(self, what: str, do: Callable[[], None], result: list[Any], *, is_blocking: bool) -> QueuedWork:
        """Run the operation `do` now if the caller waits for it anyway and no other operation is queued; else queue it.

        `is_blocking` tells whether the caller immediately waits for the operation, which may then run in the caller's
        thread. `result` is the result of the returned work. `what` is the operation's name in error messages.
        """
        if is_blocking and threading.current_thread() is self._thread:
            raise RuntimeError(f"{what} in a callback of another operation would wait for itself; use async_op=True")
        work = QueuedWork(what, do, result)
        if self._failure is not None:
            work.finish(self._failure)  # immediately, even if the running operation blocks for long
            return work
        with self._lock:
            if not (is_blocking and self._num_waiting == 0):
                self._num_waiting += 1
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run_jobs, daemon=True, name="paceline-work-queue")
                    self._thread.start()
                self._jobs.put(work)
                return work
        self._run(work)
        return work

    def close(self) -> None:
        """Complete all queued operations and end the thread."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def abort(self) -> None:
        """Make all queued and later operations fail.

        An operation that is already running ends at its time limit at the latest.
        """
        self._failure = CommError("the process group was aborted")
        self._jobs.put(None)

    def _run_jobs(self) -> None:
        while (work := self._jobs.get()) is not None:
            self._run(work)
            with self._lock:
                self._num_waiting -= 1

    def _run(self, work: QueuedWork) -> None:
        error: Exception | None
        with self._turn:
            error = self._failure
            if error is None:
                try:
                    # Inference mode permits writes to parameters and to inference tensors.
                    with torch.inference_mode():
                        work.do()
                except CommError as comm_error:
                    error = self._failure = comm_error
                except Exception as other_error:
                    error = other_error
        work.finish(error)


class QueuedWork(dist.Work):
    """An operation in a WorkQueue, with the interface of torch.distributed's `Work`."""

    def __init__(self, what: str, do: Callable[[], None], result: list[Any]) -> None:
        super().__init__()
        self.do: Callable[[], None] = do
        self._what = what
        self._result = result
        self._done = threading.Event()
        self._error: Exception | None = None
        self._signal: torch.futures.Future[None] = torch.futures.Future()

    def finish(self, error: Exception | None) -> None:
        self._error = error
        del self.do  # it holds tensors
        self._done.set()
        self._signal.set_result(None)

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        limit_s = timeout.total_seconds() or None
        if not self._done.wait(limit_s):
            raise dist.DistBackendError(f"{self._what} was not complete after {limit_s:g} s")
        self._raise()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[Any]:
        self.wait()
        return self._result

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        # An error raised in a callback becomes the future's error; set_exception would store it as the future's value,
        # which DDP would use as the result.
        return self._signal.then(self._to_result)

    def _to_result(self, signal: torch.futures.Future[None]) -> list[Tensor]:
        del signal
        self._raise()
        return self._result

    def _raise(self) -> None:
        if isinstance(self._error, CommError):
            raise dist.DistBackendError(f"{self._what} failed: {self._error}") from self._error
        if self._error is not None:
            raise self._error
