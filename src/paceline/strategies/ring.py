from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paceline.codecs import TensorSpec
from paceline.comm import Comm, Operation, Work
from paceline.strategies.base import Worker
from paceline.strategies.gradients import GradientsOrWeights

PIECE_BYTES = 4 << 20  # a chunk travels in even pieces of at most this: one is added while the next is on its way
AHEAD = 8  # receives that wait for data before it comes


@dataclass(kw_only=True)
class Ring(GradientsOrWeights):
    """All gradients as one vector of N chunks travel twice round the ring: once to add up, once to spread the sum."""

    name: ClassVar[str] = "ring"
    paper: ClassVar[str] = "Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002"
    fused: ClassVar[bool] = True

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        self._spare = Spare()

    def sum(self, tensor: Tensor) -> None:
        ring_all_reduce(tensor.view(-1), self.worker.comm, self._spare)

    def sum_bytes(self, spec: TensorSpec, rank: int, world_size: int) -> int:  # noqa: ARG002
        return spare_bytes(spec.nbytes // world_size)

    def sum_traffic(self, spec: TensorSpec, rank: int, world_size: int) -> list[Operation]:
        sizes = chunk_sizes(spec.numel, world_size)
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        operations = []
        for step in range(world_size - 1):
            for start in (rank, rank + 1):  # first trip, second trip
                operations.append(Operation("send", sizes[(start - step) % world_size] * spec.itemsize, right))
                operations.append(Operation("recv", sizes[(start - step - 1) % world_size] * spec.itemsize, left))
        return operations


class Spare:
    """Memory to receive into, kept from call to call: new memory would have to be paged in every time."""

    def __init__(self) -> None:
        self._memory: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def buffers(self, like: Tensor, numel: int, count: int) -> list[Tensor]:
        key = (like.dtype, like.device)
        if key not in self._memory or self._memory[key].numel() < numel * count:
            self._memory[key] = like.new_empty(numel * count)
        return list(self._memory[key][: numel * count].view(count, numel))


def spare_bytes(nbytes: int) -> int:
    """What `Spare` holds while a stretch of so many bytes arrives."""
    return AHEAD * min(nbytes, PIECE_BYTES)


def ring_all_reduce(vector: Tensor, comm: Comm, spare: Spare | None = None, *, piece_bytes: int = PIECE_BYTES) -> None:
    """Sum a vector over workers in place, with messages to the right-hand neighbour alone.

    In the first N-1 steps what arrives is added to the own chunk; then worker r owns the sum of chunk r + 1, and in
    the next N-1 steps sums replace what the others have. What arrives in one step is what leaves in the next, so a
    piece goes on as soon as it is complete, and nobody waits for the rest of its chunk.
    """
    world_size, rank = comm.world_size, comm.rank
    if world_size == 1:
        return
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = vector.split(chunk_sizes(vector.numel(), world_size))
    # Even pieces: a small last one would cost as many wake-ups as a large one.
    counts = [-(-chunk.numel() * chunk.element_size() // piece_bytes) for chunk in chunks]
    pieces = [list(chunk.tensor_split(count)) if count else [] for chunk, count in zip(chunks, counts, strict=True)]
    num_steps = 2 * (world_size - 1)
    arriving = [(step, part) for step in range(num_steps) for part in pieces[(rank - step - 1) % world_size]]
    num_added = sum(step < world_size - 1 for step, _ in arriving)
    # Pieces that are added land in a few buffers that stay in the cache; sums land where they belong.
    longest = max((part.numel() for _, part in arriving), default=0)
    buffers = (spare or Spare()).buffers(vector, longest, AHEAD)
    receives: list[tuple[Work, Tensor]] = []

    def expect(count: int) -> None:
        """Have receives waiting for so many pieces; for all sums as soon as the last buffer is in use."""
        for index in range(len(receives), count if count < num_added else len(arriving)):
            part = arriving[index][1]
            target = buffers[index % AHEAD][: part.numel()] if index < num_added else part
            receives.append((comm.irecv(target, left), target))

    # A message that finds its receive waiting is written by the sender at once: receives come before sends.
    expect(AHEAD)
    sends = [comm.isend(part, right) for part in pieces[rank]]
    for index, (step, part) in enumerate(arriving):
        work, received = receives[index]
        work.wait()
        if step < world_size - 1:
            comm.add(part, received)
        expect(index + 1 + AHEAD)
        if step < num_steps - 1:
            sends.append(comm.isend(part, right))
    for send in sends:
        send.wait()


def chunk_sizes(numel: int, world_size: int) -> list[int]:
    """Lengths of N chunks that differ by at most one element; some are empty when there are few elements."""
    each, extra = divmod(numel, world_size)
    return [each + (index < extra) for index in range(world_size)]
