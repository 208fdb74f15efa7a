"""Who is told of every operation of a comm, as it looks from one worker, and what the comm keeps for that.

An operation lasts from its call until it was complete for this worker. Meanwhile the worker's own thread may do other
things; while it does not, because it waits inside the comm, it is blocked.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Protocol

BACKGROUND_BYTES = 512 << 10  # from here on, a word from the comm's own thread is cheap beside the operation itself

NO_TIME_S = 2e-6  # a wait that found everything done
LAUNCH_S = 20e-6  # a call that began something and came back at once


class CommListener(Protocol):
    """Told when an operation is complete, and when the worker's own thread stood still for one.

    Times are those of `time.perf_counter`. `number` counts a worker's collectives, and messages by peer, tag and
    direction, so that the same number means the same operation on every worker.
    """

    step: int  # of which operations are wanted now; below 0, none are

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
        step: int,  # in which it began
    ) -> None: ...

    def blocked(
        self, op: str, peer: int | None, tag: int, begin: float, end: float, number: int, *, is_busy: bool = False
    ) -> None:
        """`is_busy`: the thread did not stand still for anybody, it moved or added numbers itself."""


class OperationNumbers:
    """Counts operations, so that each has the same number on all workers that take part in it."""

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
    """An operation that has begun."""

    __slots__ = ("begin", "listener", "medium", "nbytes", "number", "op", "peer", "step", "tag")

    def __init__(
        self, listener: CommListener, op: str, nbytes: int, peer: int | None, tag: int, number: int, medium: str
    ) -> None:
        self.listener, self.op, self.nbytes, self.peer, self.tag = listener, op, nbytes, peer, tag
        self.number, self.medium, self.step = number, medium, listener.step
        self.begin = perf_counter()

    def end(self, end: float) -> None:
        self.listener.op(
            self.op, self.nbytes, self.peer, self.tag, self.begin, end, self.number, self.medium, self.step
        )

    def blocked(self, begin: float, end: float, *, is_busy: bool = False) -> None:
        self.listener.blocked(self.op, self.peer, self.tag, begin, end, self.number, is_busy=is_busy)

    def launched(self) -> None:
        """The call that began it returns now: if that took long, the worker's own thread did a part of the work."""
        now = perf_counter()
        if now - self.begin > LAUNCH_S:
            self.blocked(self.begin, now, is_busy=True)

    def end_here(self) -> None:
        """Complete now; the worker's own thread was inside all the time."""
        end = perf_counter()
        self.end(end)
        self.blocked(self.begin, end)


class BackgroundWork:
    """Work that goes on while its worker does other things, and can say when it was complete."""

    completed: float | None = None  # when, as far as is known

    def watch(self) -> None:
        """From now on, take note of the moment of completion."""


class ObservedWork:
    """Work whose listener hears of it when it was waited for."""

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
        if span is None:  # waited for before
            self._work.wait()
            return
        self._span = None
        begin = perf_counter()
        completed = self._work.completed if self._background else None
        self._work.wait()
        end = perf_counter()
        span.end(end if completed is None else completed)
        if end - begin > NO_TIME_S:
            span.blocked(begin, end)


class LaunchedGroup:
    """Operations that torch's own code has begun together, and waits for by itself."""

    def __init__(self, work: Any, spans: list[OpenOperation]) -> None:
        self.work, self.spans = work, spans
        self.completed: float | None = None
        spans[0].launched()
        if sum(span.nbytes for span in spans) >= BACKGROUND_BYTES:
            work.get_future().add_done_callback(self._note)
        self.at = perf_counter()

    def look(self) -> None:
        """A small one that is seen to be complete was so by now at the latest."""
        if self.completed is None and self.work.is_completed():
            self.completed = perf_counter()

    def _note(self, future: Any) -> None:
        del future
        self.completed = perf_counter()


def settle(launched: list[LaunchedGroup], end: float) -> None:
    """Tell of operations that DDP began and waited for during a backward that ended then.

    DDP begins its last bucket when the last gradient is there, and then waits for all of them in order. So the worker
    is blocked from that last call on, for each in turn until it is complete. Small ones, of which
    no other thread sends word, are looked at when the next one begins; what was not complete then ends here with the
    backward.
    """
    free = launched[-1].at
    for item in launched:
        completed = end if item.completed is None else min(item.completed, end)
        for span in item.spans:
            span.end(completed)
        if completed > free:
            item.spans[0].blocked(free, completed)
            free = completed
