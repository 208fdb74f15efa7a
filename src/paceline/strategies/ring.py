"""Strategy `ring`: ring all-reduce, written with point-to-point messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paceline.codecs import TensorSpec
from paceline.comm import Comm, Operation, Work
from paceline.strategies.base import Worker
from paceline.strategies.gradients import GradientsOrWeights

PIECE_BYTES = 4 << 20  # largest piece of a chunk that is sent as one message
AHEAD = 8  # receives that are posted before their data arrives


@dataclass(kw_only=True)
class Ring(GradientsOrWeights):
    """All gradients as one vector of N chunks travel round the ring twice: a reduce-scatter, then an all-gather."""

    name: ClassVar[str] = "ring"
    paper: ClassVar[str] = "Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002"
    fused: ClassVar[bool] = True

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        self._pool = BufferPool()

    def sum(self, tensor: Tensor) -> None:
        ring_all_reduce(tensor.view(-1), self.worker.comm, self._pool)

    def sum_bytes(self, spec: TensorSpec, rank: int, world_size: int) -> int:  # noqa: ARG002
        return pool_bytes(spec.nbytes // world_size)

    def sum_traffic(self, spec: TensorSpec, rank: int, world_size: int) -> list[Operation]:
        sizes = chunk_sizes(spec.numel, world_size)
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        operations = []
        for step in range(world_size - 1):
            for start in (rank, rank + 1):  # reduce-scatter, all-gather
                operations.append(Operation("send", sizes[(start - step) % world_size] * spec.itemsize, right))
                operations.append(Operation("recv", sizes[(start - step - 1) % world_size] * spec.itemsize, left))
        return operations


class BufferPool:
    """Receive buffers that are reused in every step, so that the kernel does not have to map new memory each time."""

    def __init__(self) -> None:
        self._memory: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def buffers(self, like: Tensor, numel: int, count: int) -> list[Tensor]:
        key = (like.dtype, like.device)
        if key not in self._memory or self._memory[key].numel() < numel * count:
            self._memory[key] = like.new_empty(numel * count)
        return list(self._memory[key][: numel * count].view(count, numel))


def pool_bytes(nbytes: int) -> int:
    """Return the size in bytes of a `BufferPool` that is used to receive slices of `nbytes` bytes in pieces."""
    return AHEAD * min(nbytes, PIECE_BYTES)


def ring_all_reduce(
    vector: Tensor, comm: Comm, pool: BufferPool | None = None, *, piece_bytes: int = PIECE_BYTES
) -> None:
    """Sum a vector over workers in place; each worker receives from rank - 1 and sends to rank + 1 only.

    The vector is divided into one chunk per worker (N in total), and each chunk into pieces of at most `piece_bytes`
    bytes. In the first N-1 steps a worker adds each received chunk to its own; then worker r has the sum of chunk
    r + 1 (modulo N). In the next N-1 steps each worker replaces its chunks by received sums. The chunk received in one
    step is sent in the next. Each piece is forwarded as soon as it is complete, before the rest of its chunk arrives.
    """
    world_size, rank = comm.world_size, comm.rank
    if world_size == 1:
        return
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = vector.split(chunk_sizes(vector.numel(), world_size))
    pieces = [split_pieces(chunk, piece_bytes) for chunk in chunks]
    num_steps = 2 * (world_size - 1)
    arriving = [(step, part) for step in range(num_steps) for part in pieces[(rank - step - 1) % world_size]]
    num_added = sum(step < world_size - 1 for step, _ in arriving)
    # Pieces to add are received into a few buffers, which stay in the cache. Final sums are received into the vector.
    longest = max((part.numel() for _, part in arriving), default=0)
    buffers = (pool or BufferPool()).buffers(vector, longest, AHEAD)
    receives: list[tuple[Work, Tensor]] = []

    def post_receives(count: int) -> None:
        """Post receives until `count` are posted in total.

        If `count` includes all receives that need a buffer, post the remaining receives too: they write final sums
        directly into the vector.
        """
        for index in range(len(receives), count if count < num_added else len(arriving)):
            part = arriving[index][1]
            target = buffers[index % AHEAD][: part.numel()] if index < num_added else part
            receives.append((comm.irecv(target, left), target))

    # Receives are posted before sends: the sender writes directly into a posted receive.
    post_receives(AHEAD)
    sends = [comm.isend(part, right) for part in pieces[rank]]
    for index, (step, part) in enumerate(arriving):
        work, received = receives[index]
        work.wait()
        if step < world_size - 1:
            comm.add(part, received)
        post_receives(index + 1 + AHEAD)
        if step < num_steps - 1:
            sends.append(comm.isend(part, right))
    for send in sends:
        send.wait()


def split_pieces(vector: Tensor, piece_bytes: int = PIECE_BYTES) -> list[Tensor]:
    """Split a vector into pieces that are sent separately, so that a worker adds one while it receives the next.

    The sizes of pieces differ by at most one element. Full pieces with a smaller one at the end would not be faster,
    because waking up the receiving process takes the same time for a message of any size.
    """
    count = -(-vector.numel() * vector.element_size() // piece_bytes)
    return list(vector.tensor_split(count)) if count else []


def chunk_sizes(numel: int, world_size: int) -> list[int]:
    """Return the lengths of the `world_size` chunks of a vector. They differ by at most one element; some may be 0."""
    each, extra = divmod(numel, world_size)
    return [each + (index < extra) for index in range(world_size)]
