"""Shared memory between workers of one host: nothing is sent, every worker reads what its peers wrote.

Ordinary tensors pass through three stages in turn: a worker copies its piece in, adds its own part of the piece over
all workers, and copies the parts of the others out. Counters in shared memory, each with one writer, say how far
everybody is. Gradients that live in the shared memory (`reduction`) need no copy in, and none out where the sum may be
read in place.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from paceline.comm.base import Comm, CommError, Common, Done, Place, Reduction, Work
from paceline.comm.bell import WORDS_PER_LINE, Bells
from paceline.comm.crew import Crew, Division, spare_cores
from paceline.comm.mailbox import Mailbox
from paceline.comm.segment import LINE_BYTES, Segment, in_lines
from paceline.errors import RunError

STAGES = 3  # a worker may write the next piece and read the last one while a slow peer is at the one between
PIECE_BYTES = 1 << 20  # of an ordinary tensor per stage: small enough to stay in the cache until peers read it
LONG_PIECE_BYTES = 8 << 20  # where workers take turns on cores, and every piece costs them two of those
STAGES_BYTES = 192 << 20  # for all stages of all workers together, as far as longer pieces go
SMALL_BYTES = 64 << 10  # over all workers: up to here everybody adds everything, which saves one meeting
MAX_WORKERS = 64
CREW_BYTES = 16 << 20  # shorter vectors are added sooner than threads are woken
MOVE_BYTES = 64 << 10
BLOCK_BYTES = 256 << 10  # the least that is worth another thread's while


class ShmComm(Comm):
    """Workers of one host, through shared memory that only they can open."""

    name: ClassVar[str] = "shm"
    between_nodes: ClassVar[bool] = False

    @classmethod
    def unavailable(cls) -> str:
        if sys.platform != "linux":
            return "it needs Linux"
        if platform.machine() not in ("x86_64", "AMD64"):
            # Plain writes of one process are seen in order by others on x86 alone.
            return f"it needs an x86-64 processor, and this is {platform.machine()}"
        return ""

    @classmethod
    def connect(cls, place: Place) -> ShmComm:
        return cls(place.rank, place.world_size, place.store, node=place.node, timeout_s=place.timeout_s)

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
        """`names` are the workers' ranks in a larger world, for errors."""
        super().__init__(rank, world_size)
        if world_size > MAX_WORKERS:
            raise RunError(f"comm shm joins at most {MAX_WORKERS} workers, not {world_size}")
        self._store = store
        self._num_segments = 0
        _check_node(store, rank, node)
        flags = Counters.num_bytes(world_size)
        self._piece_bytes = _agree_on_pieces(store, rank, world_size)
        stages = world_size * STAGES * self._piece_bytes
        sizes = [Bells.num_bytes(world_size), flags, stages, Mailbox.num_bytes(world_size)]
        offsets = [sum(sizes[:index]) for index in range(len(sizes))]
        segment = self._open_segment(sum(sizes))
        self._bells = Bells(segment, offsets[0], rank, world_size, timeout_s, names=names)
        self._helper_bells = Bells(segment, offsets[0], rank, world_size, timeout_s, is_helper=True, names=names)
        spare = spare_cores(world_size)
        self._crew = Crew(spare) if spare and world_size > 1 else None
        self._counters = Counters(segment, offsets[1], self._bells)
        self._stages = segment.tensor(offsets[2], stages, torch.uint8)
        self._added = torch.empty(
            self._piece_bytes, dtype=torch.uint8
        )  # a sum on its way into a stage; stays in the cache
        self._stages_as: dict[torch.dtype, Tensor] = {}
        self._mailbox = Mailbox(segment, offsets[3], self._bells)
        self._piece = 0
        self._reductions: list[ShmReduction] = []
        self._groups: list[Any] = []
        # A peer may need what this worker has begun before it does what this worker waits for.
        self._bells.meanwhile = self.progress
        self._all_have(segment)

    @classmethod
    def wire_factors(cls, op: str, peer: int | None, rank: int, world_size: int) -> tuple[float, float]:
        """What a worker writes for others and reads of theirs: nothing is written twice because many read it."""
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
            "reduce_scatter": (1, 1 / world_size),
            "all_gather": (1, others),
        }
        return factors[op]

    def barrier(self) -> None:
        piece = self._next_piece()
        self._counters.tell(Counters.READY, piece)
        self._counters.wait_all(Counters.READY, piece)
        self._counters.tell(Counters.FREE, piece)

    def progress(self) -> None:
        for reduction in self._reductions:
            reduction.progress()
        self._mailbox.progress()

    def reduction(self, numel: int, dtype: torch.dtype, device: torch.device, *, shared: bool = False) -> Reduction:
        if device.type != "cpu" or self.world_size == 1 or numel == 0:
            return super().reduction(numel, dtype, device, shared=shared)
        segment = self._open_segment(ShmReduction.num_bytes(numel, dtype, self.world_size))
        reduction = ShmReduction(self, segment, numel, dtype, is_shared=shared)
        self._all_have(segment)
        self._reductions.append(reduction)
        return reduction

    def common(self, numel: int, dtype: torch.dtype, device: torch.device) -> Common:
        if device.type != "cpu" or self.world_size == 1:
            return super().common(numel, dtype, device)
        segment = self._open_segment(numel * dtype.itemsize)
        memory = segment.tensor(0, numel, dtype)
        self._all_have(segment)
        return ShmCommon(self, memory)

    def process_group(self) -> Any:
        """On a comm of its own: its collectives may be under way while this one is used."""
        from paceline.comm.group import CommGroup
        from paceline.comm.torch import CountedGroup, prefix_store

        corner = prefix_store(f"group{len(self._groups)}", self._store)
        limits: dict[str, Any] = {"timeout_s": self._bells.timeout_s, "names": self._bells.names}
        self._groups.append(CommGroup(ShmComm(self.rank, self.world_size, corner, **limits)))
        return CountedGroup(self, self._groups[-1])

    def close(self) -> None:
        self._reductions.clear()
        for group in self._groups:
            group.shutdown()
        self._groups.clear()
        if self._crew is not None:
            self._crew.close()
            self._crew = None
        self._bells.close()
        self._helper_bells.close()

    # Messages.

    def _isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._mailbox.send(tensor, peer, tag)

    def _irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._mailbox.receive(tensor, peer, tag)

    def _recv_any(self, tensor: Tensor, tag: int) -> int:
        return self._mailbox.receive_any(tensor, tag)

    # Collectives, piece by piece. Piece p lies in stage p % 3, which is free when everybody is done with piece p - 3.

    def _all_reduce(self, tensor: Tensor) -> None:
        if self.world_size == 1 or tensor.numel() == 0:
            return
        flat = tensor.view(-1)
        if tensor.numel() * tensor.element_size() * self.world_size <= SMALL_BYTES:
            self._sum_small(flat, flat)
            return
        pieces = flat.split(self._piece_bytes // flat.element_size())
        numbers = [self._next_piece() for _ in pieces]
        self._put(pieces[0], numbers[0])
        for index, (piece, number) in enumerate(zip(pieces, numbers, strict=True)):
            if index + 1 < len(pieces):
                self._put(pieces[index + 1], numbers[index + 1])
            bounds = part_bounds(piece.numel(), self.world_size, piece.element_size())
            slots = self._slots(number, piece)
            begin, end = bounds[self.rank], bounds[self.rank + 1]
            self._counters.wait_all(Counters.READY, number)
            if begin < end:
                mine = self._added[: (end - begin) * piece.element_size()].view(piece.dtype)
                add_up(slots[:, begin:end], mine)
                copy(slots[self.rank, begin:end], mine)
            self._counters.tell(Counters.SUMMED, number)
            self._counters.wait_all(Counters.SUMMED, number)
            for peer in range(self.world_size):
                begin, end = bounds[peer], bounds[peer + 1]
                if begin < end:
                    copy(piece[begin:end], slots[peer, begin:end])
            self._counters.tell(Counters.FREE, number)

    def _ireduce_scatter(self, output: Tensor, tensor: Tensor) -> Work:
        parts, into = tensor.view(self.world_size, output.numel()), output.view(-1)
        length = max(self._piece_bytes // tensor.element_size() // self.world_size, 1)
        for begin in range(0, into.numel(), length):
            columns = parts[:, begin : begin + length]
            number = self._next_piece()
            size = columns.shape[1]
            slots = self._slots(number, columns)
            self._wait_for_stage(number)
            slots[self.rank].view(self.world_size, size).copy_(columns)
            self._counters.tell(Counters.READY, number)
            self._counters.wait_all(Counters.READY, number)
            mine = slots[:, self.rank * size : (self.rank + 1) * size]
            if into.is_cuda:
                into[begin : begin + size].copy_(add_up(mine, torch.empty_like(mine[0])))
            else:
                add_up(mine, into[begin : begin + size])
            self._counters.tell(Counters.FREE, number)
        return Done()

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        for piece in self._pieces(tensor):
            number = self._next_piece()
            slot = self._slots(number, piece)[root]
            if self.rank == root:
                self._wait_for_stage(number)
                copy(slot, piece)
            self._counters.tell(Counters.READY, number)
            if self.rank != root:
                self._counters.wait_for(root, Counters.READY, number)
                copy(piece, slot)
            self._counters.tell(Counters.FREE, number)

    def _gather(self, tensor: Tensor, root: int) -> list[Tensor]:
        return self._collect(tensor, is_reader=self.rank == root)

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        return self._collect(tensor, is_reader=True)

    def _collect(self, tensor: Tensor, *, is_reader: bool) -> list[Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self.world_size)] if is_reader else []
        flat = [whole.view(-1) for whole in gathered]
        begin = 0
        for piece in self._pieces(tensor):
            number = self._next_piece()
            self._put(piece, number)
            if is_reader:
                self._counters.wait_all(Counters.READY, number)
                for whole, slot in zip(flat, self._slots(number, piece), strict=True):
                    copy(whole[begin : begin + piece.numel()], slot)
            self._counters.tell(Counters.FREE, number)
            begin += piece.numel()
        return gathered

    def _scatter(self, tensor: Tensor, pieces: list[Tensor], root: int) -> None:
        begin = 0
        for piece in self._pieces(tensor):
            number = self._next_piece()
            slots = self._slots(number, piece)
            if self.rank == root:
                self._wait_for_stage(number)
                for slot, whole in zip(slots, pieces, strict=True):
                    slot.copy_(whole.view(-1)[begin : begin + piece.numel()])
            self._counters.tell(Counters.READY, number)
            self._counters.wait_for(root, Counters.READY, number)
            copy(piece, slots[self.rank])
            self._counters.tell(Counters.FREE, number)
            begin += piece.numel()

    def _sum_small(self, flat: Tensor, into: Tensor) -> None:
        """Everybody adds everything, in the same order."""
        number = self._next_piece()
        self._put(flat, number)
        self._counters.wait_all(Counters.READY, number)
        slots = self._slots(number, flat)
        if into.is_cuda:
            into.copy_(add_up(slots, torch.empty_like(slots[0])))
        else:
            add_up(slots, into)
        self._counters.tell(Counters.FREE, number)

    def _put(self, piece: Tensor, number: int) -> None:
        self._wait_for_stage(number)
        copy(self._slots(number, piece)[self.rank], piece)
        self._counters.tell(Counters.READY, number)

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
        """What all workers have of a piece: one row for each."""
        dtype = piece.dtype
        if dtype not in self._stages_as:
            self._stages_as[dtype] = self._stages.view(dtype).view(STAGES, self.world_size, -1)
        return self._stages_as[dtype][number % STAGES, :, : piece.numel()]

    def _open_segment(self, nbytes: int) -> Segment:
        """Memory that rank 0 makes and the others find; `_all_have` follows."""
        key = f"shm/{self._num_segments}"
        self._num_segments += 1
        if self.rank == 0:
            segment = Segment.create(max(nbytes, 1))
            self._store.set(key, segment.address)
            return segment
        return Segment.attach(self._store.get(key).decode())

    def _all_have(self, segment: Segment) -> None:
        self.barrier()
        segment.close_file()


class Counters:
    """How far every worker is, in numbers that only grow; each worker writes its own line alone."""

    READY, SUMMED, FREE = 0, 1, 2

    def __init__(self, segment: Segment, offset: int, bells: Bells) -> None:
        self._words = segment.words(offset, WORDS_PER_LINE * bells.world_size)
        self._bells = bells
        self._mine = WORDS_PER_LINE * bells.rank
        self._lines = range(0, WORDS_PER_LINE * bells.world_size, WORDS_PER_LINE)

    @staticmethod
    def num_bytes(world_size: int) -> int:
        return LINE_BYTES * world_size

    def tell(self, kind: int, number: int) -> None:
        self._words[self._mine + kind] = number
        self._bells.ring_all()

    def first_behind(self, kind: int, number: int) -> int:
        """A worker that is not as far yet; -1 when everybody is."""
        words = self._words
        for line in self._lines:
            if words[line + kind] < number:
                return line // WORDS_PER_LINE
        return -1

    def wait_all(self, kind: int, number: int) -> None:
        self._bells.wait(lambda: self.first_behind(kind, number))

    def wait_for(self, peer: int, kind: int, number: int) -> None:
        words, word = self._words, peer * WORDS_PER_LINE + kind
        self._bells.wait(lambda: peer if words[word] < number else -1)


class ShmReduction(Reduction):
    """A vector per worker in shared memory, and one for the sum, which is read in place or copied over the own.

    A worker adds its part of a range when everybody has started the range: a long vector's by its crew, where it has
    one, while the worker's own thread goes on; else by the worker itself, whenever it enters the comm. Nobody starts
    a range again before it is done with the last sum, so sums are not overwritten while they are read.
    """

    def __init__(self, comm: ShmComm, segment: Segment, numel: int, dtype: torch.dtype, *, is_shared: bool) -> None:
        self._bells = comm._bells
        self._counters = Counters(segment, 0, self._bells)
        begin = Counters.num_bytes(comm.world_size)
        stride = in_lines(numel * dtype.itemsize)
        rows = segment.tensor(begin, stride // dtype.itemsize * (comm.world_size + 1), dtype)
        rows = rows.view(comm.world_size + 1, -1)[:, :numel]
        self._everybody, self._sum = rows[:-1], rows[-1]
        super().__init__(comm, rows[comm.rank])
        self.own.zero_()  # memory costs most when it is first touched
        self._is_shared = is_shared
        if is_shared:
            self.result = self._sum
        self._number = 0
        self._crew = comm._crew if numel * dtype.itemsize >= CREW_BYTES else None
        self._helper_counters = Counters(segment, 0, comm._helper_bells)
        self._ranges: deque[_Range] = deque()  # begun, own part not yet added
        self._num_filled = 0  # ranges that everybody was told of: of these, all before too
        self._told = 0
        self._added: set[int] = set()
        self._error: BaseException | None = None  # of a thread of the crew, to be raised by the worker's own
        self._lock = threading.Lock()

    @staticmethod
    def num_bytes(numel: int, dtype: torch.dtype, world_size: int) -> int:
        return Counters.num_bytes(world_size) + in_lines(numel * dtype.itemsize) * (world_size + 1)

    def start(self, begin: int, end: int, fill: Callable[[], None] | None = None) -> Work:
        self.comm._count("all_reduce", self.own[begin:end])
        bounds = part_bounds(end - begin, self.comm.world_size, self.own.element_size())
        rank = self.comm.rank
        mine = slice(begin + bounds[rank], begin + bounds[rank + 1])
        return self._begin(mine, slice(begin, end), fill)

    def start_scatter(self, begin: int, end: int, fill: Callable[[], None] | None = None) -> Work:
        self.comm._count("reduce_scatter", self.own[begin:end])
        mine = self.part(begin, end)
        return self._begin(mine, mine, fill)

    def progress(self) -> None:
        """Add the own parts of all ranges that everybody has started."""
        while self._ranges and self._counters.first_behind(Counters.READY, self._ranges[0].number) < 0:
            self._ranges.popleft().adding.lend_a_hand()

    def _begin(self, mine: slice, needed: slice, fill: Callable[[], None] | None) -> Work:
        self._number += 1
        number, crew = self._number, self._crew
        blocks = self._blocks(mine)
        adding = Division(blocks, self._add, partial(self._tell_added, number))
        work = _Range(self, number, adding, None if self._is_shared else needed)
        if crew is None:
            if fill is not None:
                fill()
            self._counters.tell(Counters.READY, number)
            self._ranges.append(work)
            return work
        if fill is None and self._num_filled == number - 1:
            self._num_filled = number
            self._counters.tell(Counters.READY, number)
        crew.submit(partial(self._do, work, fill, len(blocks)))
        return work

    def _do(self, work: _Range, fill: Callable[[], None] | None, num_blocks: int) -> None:
        """In the crew's first thread. Who did not come in time is named by the worker's own thread, which waits too."""
        if self._error is not None:
            return
        try:
            if fill is not None:
                fill()
        except BaseException as error:
            self._fail(error)
            return
        if self._num_filled < work.number:
            self._num_filled = work.number
            self._helper_counters.tell(Counters.READY, work.number)
        with suppress(CommError):
            self._helper_counters.wait_all(Counters.READY, work.number)
            if self._crew is not None:
                self._crew.call(work.adding.lend_a_hand, num_blocks - 2)
            work.adding.lend_a_hand()

    def _add(self, block: slice) -> None:
        add_up(self._everybody[:, block], self._sum[block])

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._bells.ring(self._bells.rank)

    def _tell_added(self, number: int, error: BaseException | None) -> None:
        """Say how far the own parts are added, without a gap."""
        if error is not None:
            self._fail(error)
            return
        with self._lock:
            self._added.add(number)
            while self._told + 1 in self._added:
                self._told += 1
                self._added.remove(self._told)
            self._counters.tell(Counters.SUMMED, self._told)

    def _finish(self, work: _Range) -> None:
        self._wait_all(Counters.READY, work.number)
        self.progress()  # earlier ranges first
        work.adding.lend_a_hand()
        self._wait_all(Counters.SUMMED, work.number)
        if work.private is not None:
            self._copy_out(work.private)

    def _wait_all(self, kind: int, number: int) -> None:
        def missing() -> int:
            if self._error is not None:
                raise self._error
            return self._counters.first_behind(kind, number)

        self._bells.wait(missing, may_spin=self._crew is None)

    def _copy_out(self, needed: slice) -> None:
        blocks = self._blocks(needed)
        done = threading.Event()
        copying = Division(blocks, lambda block: copy(self.own[block], self._sum[block]), lambda _: done.set())
        if self._crew is not None and len(blocks) > 1:
            self._crew.submit(copying.lend_a_hand)
            self._crew.call(copying.lend_a_hand, len(blocks) - 2)
        copying.lend_a_hand()
        done.wait()

    def _blocks(self, part: slice) -> list[slice]:
        """A part in as many pieces as there are threads to share it."""
        length = part.stop - part.start
        if length == 0:
            return []
        size = length
        if self._crew is not None:
            size = max(-(-length // (self._crew.size + 1)), BLOCK_BYTES // self.own.element_size())
        return [slice(first, min(first + size, part.stop)) for first in range(part.start, part.stop, size)]


class ShmCommon(Common):
    """One memory for all workers: what one writes the others have, so a gather is only a meeting."""

    is_one_memory: ClassVar[bool] = True

    def gather(self, ranges: Sequence[tuple[int, int]]) -> None:
        for begin, end in ranges:
            self.comm._count("all_gather", self.memory[begin : begin + (end - begin) // self.comm.world_size])
        self.comm.barrier()


class _Range:
    """A range of a reduction under way."""

    def __init__(self, reduction: ShmReduction, number: int, adding: Division, private: slice | None) -> None:
        self._reduction = reduction
        self.number, self.adding, self.private = number, adding, private
        self._is_done = False

    def wait(self) -> None:
        if not self._is_done:
            self._reduction._finish(self)
            self._is_done = True


def add_up(rows: Tensor, into: Tensor) -> Tensor:
    """The sum of rows, in one pass over all of them; `into` is none of them."""
    if rows.dtype == torch.bool:
        return torch.any(rows, 0, out=into)
    torch.sum(rows, 0, dtype=rows.dtype, out=into)
    return into


def copy(target: Tensor, source: Tensor) -> None:
    """Long stretches by the C library, whose copy does not read first what it is about to overwrite."""
    nbytes = target.numel() * target.element_size()
    if nbytes < MOVE_BYTES or target.is_cuda or source.is_cuda:
        target.copy_(source)
    else:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), nbytes)


def part_bounds(numel: int, world_size: int, itemsize: int) -> list[int]:
    """Where each worker's part of a vector begins, and where the last one ends: in whole cache lines."""
    per_line = max(LINE_BYTES // itemsize, 1)
    size = -(-numel // (world_size * per_line)) * per_line
    return [min(size * rank, numel) for rank in range(world_size + 1)]


def _check_node(store: Any, rank: int, node: str) -> None:
    if rank == 0:
        store.set("shm/node", node)
    elif store.get("shm/node").decode() != node:
        raise RunError(
            f"comm shm joins workers of one host, but worker {rank} is not on worker 0's; "
            "use comm hierarchical or torch"
        )


def _agree_on_pieces(store: Any, rank: int, world_size: int) -> int:
    """Bytes of a piece, from the cores that rank 0 sees: others may be allowed fewer."""
    if rank == 0:
        nbytes = PIECE_BYTES
        if len(os.sched_getaffinity(0)) <= world_size:
            most = STAGES_BYTES // STAGES // world_size // PIECE_BYTES * PIECE_BYTES
            nbytes = min(max(most, PIECE_BYTES), LONG_PIECE_BYTES)
        store.set("shm/piece", str(nbytes))
        return nbytes
    return int(store.get("shm/piece"))
