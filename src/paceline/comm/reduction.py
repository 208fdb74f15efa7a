"""Repeated reductions and shared vectors of a comm; the default uses the worker's own memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

if TYPE_CHECKING:
    from paceline.comm.base import Comm, Work


class Reduction:
    """A vector that is summed over workers range by range, each range as soon as the worker has filled it."""

    def __init__(self, comm: Comm, own: Tensor) -> None:
        self.comm = comm
        self.own = own  # this worker's contribution
        self.result = own  # the sums

    def start(self, begin: int, end: int, fill: Callable[[], None] | None = None) -> Work:
        """Start the sum of a range. Every worker must start the same ranges in the same order.

        `fill` writes this worker's contribution to `own` before the sum; it may be called in another thread.
        """
        if fill is not None:
            fill()
        return self.comm.iall_reduce(self.own[begin:end])

    def start_scatter(self, begin: int, end: int, fill: Callable[[], None] | None = None) -> Work:
        """Start a reduce-scatter: the result holds only this worker's part of N equal parts of the range."""
        if fill is not None:
            fill()
        part = self.part(begin, end)
        return self.comm.ireduce_scatter(self.result[part], self.own[begin:end])

    def part(self, begin: int, end: int) -> slice:
        """Return this worker's part of a range."""
        size = (end - begin) // self.comm.world_size
        return slice(begin + self.comm.rank * size, begin + (self.comm.rank + 1) * size)


class SharedVector:
    """A vector that is equal on all workers after each `gather`: in shared memory if the comm has it, else copies."""

    is_one_memory: ClassVar[bool] = False

    def __init__(self, comm: Comm, memory: Tensor) -> None:
        self.comm = comm
        self.memory = memory

    def gather(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Exchange the N equal parts of each range, of which each worker has written its own."""
        for begin, end in ranges:
            size = (end - begin) // self.comm.world_size
            mine = begin + self.comm.rank * size
            parts = self.comm.all_gather(self.memory[mine : mine + size])
            for rank, part in enumerate(parts):
                if rank != self.comm.rank:
                    self.memory[begin + rank * size : begin + (rank + 1) * size].copy_(part)
