"""The interface of communication backends ("comms"). Its methods also count everything that a strategy sends.

A comm must implement point-to-point messages. It inherits collectives built from messages (collectives.py) and
overrides the collectives that it can do faster. A strategy predicts its operations, such as an all-reduce of a tensor;
the comm converts the operations to numbers of transferred bytes. The medium of an operation says what carries these
bytes: "network" (sockets, nccl) or "memory" (shared by the workers of one host).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from paceline.comm.collectives import CompletedWork, MessageCollectives, Reduction, SharedVector, Work
from paceline.comm.listener import CommListener, LaunchedGroup, ObservedWork, OpenOperation, OperationNumbers, settle
from paceline.comm.traffic_counts import Counter, Operation, Wire
from paceline.errors import RunError
from paceline.worker_activity import ACTIVITY

_NOT_RECORDED = nullcontext()


class CommError(RunError):
    """Raised if a peer has ended or does not answer within the time limit; the cause is usually in the peer."""


@dataclass(frozen=True, kw_only=True)
class CommConfig:
    """Arguments for connecting a worker to its peers, such as the worker's rank and the rendezvous store."""

    rank: int
    world_size: int
    store: Any
    node: str = "0"  # name of the worker's host, equal for all workers of one host
    local_rank: int = 0
    timeout_s: float = 60.0
    address: str = ""  # the local address that peers reach this worker at; empty lets the comm find one
    device: str = "cpu"


class Comm(MessageCollectives):
    """One worker's connection to its peers. Tensors must be contiguous.

    The sum of a collective is bit-identical on all workers that receive the sum.
    """

    name: ClassVar[str] = ""
    between_processes: ClassVar[bool] = True  # whether it connects processes; False: only threads
    between_nodes: ClassVar[bool] = True  # whether workers may be on several hosts
    medium: ClassVar[str] = "network"  # "network", or "memory" if no data leaves the host

    @classmethod
    def unavailable(cls) -> str:
        """Return the reason why this comm cannot be used on this machine, or an empty string if it can be used."""
        return ""

    @classmethod
    def connect(cls, config: CommConfig) -> Comm:
        """Connect this worker to its peers. All workers must call this within `config.timeout_s` of each other."""
        raise NotImplementedError(f"comm {cls.name} does not connect processes ({config})")

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(rank, world_size)
        self.counter = Counter()
        self.listener: CommListener | None = None  # receives every counted operation
        self.launched: list[LaunchedGroup] = []  # operations that DDP started in this backward
        self._numbers = OperationNumbers()
        self._is_counting = True

    # Point to point. Messages with the same tag between two workers arrive in the order in which they were sent.

    def isend(self, tensor: Tensor, peer: int, tag: int = 0) -> Work:
        span = self._begin("send", tensor, peer, tag)
        return self._observed(self._isend(tensor, peer, tag), span)

    def irecv(self, tensor: Tensor, peer: int, tag: int = 0) -> Work:
        span = self._begin("recv", tensor, peer, tag)
        return self._observed(self._irecv(tensor, peer, tag), span)

    def send(self, tensor: Tensor, peer: int, tag: int = 0) -> None:
        self.isend(tensor, peer, tag).wait()

    def recv(self, tensor: Tensor, peer: int, tag: int = 0) -> None:
        self.irecv(tensor, peer, tag).wait()

    def recv_any(self, tensor: Tensor, tag: int = 0) -> int:
        """Receive a message with this tag from any peer into `tensor`, and return the peer's rank."""
        begin = perf_counter()
        ACTIVITY.begin_operation("recv_any")
        peer = self._recv_any(tensor, tag)
        span = self._begin("recv", tensor, peer, tag)
        if span is not None:
            span.begin = begin
            span.end_here()
        return peer

    # Collectives. Every worker calls them in the same order.

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum a tensor over all workers, in place."""
        with self._recorded("all_reduce", tensor):
            self._all_reduce(tensor)

    def iall_reduce(self, tensor: Tensor) -> Work:
        """Start to sum a tensor over all workers, in place, and return the work to wait for.

        Do not read or write the tensor before the work's `wait` returns.
        """
        span = self._begin("all_reduce", tensor)
        return self._observed(self._iall_reduce(tensor), span)

    def ireduce_scatter(self, output: Tensor, tensor: Tensor) -> Work:
        """Start to sum `tensor` over all workers, and to store this worker's slice of the sum in `output`.

        The sum has one slice of equal size per worker, in order of rank. `output` may be a view of this worker's slice
        of `tensor`.
        """
        assert output.numel() * self.world_size == tensor.numel(), "parts of a reduce-scatter are equal"
        span = self._begin("reduce_scatter", tensor)
        return self._observed(self._ireduce_scatter(output, tensor), span)

    def reduce_scatter(self, output: Tensor, tensor: Tensor) -> None:
        self.ireduce_scatter(output, tensor).wait()

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        """Copy the root's tensor to all workers."""
        with self._recorded("broadcast", tensor, root):
            self._broadcast(tensor, root)

    def gather(self, tensor: Tensor, root: int = 0) -> list[Tensor]:
        """On the root, return all workers' tensors in order of rank. On other workers, return an empty list."""
        with self._recorded("gather", tensor, root):
            return self._gather(tensor, root)

    def scatter(self, tensor: Tensor, pieces: list[Tensor], root: int = 0) -> None:
        """Copy one element of the root's list `pieces` to each worker's `tensor`: element i to rank i.

        Workers other than the root pass an empty list.
        """
        with self._recorded("scatter", tensor, root):
            self._scatter(tensor, pieces, root)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return all workers' tensors in order of rank."""
        with self._recorded("all_gather", tensor):
            return self._all_gather(tensor)

    def barrier(self) -> None:
        """Wait until all workers have called this method. Barriers are reported to the listener but not counted."""
        ACTIVITY.begin_operation("barrier")
        with (self._open("barrier", 0) if self._is_counting else None) or _NOT_RECORDED:
            self._barrier()

    def progress(self) -> None:
        """Advance pending operations without blocking; by default do nothing.

        A comm that moves bytes in the worker's own thread overrides this method.
        """

    def settle(self, end: float) -> None:
        """Report to the listener the operations that DDP ran during a backward that ended at time `end`."""
        if self.launched:
            launched, self.launched = self.launched, []
            settle(launched, end)

    # Memory that the comm can reduce or share without a copy. Every worker must call these methods in the same order.

    def reduction(self, numel: int, dtype: torch.dtype, device: torch.device, *, shared: bool = False) -> Reduction:
        """Allocate a vector of `numel` zeros that workers can sum repeatedly, and return it as a Reduction.

        With `shared`, the comm may place the sum in memory that all workers use. No worker may then write to the sum.
        """
        del shared
        return Reduction(self, torch.zeros(numel, dtype=dtype, device=device))

    def shared_vector(self, numel: int, dtype: torch.dtype, device: torch.device) -> SharedVector:
        """Allocate a vector of `numel` zeros. Each worker writes its own slices of the vector and reads all slices."""
        return SharedVector(self, torch.zeros(numel, dtype=dtype, device=device))

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Return a context manager. Operations in its `with` block are neither counted nor recorded.

        Use it for traffic that is not part of a strategy: initial weights, evaluation and statistics.
        """
        before, self._is_counting = self._is_counting, False
        try:
            yield
        finally:
            self._is_counting = before

    def wire(self) -> Wire:
        """Return the bytes that this worker has sent and received in all operations counted so far."""
        return self.predict(self.counter, self.rank, self.world_size)

    @classmethod
    def predict(cls, counter: Counter, rank: int, world_size: int) -> Wire:
        """Return the bytes that one worker sends and receives over this comm for the operations in `counter`."""
        sent = received = 0.0
        for (op, peer), nbytes in counter.nbytes.items():
            out, into = cls.wire_factors(op, peer, rank, world_size)
            sent += out * nbytes
            received += into * nbytes
        return Wire(round(sent), round(received))

    @classmethod
    def wire_factors(cls, op: str, peer: int | None, rank: int, world_size: int) -> tuple[float, float]:
        """Return how many bytes one worker sends and receives in an operation, per byte of the tensor.

        `peer` is the other end of a message, or the root of a collective. By default, the factors are those of the
        default collectives (collectives.py).
        """
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
        """Return for each receiving rank how many bytes a worker sends to it, per byte of the operation's tensor."""
        sent, _ = cls.wire_factors(op, peer, rank, world_size)
        root = peer or 0
        if op == "send" or (op in ("gather", "all_reduce") and rank != root):
            return {root: sent}
        return cls.spread_evenly(sent, rank, world_size)

    @staticmethod
    def spread_evenly(sent: float, rank: int, world_size: int) -> dict[int, float]:
        """Return an equal share of `sent` for every rank except `rank`, or an empty dict if `sent` is 0."""
        return {other: sent / (world_size - 1) for other in range(world_size) if other != rank} if sent else {}

    def process_group(self) -> Any:
        """Return a torch.distributed process group over this comm's workers. This comm counts the group's traffic.

        Raise NotImplementedError if the comm cannot provide one.
        """
        raise NotImplementedError(f"comm {self.name} has no torch process group; use comm torch")

    def close(self) -> None:
        """Close connections; the comm cannot be used afterwards."""

    def _recorded(self, op: str, tensor: Tensor, root: int | None = None) -> AbstractContextManager[object]:
        """Count an operation, and return a context manager that reports the operation's end to the listener, if any."""
        return self._begin(op, tensor, root) or _NOT_RECORDED

    def _begin(self, op: str, tensor: Tensor, peer: int | None = None, tag: int = 0) -> OpenOperation | None:
        return self._begin_bytes(op, tensor.numel() * tensor.element_size(), peer, tag)

    def _begin_bytes(self, op: str, nbytes: int, peer: int | None = None, tag: int = 0) -> OpenOperation | None:
        """Count an operation, and return an OpenOperation if the listener records this step, else None.

        Inside `uncounted`, do nothing and return None.
        """
        ACTIVITY.begin_operation(op)
        if not self._is_counting:
            return None
        self.counter.add(Operation(op, nbytes, peer))
        return self._open(op, nbytes, peer, tag)

    def _open(self, op: str, nbytes: int, peer: int | None = None, tag: int = 0) -> OpenOperation | None:
        listener = self.listener
        if listener is None:
            return None
        # Number operations of unrecorded steps too, so that numbers are equal on workers at different steps.
        number = self._numbers.next(op, peer, tag)
        if listener.step < 0:
            return None
        return OpenOperation(listener, op, nbytes, peer, tag, number, self._medium(op, peer))

    def _medium(self, op: str, peer: int | None) -> str:  # noqa: ARG002
        return self.medium

    def _observed(self, work: Work, span: OpenOperation | None) -> Work:
        """Return `work`, wrapped if necessary, so that its completion is reported to the listener.

        `span` is the operation that the work belongs to, or None if the operation is not recorded.
        """
        if span is None:
            return work
        if isinstance(work, CompletedWork):  # done during the call
            span.end_here()
            return work
        return ObservedWork(work, span)
