"""Measure the times of a comm's operations, and report them to a listener, such as the recorder of `paceline.measure`.

An operation lasts from its call until it is complete on this worker. Meanwhile the worker's own thread (which runs the
training loop) can continue; the thread is blocked only while it waits for the comm or runs code of the comm.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Protocol

# For operations of at least this size, a callback at completion costs little compared with the operation itself.
BACKGROUND_BYTES = 512 << 10

NO_WAIT_S = 2e-6  # a shorter wait means that the operation was complete already
LAUNCH_S = 20e-6  # a shorter call only started the operation


class CommListener(Protocol):
    """Interface to which a comm reports completed operations, and intervals in which operations block the worker.

    Times are those of `time.perf_counter`, in seconds. `number` is the index of an operation among the worker's
    collectives or, for a message, among the worker's messages with the same peer, tag and direction. An operation
    therefore has the same number on all workers that take part in it.
    """

    step: int  # the current training step; negative: operations are not recorded

    def op(
        self,
        op: str,
        nbytes: int,
        peer: int | None,
        tag: int,
        begin: float,
        end: float,
        number: int,
        medium: str,  # memory or network
        step: int,  # the step in which the operation began
    ) -> None: ...

    def blocked(
        self, op: str, peer: int | None, tag: int, begin: float, end: float, number: int, *, is_busy: bool = False
    ) -> None:
        """Record an interval in which the operation blocked the worker's own thread.

        `is_busy`: the thread copied or added data in this interval instead of waiting for a peer.
        """


class OperationNumbers:
    """Numbers one worker's operations, so that an operation has the same number on all workers that take part in it."""

    def __init__(self) -> None:
        self._collectives = 0
        self._messages: dict[tuple[str, int | None, int], int] = {}

    def next(self, op: str, peer: int | None, tag: int) -> int:
        if op in ("send", "recv"):
            key = (op, peer, tag)
            number = self._messages.get(key, 0)
            self._messages[key] = number + 1
            return number
        number = self._collectives
        self._collectives = number + 1
        return number


class OpenOperation:
    """An operation that has begun, with methods that report its times to the listener.

    If the operation is used in a `with` statement, `end_here` is called when the block ends without an exception.
    """

    __slots__ = ("begin", "listener", "medium", "nbytes", "number", "op", "peer", "step", "tag")

    def __init__(
        self, listener: CommListener, op: str, nbytes: int, peer: int | None, tag: int, number: int, medium: str
    ) -> None:
        self.listener, self.op, self.nbytes, self.peer, self.tag = listener, op, nbytes, peer, tag
        self.number, self.medium, self.step = number, medium, listener.step
        self.begin = perf_counter()

    def __enter__(self) -> OpenOperation:
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        if error_type is None:
            self.end_here()

    def end(self, end: float) -> None:
        """Report that the operation was complete at the time `end`."""
        self.listener.op(
            self.op, self.nbytes, self.peer, self.tag, self.begin, end, self.number, self.medium, self.step
        )

    def blocked(self, begin: float, end: float, *, is_busy: bool = False) -> None:
        """Report an interval in which the operation blocked the worker's own thread."""
        self.listener.blocked(self.op, self.peer, self.tag, begin, end, self.number, is_busy=is_busy)

    def launched(self) -> None:
        """Report the call that started the operation as blocked time, if the call took longer than LAUNCH_S."""
        now = perf_counter()
        if now - self.begin > LAUNCH_S:
            self.blocked(self.begin, now, is_busy=True)

    def end_here(self) -> None:
        """Report the operation as complete now, and the worker's own thread as blocked since the operation began."""
        end = perf_counter()
        self.end(end)
        self.blocked(self.begin, end)


class BackgroundWork:
    """Asynchronous work whose time of completion can be recorded, even if no thread waits for it."""

    completed: float | None = None  # time of completion; None if it is not known (yet)

    def watch(self) -> None:
        """Arrange that `completed` is set when the work is complete, and return immediately. By default do nothing."""


class ObservedWork:
    """Work that reports its operation to the listener when `wait` is called."""

    __slots__ = ("_background", "_span", "_work")

    def __init__(self, work: Any, span: OpenOperation) -> None:
        self._work = work
        self._span: OpenOperation | None = span
        self._background = isinstance(work, BackgroundWork)
        span.launched()
        if self._background and span.nbytes >= BACKGROUND_BYTES:
            work.watch()

    def wait(self) -> None:
        span = self._span
        if span is None:  # an earlier call has waited and reported
            self._work.wait()
            return
        self._span = None
        begin = perf_counter()
        completed = self._work.completed if self._background else None
        self._work.wait()
        end = perf_counter()
        span.end(end if completed is None else completed)
        if end - begin > NO_WAIT_S:
            span.blocked(begin, end)


class LaunchedGroup:
    """Operations that DDP starts in one call of the process group. DDP waits for them in C++, not through the comm."""

    def __init__(self, work: Any, spans: list[OpenOperation]) -> None:
        self.work, self.spans = work, spans
        self.completed: float | None = None
        spans[0].launched()
        if sum(span.nbytes for span in spans) >= BACKGROUND_BYTES:
            work.get_future().add_done_callback(self._set_completed)
        self.launched_at = perf_counter()

    def check(self) -> None:
        """Set `completed` to the current time if the work is complete and `completed` is not set yet.

        This is for groups of less than BACKGROUND_BYTES, because they have no callback that sets `completed`.
        """
        if self.completed is None and self.work.is_completed():
            self.completed = perf_counter()

    def _set_completed(self, future: Any) -> None:
        del future
        self.completed = perf_counter()


def settle(launched: list[LaunchedGroup], end: float) -> None:
    """Report when the operations that DDP started in a backward were complete, and when they blocked the worker.

    The backward ended at `end`. A group has the operations that DDP started in one call, such as those of one bucket.
    DDP starts the last group after the last gradient, and then waits for all groups in order. So the wait for the first
    group begins when DDP has started the last group. The wait for each later group begins when all groups before it are
    complete.

    Groups below BACKGROUND_BYTES are checked only when DDP starts a later group. If such a group was not complete at
    its last check, or was never checked, it is reported as complete at `end`.
    """
    blocked_from = launched[-1].launched_at
    for group in launched:
        completed = end if group.completed is None else min(group.completed, end)
        for span in group.spans:
            span.end(completed)
        if completed > blocked_from:
            group.spans[0].blocked(blocked_from, completed)
            blocked_from = completed
