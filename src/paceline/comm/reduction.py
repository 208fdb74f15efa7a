"""Memory that a comm lends to strategies, in its plain form: tensors of the worker's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

if TYPE_CHECKING:
    from paceline.comm.base import Comm, Work


class Reduction:
    """A vector that every worker holds, summed over workers range by range: a range starts when it is complete."""

    def __init__(self, comm: Comm, own: Tensor) -> None:
        self.comm = comm
        self.own = own  # what this worker adds
        self.result = own  # where sums appear

    def start(self, begin: int, end: int, fill: Callable[[], None] | None = None) -> Work:
        """Begin to sum a range. Every worker starts the same ranges in the same order.

        `fill`, when given, puts this worker's numbers into `own` first; it may be called by another thread.
        """
        if fill is not None:
            fill()
        return self.comm.iall_reduce(self.own[begin:end])

    def start_scatter(self, begin: int, end: int, fill: Callable[[], None] | None = None) -> Work:
        """As `start`, but only this worker's of N equal parts of the range is needed in the result."""
        if fill is not None:
            fill()
        part = self.part(begin, end)
        return self.comm.ireduce_scatter(self.result[part], self.own[begin:end])

    def part(self, begin: int, end: int) -> slice:
        """This worker's part of a range."""
        size = (end - begin) // self.comm.world_size
        return slice(begin + self.comm.rank * size, begin + (self.comm.rank + 1) * size)


class SharedVector:
    """A vector that is the same for all workers after each `gather`: one memory where the comm has it, else copies."""

    is_one_memory: ClassVar[bool] = False

    def __init__(self, comm: Comm, memory: Tensor) -> None:
        self.comm = comm
        self.memory = memory

    def gather(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Every worker has written its of N equal parts of each range; bring them to everybody."""
        for begin, end in ranges:
            size = (end - begin) // self.comm.world_size
            mine = begin + self.comm.rank * size
            parts = self.comm.all_gather(self.memory[mine : mine + size])
            for rank, part in enumerate(parts):
                if rank != self.comm.rank:
                    self.memory[begin + rank * size : begin + (rank + 1) * size].copy_(part)
