"""The interface of communication backends, which also counts everything that a strategy sends.

A comm implements point-to-point messages. Collectives have a default built on messages, which a comm may replace with a
native one. A strategy predicts operations; the comm converts operations to bytes on its medium.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from paceline.comm.listener import CommListener, LaunchedGroup, ObservedWork, OpenOperation, OperationNumbers, settle
from paceline.comm.reduction import Reduction, SharedVector
from paceline.errors import RunError


class CommError(RunError):
    """A peer did not answer in time or has ended; the cause is usually in that worker."""


class Work(Protocol):
    """A message or a collective in progress."""

    def wait(self) -> None: ...


class CompletedWork:
    """Work that was complete when it was started."""

    def wait(self) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class CommConfig:
    """What a worker needs to connect: its rank, its node and the rendezvous store of its world."""

    rank: int
    world_size: int
    store: Any
    node: str = "0"  # workers with the same value share a host
    local_rank: int = 0
    timeout_s: float = 60.0
    address: str = ""  # the local address that peers reach this worker at; empty lets the comm find one
    device: str = "cpu"


@dataclass(frozen=True)
class Operation:
    """One call of the comm on one worker, with the bytes of the whole tensor (not of what the medium transfers)."""

    op: str  # send, recv, all_reduce, reduce_scatter, broadcast, gather, scatter, all_gather
    nbytes: int
    peer: int | None = None  # the other end of a message, the root of a collective that has one


class Wire(NamedTuple):
    """Bytes that one worker sends and receives on the medium."""

    sent_bytes: int
    received_bytes: int


@dataclass
class Counter:
    """Operations counted by kind and peer."""

    nbytes: dict[tuple[str, int | None], int] = field(default_factory=dict)
    calls: dict[tuple[str, int | None], int] = field(default_factory=dict)

    def add(self, operation: Operation) -> None:
        key = (operation.op, operation.peer)
        self.nbytes[key] = self.nbytes.get(key, 0) + operation.nbytes
        self.calls[key] = self.calls.get(key, 0) + 1

    def clear(self) -> None:
        self.nbytes.clear()
        self.calls.clear()

    @staticmethod
    def of(operations: Iterable[Operation]) -> Counter:
        counter = Counter()
        for operation in operations:
            counter.add(operation)
        return counter


class Comm(ABC):
    """One worker's connection to its peers. Tensors must be contiguous; results are identical on every worker."""

    name: ClassVar[str] = ""
    between_processes: ClassVar[bool] = True  # whether workers may be processes
    between_nodes: ClassVar[bool] = True  # whether they may be on several hosts
    medium: ClassVar[str] = "network"  # or memory, if nothing leaves the host

    @classmethod
    def unavailable(cls) -> str:
        """Why this comm cannot be used on this machine; empty when it can."""
        return ""

    @classmethod
    def connect(cls, config: CommConfig) -> Comm:
        """Open a connection. Every worker of the world must call this at about the same time."""
        raise NotImplementedError(f"comm {cls.name} does not connect processes ({config})")

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.counter = Counter()
        self.listener: CommListener | None = None  # receives every counted operation
        self.launched: list[LaunchedGroup] = []  # operations that torch's own code started and waits for
        self._numbers = OperationNumbers()
        self._factors: dict[tuple[str, int | None], tuple[float, float]] = {}
        self._counting = True

    # Point to point. Messages between two workers with the same tag arrive in the order in which they were sent.

    def isend(self, tensor: Tensor, peer: int, tag: int = 0) -> Work:
        span = self._begin("send", tensor, peer, tag)
        work = self._isend(tensor, peer, tag)
        return work if span is None else self._observed(work, span)

    def irecv(self, tensor: Tensor, peer: int, tag: int = 0) -> Work:
        span = self._begin("recv", tensor, peer, tag)
        work = self._irecv(tensor, peer, tag)
        return work if span is None else self._observed(work, span)

    def send(self, tensor: Tensor, peer: int, tag: int = 0) -> None:
        self.isend(tensor, peer, tag).wait()

    def recv(self, tensor: Tensor, peer: int, tag: int = 0) -> None:
        self.irecv(tensor, peer, tag).wait()

    def recv_any(self, tensor: Tensor, tag: int = 0) -> int:
        """Receive from whichever peer sends first; return its rank."""
        begin = perf_counter()
        peer = self._recv_any(tensor, tag)
        span = self._begin("recv", tensor, peer, tag)
        if span is not None:
            span.begin = begin
            span.end_here()
        return peer

    # Collectives. Every worker calls them in the same order.

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum over workers, in config."""
        span = self._begin("all_reduce", tensor)
        self._all_reduce(tensor)
        if span is not None:
            span.end_here()

    def iall_reduce(self, tensor: Tensor) -> Work:
        """Start an all-reduce; do not read or write the tensor before the work has been waited for."""
        span = self._begin("all_reduce", tensor)
        work = self._iall_reduce(tensor)
        return work if span is None else self._observed(work, span)

    def ireduce_scatter(self, output: Tensor, tensor: Tensor) -> Work:
        """Start a reduce-scatter: `output` receives this worker's part, of N equal parts, of the sum.

        `output` may be a view of this worker's own part of `tensor`.
        """
        assert output.numel() * self.world_size == tensor.numel(), "parts of a reduce-scatter are equal"
        span = self._begin("reduce_scatter", tensor)
        work = self._ireduce_scatter(output, tensor)
        return work if span is None else self._observed(work, span)

    def reduce_scatter(self, output: Tensor, tensor: Tensor) -> None:
        self.ireduce_scatter(output, tensor).wait()

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        span = self._begin("broadcast", tensor, root)
        self._broadcast(tensor, root)
        if span is not None:
            span.end_here()

    def gather(self, tensor: Tensor, root: int = 0) -> list[Tensor]:
        """Return all workers' tensors in order of rank on the root, an empty list elsewhere."""
        span = self._begin("gather", tensor, root)
        gathered = self._gather(tensor, root)
        if span is not None:
            span.end_here()
        return gathered

    def scatter(self, tensor: Tensor, pieces: list[Tensor], root: int = 0) -> None:
        """Fill each worker's tensor with its piece of the root's list; `pieces` is empty on the other workers."""
        span = self._begin("scatter", tensor, root)
        self._scatter(tensor, pieces, root)
        if span is not None:
            span.end_here()

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return all workers' tensors in order of rank."""
        span = self._begin("all_gather", tensor)
        gathered = self._all_gather(tensor)
        if span is not None:
            span.end_here()
        return gathered

    def barrier(self) -> None:
        span = self._open("barrier", 0) if self._counting else None
        self._barrier()
        if span is not None:
            span.end_here()

    def progress(self) -> None:
        """Advance pending operations without blocking, for comms that move bytes in the worker's own thread."""

    def settle(self, end: float) -> None:
        """Report the operations that torch's own code started and waited for in a backward that ended at `end`."""
        if self.launched:
            launched, self.launched = self.launched, []
            settle(launched, end)

    # Memory that the comm can reduce or share without a copy. Every worker must allocate in the same order.

    def reduction(self, numel: int, dtype: torch.dtype, device: torch.device, *, shared: bool = False) -> Reduction:
        """Allocate a vector of zeros that is summed over workers repeatedly.

        With `shared`, the sum may be placed in memory that peers read too, so the caller must not write to it.
        """
        del shared
        return Reduction(self, torch.zeros(numel, dtype=dtype, device=device))

    def shared_vector(self, numel: int, dtype: torch.dtype, device: torch.device) -> SharedVector:
        """Allocate a vector of zeros of which each worker writes its own parts and reads all parts."""
        return SharedVector(self, torch.zeros(numel, dtype=dtype, device=device))

    # Arithmetic on received tensors is part of the cost of synchronising, so a simulated comm can charge for it.

    def add(self, target: Tensor, other: Tensor) -> None:
        target.add_(other)

    def mix(self, target: Tensor, other: Tensor, share: float) -> None:
        """Move `target` towards `other` by the fraction `share`; equal elements keep their bits."""
        target.lerp_(other, share)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Exclude traffic that is not part of a strategy: initial weights, evaluation, statistics."""
        before, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = before

    def wire(self) -> Wire:
        """Return the bytes on the medium of everything counted so far. Cheap, because it is called after every step."""
        sent = received = 0.0
        for key, nbytes in self.counter.nbytes.items():
            factors = self._factors.get(key)
            if factors is None:
                factors = self._factors[key] = self.wire_factors(*key, self.rank, self.world_size)
            sent += factors[0] * nbytes
            received += factors[1] * nbytes
        return Wire(round(sent), round(received))

    @classmethod
    def predict(cls, counter: Counter, rank: int, world_size: int) -> Wire:
        """Return the bytes that counted operations of one worker put on this comm's medium."""
        sent = received = 0.0
        for (op, peer), nbytes in counter.nbytes.items():
            out, into = cls.wire_factors(op, peer, rank, world_size)
            sent += out * nbytes
            received += into * nbytes
        return Wire(round(sent), round(received))

    @classmethod
    def wire_factors(cls, op: str, peer: int | None, rank: int, world_size: int) -> tuple[float, float]:
        """Return sent and received bytes per byte of the tensor, here for the default implementations below."""
        others = world_size - 1
        is_root = rank == (peer or 0)
        factors = {
            "send": (1, 0),
            "recv": (0, 1),
            "broadcast": (others, 0) if is_root else (0, 1),
            "gather": (0, others) if is_root else (1, 0),
            "scatter": (others, 0) if is_root else (0, 1),
            "all_reduce": (others, others) if is_root else (1, 1),
            "reduce_scatter": (others / world_size, others / world_size),
            "all_gather": (others, others),
        }
        return factors[op]

    @classmethod
    def sent_to(cls, op: str, peer: int | None, rank: int, world_size: int) -> dict[int, float]:
        """Return, by receiving rank, the bytes that a worker sends in an operation per byte of the tensor."""
        sent, _ = cls.wire_factors(op, peer, rank, world_size)
        root = peer or 0
        if op == "send":
            return {root: sent}
        if op in ("gather", "all_reduce") and rank != root:
            return {root: sent}
        return cls.spread_evenly(sent, rank, world_size)

    @staticmethod
    def spread_evenly(sent: float, rank: int, world_size: int) -> dict[int, float]:
        """Divide sent bytes equally among the other workers."""
        return {other: sent / (world_size - 1) for other in range(world_size) if other != rank} if sent else {}

    def process_group(self) -> Any:
        """Return a torch.distributed process group on this comm that counts its traffic.

        Raises NotImplementedError where the comm cannot provide one.
        """
        raise NotImplementedError(f"comm {self.name} has no torch process group")

    def close(self) -> None:
        """Close connections; the comm cannot be used afterwards."""

    # To be implemented by every comm.

    @abstractmethod
    def _isend(self, tensor: Tensor, peer: int, tag: int) -> Work: ...

    @abstractmethod
    def _irecv(self, tensor: Tensor, peer: int, tag: int) -> Work: ...

    @abstractmethod
    def _recv_any(self, tensor: Tensor, tag: int) -> int: ...

    # Defaults that a comm may replace.

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
        receives = [self._irecv(received[peer], peer, _COLLECTIVE) for peer in self._others()]
        sends = [self._isend(parts[peer], peer, _COLLECTIVE) for peer in self._others()]
        return _Summing(self, output, parts[self.rank], received, receives + sends)

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        if self.rank == root:
            _wait_all([self._isend(tensor, peer, _COLLECTIVE) for peer in self._others()])
        else:
            self._irecv(tensor, root, _COLLECTIVE).wait()

    def _gather(self, tensor: Tensor, root: int) -> list[Tensor]:
        if self.rank != root:
            self._isend(tensor, root, _COLLECTIVE).wait()
            return []
        pieces = [tensor if rank == root else torch.empty_like(tensor) for rank in range(self.world_size)]
        _wait_all([self._irecv(pieces[peer], peer, _COLLECTIVE) for peer in self._others()])
        return pieces

    def _scatter(self, tensor: Tensor, pieces: list[Tensor], root: int) -> None:
        if self.rank != root:
            self._irecv(tensor, root, _COLLECTIVE).wait()
            return
        _wait_all([self._isend(pieces[peer], peer, _COLLECTIVE) for peer in self._others()])
        tensor.copy_(pieces[root])

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        pieces = [tensor if rank == self.rank else torch.empty_like(tensor) for rank in range(self.world_size)]
        sends = [self._isend(tensor, peer, _COLLECTIVE) for peer in self._others()]
        _wait_all(sends + [self._irecv(pieces[peer], peer, _COLLECTIVE) for peer in self._others()])
        return pieces

    def _others(self) -> list[int]:
        return [peer for peer in range(self.world_size) if peer != self.rank]

    def _begin(self, op: str, tensor: Tensor, peer: int | None = None, tag: int = 0) -> OpenOperation | None:
        return self._begin_bytes(op, tensor.numel() * tensor.element_size(), peer, tag)

    def _begin_bytes(self, op: str, nbytes: int, peer: int | None = None, tag: int = 0) -> OpenOperation | None:
        """Count an operation; return its span if a listener records it."""
        if not self._counting:
            return None
        self.counter.add(Operation(op, nbytes, peer))
        return self._open(op, nbytes, peer, tag)

    def _open(self, op: str, nbytes: int, peer: int | None = None, tag: int = 0) -> OpenOperation | None:
        listener = self.listener
        if listener is None:
            return None
        number = self._numbers.next(
            op, peer, tag
        )  # in every step, so that numbers match between workers at different steps
        if listener.step < 0:
            return None
        return OpenOperation(listener, op, nbytes, peer, tag, number, self._medium(op, peer))

    def _medium(self, op: str, peer: int | None) -> str:  # noqa: ARG002
        return self.medium

    def _observed(self, work: Work, span: OpenOperation) -> Work:
        if isinstance(work, CompletedWork):  # done during the call
            span.end_here()
            return work
        return ObservedWork(work, span)


@dataclass
class _Summing:
    """A reduce-scatter in progress that adds the parts in order of rank when all have arrived."""

    comm: Comm
    output: Tensor
    own: Tensor
    received: Tensor
    works: list[Work]

    def wait(self) -> None:
        _wait_all(self.works)
        self.received[self.comm.rank].copy_(self.own)
        self.output.copy_(self.received[0])
        for part in self.received[1:]:
            self.comm.add(self.output, part)


_COLLECTIVE = 0x7C01  # tag of the default collectives, distinct from the tags of strategies


def _wait_all(works: list[Work]) -> None:
    for work in works:
        work.wait()
