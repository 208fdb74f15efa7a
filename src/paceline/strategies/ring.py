from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paceline.codecs import TensorSpec
from paceline.comm import Comm, Operation
from paceline.strategies.base import GradientAveraging

# A chunk travels in pieces of this size, so that one is added while the next is on its way.
PIECE_BYTES = 1 << 20


@dataclass(kw_only=True)
class Ring(GradientAveraging):
    """All gradients as one vector of N chunks travel twice round the ring: once to add up, once to spread the sum."""

    name: ClassVar[str] = "ring"
    paper: ClassVar[str] = "Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002"
    fused: ClassVar[bool] = True

    def sum(self, tensor: Tensor) -> None:
        ring_all_reduce(tensor.view(-1), self.worker.comm)

    def sum_traffic(self, spec: TensorSpec, rank: int, world_size: int) -> list[Operation]:
        sizes = chunk_sizes(spec.numel, world_size)
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        operations = []
        for step in range(world_size - 1):
            for start in (rank, rank + 1):  # first trip, second trip
                operations.append(Operation("send", sizes[(start - step) % world_size] * spec.itemsize, right))
                operations.append(Operation("recv", sizes[(start - step - 1) % world_size] * spec.itemsize, left))
        return operations


def ring_all_reduce(vector: Tensor, comm: Comm) -> None:
    """Sum a vector over workers in place, with messages to the right-hand neighbour alone."""
    world_size, rank = comm.world_size, comm.rank
    chunks = list(vector.split(chunk_sizes(vector.numel(), world_size)))
    # Reduce-scatter: what arrives is added to the own chunk and sent on in the next step.
    for step in range(world_size - 1):
        _pass_on(chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size], comm, add=True)
    # All-gather: this worker now owns the sum of chunk rank + 1; sums replace what the others have.
    for step in range(world_size - 1):
        _pass_on(chunks[(rank - step + 1) % world_size], chunks[(rank - step) % world_size], comm, add=False)


def _pass_on(outgoing: Tensor, incoming: Tensor, comm: Comm, *, add: bool) -> None:
    """Send one chunk to the right while one arrives from the left, piece by piece."""
    right, left = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    piece = PIECE_BYTES // outgoing.element_size()
    sends = [comm.isend(part, right) for part in outgoing.split(piece)] if outgoing.numel() else []
    targets = list(incoming.split(piece)) if incoming.numel() else []
    buffers = [torch.empty_like(target) for target in targets] if add else targets
    receives = [comm.irecv(buffer, left) for buffer in buffers]
    for receive, buffer, target in zip(receives, buffers, targets, strict=True):
        receive.wait()
        if add:
            comm.add(target, buffer)
    for send in sends:
        send.wait()


def chunk_sizes(numel: int, world_size: int) -> list[int]:
    """Lengths of N chunks that differ by at most one element; some are empty when there are few elements."""
    each, extra = divmod(numel, world_size)
    return [each + (index < extra) for index in range(world_size)]
