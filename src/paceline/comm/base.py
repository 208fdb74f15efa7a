"""How bytes move between workers. Everything that a strategy sends goes through here, so here it is counted.

A comm implements point-to-point messages; collectives have a plain form built on those, which a comm may replace
with a native one. A strategy predicts operations; the comm says how many bytes an operation puts on its medium.
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
    """A peer did not answer in time or is gone: the cause is usually another worker."""


class Work(Protocol):
    """A message or a collective under way."""

    def wait(self) -> None: ...


class CompletedWork:
    """Work that was complete when it was started."""

    def wait(self) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class CommConfig:
    """Where a worker stands when it connects: its rank, its node, and the store at which its world meets."""

    rank: int
    world_size: int
    store: Any
    node: str = "0"  # workers with the same name here share a host
    local_rank: int = 0
    timeout_s: float = 60.0
    address: str = ""  # the local address that peers reach this worker at; empty lets the comm find one
    device: str = "cpu"


@dataclass(frozen=True)
class Operation:
    """One call of the comm as one worker sees it: a whole tensor's bytes, whatever the medium makes of them."""

    op: str  # send, recv, all_reduce, reduce_scatter, broadcast, gather, scatter, all_gather
    nbytes: int
    peer: int | None = None  # the other end of a message, the root of a collective that has one


class Wire(NamedTuple):
    """Bytes that one worker puts on the medium and takes from it."""

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
    """One worker's connection to its peers. Tensors must be contiguous; results are equal on every worker."""

    name: ClassVar[str] = ""
    between_processes: ClassVar[bool] = True  # whether workers may be processes
    between_nodes: ClassVar[bool] = True  # whether they may be on several hosts
    medium: ClassVar[str] = "network"  # or memory, where nothing leaves the host

    @classmethod
    def unavailable(cls) -> str:
        """Why this comm cannot be used on this machine; empty when it can."""
        return ""

    @classmethod
    def connect(cls, config: CommConfig) -> Comm:
        """A fresh connection; every worker of the world calls it at about the same time."""
        raise NotImplementedError(f"comm {cls.name} does not connect processes ({config})")

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.counter = Counter()
        self.listener: CommListener | None = None  # told of every counted operation
        self.launched: list[LaunchedGroup] = []  # what torch's own code has begun, and waits for by itself
        self._numbers = OperationNumbers()
        self._factors: dict[tuple[str, int | None], tuple[float, float]] = {}
        self._counting = True

    # Point to point. Messages between two workers with one tag arrive in the order in which they were sent.

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
        """Receive from whoever sends first; says who it was."""
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
        """The same, begun: the tensor is neither read nor written until the work was waited for."""
        span = self._begin("all_reduce", tensor)
        work = self._iall_reduce(tensor)
        return work if span is None else self._observed(work, span)

    def ireduce_scatter(self, output: Tensor, tensor: Tensor) -> Work:
        """Begin to sum over workers; `output` receives this worker's of N equal parts of the sum.

        `output` may lie inside `tensor`, at this worker's own part of it.
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
        """Everybody's tensor in order of rank on the root; an empty list elsewhere."""
        span = self._begin("gather", tensor, root)
        gathered = self._gather(tensor, root)
        if span is not None:
            span.end_here()
        return gathered

    def scatter(self, tensor: Tensor, pieces: list[Tensor], root: int = 0) -> None:
        """Fill everybody's tensor with its own piece of the root's list (empty elsewhere)."""
        span = self._begin("scatter", tensor, root)
        self._scatter(tensor, pieces, root)
        if span is not None:
            span.end_here()

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Everybody's tensor in order of rank."""
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
        """Drive what was begun, without waiting; for comms that move bytes in the workers' own threads."""

    def settle(self, end: float) -> None:
        """A backward has ended then: whatever torch's own code began in it, it has waited for."""
        if self.launched:
            launched, self.launched = self.launched, []
            settle(launched, end)

    # Memory that the comm likes best. Every worker asks for it in the same order.

    def reduction(self, numel: int, dtype: torch.dtype, device: torch.device, *, shared: bool = False) -> Reduction:
        """A vector of zeros to be summed over workers again and again.

        `shared` allows the sum to appear in memory that peers read too: nobody may write to it.
        """
        del shared
        return Reduction(self, torch.zeros(numel, dtype=dtype, device=device))

    def shared_vector(self, numel: int, dtype: torch.dtype, device: torch.device) -> SharedVector:
        """A vector of zeros of which every worker writes its own parts and reads all."""
        return SharedVector(self, torch.zeros(numel, dtype=dtype, device=device))

    # Arithmetic on what was received belongs to the cost of agreeing, so it has a name here.

    def add(self, target: Tensor, other: Tensor) -> None:
        target.add_(other)

    def mix(self, target: Tensor, other: Tensor, share: float) -> None:
        """The target moves that share of the way to the other; where they are equal it keeps its bits."""
        target.lerp_(other, share)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Bookkeeping that is no part of any strategy: initial weights, evaluation, statistics."""
        before, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = before

    def wire(self) -> Wire:
        """Bytes on the medium for everything counted so far. Cheap: it is asked for after every step."""
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
        """Bytes that counted operations put on this comm's medium, for one worker."""
        sent = received = 0.0
        for (op, peer), nbytes in counter.nbytes.items():
            out, into = cls.wire_factors(op, peer, rank, world_size)
            sent += out * nbytes
            received += into * nbytes
        return Wire(round(sent), round(received))

    @classmethod
    def wire_factors(cls, op: str, peer: int | None, rank: int, world_size: int) -> tuple[float, float]:
        """Sent and received bytes per byte of the tensor; here for the plain forms below."""
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
        """Whom a worker sends to in an operation: bytes per byte of the tensor by rank, together those sent."""
        sent, _ = cls.wire_factors(op, peer, rank, world_size)
        root = peer or 0
        if op == "send":
            return {root: sent}
        if op in ("gather", "all_reduce") and rank != root:
            return {root: sent}
        return cls.spread_evenly(sent, rank, world_size)

    @staticmethod
    def spread_evenly(sent: float, rank: int, world_size: int) -> dict[int, float]:
        """The same to each of the others."""
        return {other: sent / (world_size - 1) for other in range(world_size) if other != rank} if sent else {}

    def process_group(self) -> Any:
        """A torch.distributed process group on this comm, counted; raises where there can be none."""
        raise NotImplementedError(f"comm {self.name} has no torch process group")

    def close(self) -> None:
        """Let go of connections; the comm is not used afterwards."""

    # What a comm implements.

    @abstractmethod
    def _isend(self, tensor: Tensor, peer: int, tag: int) -> Work: ...

    @abstractmethod
    def _irecv(self, tensor: Tensor, peer: int, tag: int) -> Work: ...

    @abstractmethod
    def _recv_any(self, tensor: Tensor, tag: int) -> int: ...

    # What it may replace.

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
        """Count an operation; a span where somebody wants to hear of it."""
        if not self._counting:
            return None
        self.counter.add(Operation(op, nbytes, peer))
        return self._open(op, nbytes, peer, tag)

    def _open(self, op: str, nbytes: int, peer: int | None = None, tag: int = 0) -> OpenOperation | None:
        listener = self.listener
        if listener is None:
            return None
        number = self._numbers.next(op, peer, tag)  # always, or workers at different steps would number differently
        if listener.step < 0:
            return None
        return OpenOperation(listener, op, nbytes, peer, tag, number, self._medium(op, peer))

    def _medium(self, op: str, peer: int | None) -> str:  # noqa: ARG002
        return self.medium

    def _observed(self, work: Work, span: OpenOperation) -> Work:
        if isinstance(work, CompletedWork):  # all of it was done during the call
            span.end_here()
            return work
        return ObservedWork(work, span)


@dataclass
class _Summing:
    """A plain reduce-scatter under way: parts are added in order of rank when all have come."""

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


_COLLECTIVE = 0x7C01  # the plain collectives' own tag, clear of those that strategies choose


def _wait_all(works: list[Work]) -> None:
    for work in works:
        work.wait()
