"""Comm `shm`: workers of one host read each other's data in shared memory, without sockets.

A collective divides tensors into pieces of 1 to 8 MiB. In an all-reduce, a worker copies its piece into shared memory,
sums its own slice of the piece over all workers, and copies the sums of all slices to its tensor. Counters in shared
memory, each with one writer, tell how far each worker is. Gradients that are in shared memory from the start need no
copy into it (see `reduction`). If their sum may be read in place, it is not copied to private memory either.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from paceline.comm.base import Comm, CommConfig
from paceline.comm.collectives import CompletedWork, Reduction, SharedVector, Work
from paceline.comm.helper_threads import HelperThreads, spare_cores
from paceline.comm.shm_mailbox import Mailbox
from paceline.comm.shm_memory import Segment, add_up, copy, part_bounds
from paceline.comm.shm_reduction import ShmReduction, ShmSharedVector, Threads
from paceline.comm.shm_sync import Collective, Counters, ShmWaiter
from paceline.errors import RunError

STAGES = 3  # pieces in shared memory at a time: a worker may still read one while others write the next two
PIECE_BYTES = 1 << 20  # a piece stays in the cache until peers read it
LONG_PIECE_BYTES = 8 << 20  # size if workers share cores, as each piece then costs two context switches
STAGES_BYTES = 192 << 20  # limit of the memory for all pieces of all workers, if pieces are long
# Total size of all workers' tensors up to which every worker sums the whole tensor, which saves a synchronisation.
SMALL_BYTES = 64 << 10
MAX_WORKERS = 64


class ShmComm(Comm):
    """Connects workers of one host through shared memory that only processes of the same user can open."""

    name: ClassVar[str] = "shm"
    between_nodes: ClassVar[bool] = False
    medium: ClassVar[str] = "memory"

    @classmethod
    def unavailable(cls) -> str:
        if sys.platform != "linux":
            return "it needs Linux"
        if platform.machine() not in ("x86_64", "AMD64"):
            # Only x86 makes the plain writes of one process visible to others in order.
            return f"it needs an x86-64 processor, and this is {platform.machine()}"
        return ""

    @classmethod
    def connect(cls, config: CommConfig) -> ShmComm:
        return cls(config.rank, config.world_size, config.store, node=config.node, timeout_s=config.timeout_s)

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Any,
        *,
        node: str = "0",
        timeout_s: float = 60.0,
        names: Sequence[int] = (),
    ) -> None:
        """Connect this worker to its peers.

        `names` has the ranks to show in error messages, if this comm connects only some workers of a job.
        """
        super().__init__(rank, world_size)
        if world_size > MAX_WORKERS:
            raise RunError(
                f"comm shm connects at most {MAX_WORKERS} workers, not {world_size}; use comm torch or fewer workers"
            )
        self._store = store
        self._num_segments = 0
        _check_node(store, rank, node)
        flags = Counters.num_bytes(world_size)
        self._piece_bytes = _choose_piece_bytes(store, rank, world_size)
        stages = world_size * STAGES * self._piece_bytes
        sizes = [ShmWaiter.num_bytes(world_size), flags, stages, Mailbox.num_bytes(world_size)]
        offsets = [sum(sizes[:index]) for index in range(len(sizes))]
        segment = self._open_segment(sum(sizes))
        self._waiter = ShmWaiter(segment, offsets[0], rank, world_size, timeout_s, names=names)
        self._helper_waiter = ShmWaiter(segment, offsets[0], rank, world_size, timeout_s, is_helper=True, names=names)
        spare = spare_cores(world_size)
        self._helpers = HelperThreads(spare) if spare and world_size > 1 else None
        self._counters = Counters(segment, offsets[1], self._waiter)
        self._stages = segment.tensor(offsets[2], stages, torch.uint8)
        # Buffer for a slice's sum: it stays in the cache, and is then copied into shared memory.
        self._added = torch.empty(self._piece_bytes, dtype=torch.uint8)
        self._stages_as: dict[torch.dtype, Tensor] = {}
        self._mailbox = Mailbox(segment, offsets[3], self._waiter)
        self._piece = 0
        self._reductions: list[ShmReduction] = []
        self._groups: list[Any] = []
        # Avoid a deadlock: the peer that this worker waits for may wait for an operation that this worker has begun.
        self._waiter.before_sleep = self.progress
        self._close_when_attached(segment)

    @classmethod
    def wire_factors(cls, op: str, peer: int | None, rank: int, world_size: int) -> tuple[float, float]:
        """Return how many bytes a worker writes to and reads from shared memory, per byte of the tensor.

        If several peers read the same data, it is counted as written only once.
        """
        others = world_size - 1
        if not others and op not in ("send", "recv"):
            return 0, 0
        is_root = rank == (peer or 0)
        factors: dict[str, tuple[float, float]] = {
            "send": (1, 0),
            "recv": (0, 1),
            "broadcast": (1, 0) if is_root else (0, 1),
            "gather": (0, others) if is_root else (1, 0),
            "scatter": (others, 0) if is_root else (0, 1),
            "all_reduce": (1, 1),
            "reduce_scatter": (others / world_size, others / world_size),
            "all_gather": (1, others),
        }
        return factors[op]

    @classmethod
    def sent_to(cls, op: str, peer: int | None, rank: int, world_size: int) -> dict[int, float]:
        if op == "all_reduce":  # each peer reads a different slice of the tensor that this worker wrote
            return cls.spread_evenly(cls.wire_factors(op, peer, rank, world_size)[0], rank, world_size)
        return super().sent_to(op, peer, rank, world_size)

    def _barrier(self) -> None:
        piece, collective = self._next_piece(), Collective("barrier")
        self._counters.mark_ready(piece, collective)
        self._counters.wait_ready_all(piece, collective)
        self._counters.publish(Counters.FREE, piece)

    def progress(self) -> None:
        for reduction in self._reductions:
            reduction.progress()
        self._mailbox.progress()

    def reduction(self, numel: int, dtype: torch.dtype, device: torch.device, *, shared: bool = False) -> Reduction:
        if device.type != "cpu" or self.world_size == 1 or numel == 0:
            return super().reduction(numel, dtype, device, shared=shared)
        segment = self._open_segment(ShmReduction.num_bytes(numel, dtype, self.world_size))
        reduction = ShmReduction(self, segment, numel, dtype, self._threads(), is_shared=shared)
        self._close_when_attached(segment)
        self._reductions.append(reduction)
        return reduction

    def shared_vector(self, numel: int, dtype: torch.dtype, device: torch.device) -> SharedVector:
        if device.type != "cpu" or self.world_size == 1:
            return super().shared_vector(numel, dtype, device)
        segment = self._open_segment(numel * dtype.itemsize)
        memory = segment.tensor(0, numel, dtype)
        self._close_when_attached(segment)
        return ShmSharedVector(self, memory)

    def process_group(self) -> Any:
        # A separate comm, because collectives of the group may be in progress while this comm is used.
        from paceline.comm.process_group import CommGroup
        from paceline.comm.torch import CountedGroup, prefix_store

        prefixed = prefix_store(f"group{len(self._groups)}", self._store)
        comm = ShmComm(self.rank, self.world_size, prefixed, timeout_s=self._waiter.timeout_s, names=self._waiter.names)
        self._groups.append(CommGroup(comm))
        return CountedGroup(self, self._groups[-1])

    def _threads(self) -> Threads:
        return Threads(self._waiter, self._helper_waiter, self._helpers)

    def close(self) -> None:
        self._reductions.clear()
        for group in self._groups:
            group.shutdown()
        self._groups.clear()
        if self._helpers is not None:
            self._helpers.close()
            self._helpers = None
        self._waiter.close()
        self._helper_waiter.close()

    # Messages.

    def _isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._mailbox.send(tensor, peer, tag)

    def _irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._mailbox.receive(tensor, peer, tag)

    def _recv_any(self, tensor: Tensor, tag: int) -> int:
        return self._mailbox.receive_any(tensor, tag)

    # Collectives, piece by piece. Shared memory is divided into STAGES stages. Piece p uses stage p % STAGES, which is
    # free when all workers are done with piece p - STAGES.

    def _all_reduce(self, tensor: Tensor) -> None:
        if self.world_size == 1 or tensor.numel() == 0:
            return
        flat = tensor.view(-1)
        if tensor.numel() * tensor.element_size() * self.world_size <= SMALL_BYTES:
            self._sum_small(flat)
            return
        collective = _collective("all_reduce", tensor)
        pieces = flat.split(self._piece_bytes // flat.element_size())
        numbers = [self._next_piece() for _ in pieces]
        self._put(pieces[0], numbers[0], collective)
        for index, (piece, number) in enumerate(zip(pieces, numbers, strict=True)):
            if index + 1 < len(pieces):
                self._put(pieces[index + 1], numbers[index + 1], collective)
            bounds = part_bounds(piece.numel(), self.world_size, piece.element_size())
            slots = self._slots(number, piece)
            begin, end = bounds[self.rank], bounds[self.rank + 1]
            self._counters.wait_ready_all(number, collective)
            if begin < end:
                mine = self._added[: (end - begin) * piece.element_size()].view(piece.dtype)
                add_up(slots[:, begin:end], mine)
                copy(slots[self.rank, begin:end], mine)
            self._counters.publish(Counters.SUMMED, number)
            self._counters.wait_all(Counters.SUMMED, number)
            for peer in range(self.world_size):
                begin, end = bounds[peer], bounds[peer + 1]
                if begin < end:
                    copy(piece[begin:end], slots[peer, begin:end])
            self._counters.publish(Counters.FREE, number)

    def _ireduce_scatter(self, output: Tensor, tensor: Tensor) -> Work:
        parts, into = tensor.view(self.world_size, output.numel()), output.view(-1)
        collective = _collective("reduce_scatter", tensor)
        length = max(self._piece_bytes // tensor.element_size() // self.world_size, 1)
        for begin in range(0, into.numel(), length):
            columns = parts[:, begin : begin + length]
            number = self._next_piece()
            size = columns.shape[1]
            slots = self._slots(number, columns)
            self._wait_for_stage(number)
            slots[self.rank].view(self.world_size, size).copy_(columns)
            self._counters.mark_ready(number, collective)
            self._counters.wait_ready_all(number, collective)
            mine = slots[:, self.rank * size : (self.rank + 1) * size]
            if into.is_cuda:
                into[begin : begin + size].copy_(add_up(mine, torch.empty_like(mine[0])))
            else:
                add_up(mine, into[begin : begin + size])
            self._counters.publish(Counters.FREE, number)
        return CompletedWork()

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        collective = _collective("broadcast", tensor, root)
        for piece in self._pieces(tensor):
            number = self._next_piece()
            slot = self._slots(number, piece)[root]
            if self.rank == root:
                self._wait_for_stage(number)
                copy(slot, piece)
            self._counters.mark_ready(number, collective)
            if self.rank != root:
                self._counters.wait_ready(root, number, collective)
                copy(piece, slot)
            self._counters.publish(Counters.FREE, number)

    def _gather(self, tensor: Tensor, root: int) -> list[Tensor]:
        return self._collect(tensor, _collective("gather", tensor, root), is_reader=self.rank == root)

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        return self._collect(tensor, _collective("all_gather", tensor), is_reader=True)

    def _collect(self, tensor: Tensor, collective: Collective, *, is_reader: bool) -> list[Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self.world_size)] if is_reader else []
        flat = [whole.view(-1) for whole in gathered]
        begin = 0
        for piece in self._pieces(tensor):
            number = self._next_piece()
            self._put(piece, number, collective)
            if is_reader:
                self._counters.wait_ready_all(number, collective)
                for whole, slot in zip(flat, self._slots(number, piece), strict=True):
                    copy(whole[begin : begin + piece.numel()], slot)
            self._counters.publish(Counters.FREE, number)
            begin += piece.numel()
        return gathered

    def _scatter(self, tensor: Tensor, pieces: list[Tensor], root: int) -> None:
        begin, collective = 0, _collective("scatter", tensor, root)
        for piece in self._pieces(tensor):
            number = self._next_piece()
            slots = self._slots(number, piece)
            if self.rank == root:
                self._wait_for_stage(number)
                for slot, whole in zip(slots, pieces, strict=True):
                    slot.copy_(whole.view(-1)[begin : begin + piece.numel()])
            self._counters.mark_ready(number, collective)
            self._counters.wait_ready(root, number, collective)
            copy(piece, slots[self.rank])
            self._counters.publish(Counters.FREE, number)
            begin += piece.numel()

    def _sum_small(self, flat: Tensor) -> None:
        """All-reduce a short tensor in place: every worker adds the tensors of all workers, in order of rank."""
        number, collective = self._next_piece(), _collective("all_reduce", flat)
        self._put(flat, number, collective)
        self._counters.wait_ready_all(number, collective)
        slots = self._slots(number, flat)
        if flat.is_cuda:
            flat.copy_(add_up(slots, torch.empty_like(slots[0])))
        else:
            add_up(slots, flat)
        self._counters.publish(Counters.FREE, number)

    def _put(self, piece: Tensor, number: int, collective: Collective) -> None:
        """Wait until the stage (area of shared memory) of a piece is free, copy the piece there and mark it ready."""
        self._wait_for_stage(number)
        copy(self._slots(number, piece)[self.rank], piece)
        self._counters.mark_ready(number, collective)

    def _wait_for_stage(self, number: int) -> None:
        self._counters.wait_all(Counters.FREE, number - STAGES)

    def _next_piece(self) -> int:
        self._piece += 1
        return self._piece

    def _pieces(self, tensor: Tensor) -> tuple[Tensor, ...]:
        if tensor.numel() == 0:
            return ()
        pieces: tuple[Tensor, ...] = tensor.view(-1).split(self._piece_bytes // tensor.element_size())
        return pieces

    def _slots(self, number: int, piece: Tensor) -> Tensor:
        """Return the shared memory of piece `number`: one row per worker, with the dtype and length of `piece`."""
        dtype = piece.dtype
        if dtype not in self._stages_as:
            self._stages_as[dtype] = self._stages.view(dtype).view(STAGES, self.world_size, -1)
        return self._stages_as[dtype][number % STAGES, :, : piece.numel()]

    def _open_segment(self, nbytes: int) -> Segment:
        """Create a shared memory segment on rank 0; map it on other ranks. Call `_close_when_attached` afterwards."""
        key = f"shm/{self._num_segments}"
        self._num_segments += 1
        if self.rank == 0:
            segment = Segment.create(max(nbytes, 1))
            self._store.set(key, segment.address)
            return segment
        return Segment.attach(self._store.get(key).decode(errors="replace"))

    def _close_when_attached(self, segment: Segment) -> None:
        self.barrier()
        segment.close_file()


def _collective(op: str, tensor: Tensor, root: int = 0) -> Collective:
    return Collective(op, tensor.numel() * tensor.element_size(), root)


def _check_node(store: Any, rank: int, node: str) -> None:
    if rank == 0:
        store.set("shm/node", node)
    elif store.get("shm/node").decode() != node:
        raise RunError(
            f"comm shm connects workers of one host, but worker {rank} is not on the host of worker 0; "
            "use comm hierarchical or torch"
        )


def _choose_piece_bytes(store: Any, rank: int, world_size: int) -> int:
    """Return the number of bytes per piece. Rank 0 decides for all workers, as their numbers of cores may differ."""
    if rank == 0:
        nbytes = PIECE_BYTES
        if len(os.sched_getaffinity(0)) <= world_size:
            most = STAGES_BYTES // STAGES // world_size // PIECE_BYTES * PIECE_BYTES
            nbytes = min(max(most, PIECE_BYTES), LONG_PIECE_BYTES)
        store.set("shm/piece", str(nbytes))
        return nbytes
    return int(store.get("shm/piece"))
