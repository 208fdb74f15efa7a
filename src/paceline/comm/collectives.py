"""Defaults for communication backends: collectives that consist of messages, and vectors in private memory.

A communication backend (comm) overrides the methods for which it has a faster implementation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from paceline.comm.base import Comm

COLLECTIVE_TAG = 0x7C01  # tag of the default collectives, distinct from the tags of strategies


class Work(Protocol):
    """A message or a collective in progress."""

    def wait(self) -> None: ...


class CompletedWork:
    """Work that was already complete when the call that started it returned."""

    def wait(self) -> None:
        return None


class MessageCollectives(ABC):
    """Base class of `Comm`: collectives built from messages between workers. Its methods do not count traffic."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size

    @abstractmethod
    def _isend(self, tensor: Tensor, peer: int, tag: int) -> Work: ...

    @abstractmethod
    def _irecv(self, tensor: Tensor, peer: int, tag: int) -> Work: ...

    @abstractmethod
    def _recv_any(self, tensor: Tensor, tag: int) -> int: ...

    def add(self, target: Tensor, other: Tensor) -> None:
        """Add a received tensor to `target` in place."""
        target.add_(other)

    def mix(self, target: Tensor, other: Tensor, share: float) -> None:
        """Interpolate `target` towards `other` by the fraction `share`, in place.

        Elements that are equal in both tensors do not change.
        """
        target.lerp_(other, share)

    def _barrier(self) -> None:
        self._all_reduce(torch.zeros(1))

    def _all_reduce(self, tensor: Tensor) -> None:
        for piece in self._gather(tensor, 0)[1:]:
            tensor.add_(piece)
        self._broadcast(tensor, 0)

    def _iall_reduce(self, tensor: Tensor) -> Work:
        self._all_reduce(tensor)
        return CompletedWork()

    def _ireduce_scatter(self, output: Tensor, tensor: Tensor) -> Work:
        parts = tensor.view(self.world_size, output.numel())
        received = torch.empty_like(parts)
        receives = [self._irecv(received[peer], peer, COLLECTIVE_TAG) for peer in self._others()]
        sends = [self._isend(parts[peer], peer, COLLECTIVE_TAG) for peer in self._others()]
        return _SumOfParts(self, output, parts[self.rank], received, receives + sends)

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        if self.rank == root:
            wait_all([self._isend(tensor, peer, COLLECTIVE_TAG) for peer in self._others()])
        else:
            self._irecv(tensor, root, COLLECTIVE_TAG).wait()

    def _gather(self, tensor: Tensor, root: int) -> list[Tensor]:
        if self.rank != root:
            self._isend(tensor, root, COLLECTIVE_TAG).wait()
            return []
        pieces = [tensor if rank == root else torch.empty_like(tensor) for rank in range(self.world_size)]
        wait_all([self._irecv(pieces[peer], peer, COLLECTIVE_TAG) for peer in self._others()])
        return pieces

    def _scatter(self, tensor: Tensor, pieces: list[Tensor], root: int) -> None:
        if self.rank != root:
            self._irecv(tensor, root, COLLECTIVE_TAG).wait()
            return
        wait_all([self._isend(pieces[peer], peer, COLLECTIVE_TAG) for peer in self._others()])
        tensor.copy_(pieces[root])

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        pieces = [tensor if rank == self.rank else torch.empty_like(tensor) for rank in range(self.world_size)]
        sends = [self._isend(tensor, peer, COLLECTIVE_TAG) for peer in self._others()]
        wait_all(sends + [self._irecv(pieces[peer], peer, COLLECTIVE_TAG) for peer in self._others()])
        return pieces

    def _others(self) -> list[int]:
        return [peer for peer in range(self.world_size) if peer != self.rank]


@dataclass
class _SumOfParts:
    """A reduce-scatter in progress: `wait` adds all workers' contributions to this worker's slice, in order of rank."""

    comm: MessageCollectives
    output: Tensor
    own: Tensor  # this worker's contribution to its own slice
    received: Tensor  # one row per worker: the worker's contribution to this worker's slice
    works: list[Work]

    def wait(self) -> None:
        wait_all(self.works)
        self.received[self.comm.rank].copy_(self.own)
        self.output.copy_(self.received[0])
        for part in self.received[1:]:
            self.comm.add(self.output, part)


def wait_all(works: Sequence[Work]) -> None:
    for work in works:
        work.wait()


class Reduction:
    """A vector, such as a model's gradients, that workers sum in every step.

    The vector is summed range by range, so that the first ranges are summed while backward computes the other ranges. A
    range is a contiguous slice `begin:end` of the vector, such as a gradient bucket.
    """

    def __init__(self, comm: Comm, own: Tensor) -> None:
        self.comm = comm
        self.own = own  # this worker's contribution
        self.result = own  # the sums; by default they replace the contribution

    def start(self, begin: int, end: int, fill: Callable[[], None] | None = None) -> Work:
        """Start to sum the range `begin:end` over all workers, and return the work to wait for.

        Every worker must start the same ranges in the same order. If `fill` is passed, it is called before the sum,
        possibly in another thread. It must fill `own[begin:end]` with this worker's values.
        """
        if fill is not None:
            fill()
        return self.comm.iall_reduce(self.own[begin:end])

    def start_scatter(self, begin: int, end: int, fill: Callable[[], None] | None = None) -> Work:
        """Start a reduce-scatter of the range `begin:end`, and return the work to wait for.

        Afterwards, only the slice of `result` that `part` returns holds the sum. For `fill`, see `start`.
        """
        if fill is not None:
            fill()
        part = self.part(begin, end)
        return self.comm.ireduce_scatter(self.result[part], self.own[begin:end])

    def part(self, begin: int, end: int) -> slice:
        """Return this worker's slice of a range. A range has one slice of equal size per worker, in order of rank."""
        size = (end - begin) // self.comm.world_size
        return slice(begin + self.comm.rank * size, begin + (self.comm.rank + 1) * size)


class SharedVector:
    """A vector that all workers fill: each worker writes its own slices, and gets the other slices by `gather`.

    In this class each worker has its own copy of the vector. A comm with shared memory provides a subclass in which all
    workers use the same memory.
    """

    is_one_memory: ClassVar[bool] = False  # whether all workers use the same memory

    def __init__(self, comm: Comm, memory: Tensor) -> None:
        self.comm = comm
        self.memory = memory

    def gather(self, ranges: Sequence[tuple[int, int]]) -> None:
        """All-gather each range `(begin, end)` of the vector.

        A range is divided into equal slices, one per worker, in order of rank. Every worker must write its own
        slice before the call. The call provides the other slices.
        """
        for begin, end in ranges:
            size = (end - begin) // self.comm.world_size
            mine = begin + self.comm.rank * size
            parts = self.comm.all_gather(self.memory[mine : mine + size])
            for rank, part in enumerate(parts):
                if rank != self.comm.rank:
                    self.memory[begin + rank * size : begin + (rank + 1) * size].copy_(part)
