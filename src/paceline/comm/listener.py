"""Who is told of every operation of a comm, as it looks from one worker."""

from __future__ import annotations

from typing import Protocol


class Listener(Protocol):
    """Told when an operation is complete, and when the worker's own thread stood still for one.

    Times are those of `time.perf_counter`. `number` counts a worker's collectives, and messages by peer, tag and
    direction, so that the same number means the same operation on every worker. Threads of the comm call this too.
    """

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
    ) -> None: ...

    def blocked(self, op: str, peer: int | None, tag: int, begin: float, end: float, number: int) -> None: ...
