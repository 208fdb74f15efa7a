"""Strategy `gather-scatter`: rank 0 averages the gradients of all workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.codecs import TensorSpec
from paceline.comm import Comm, Operation
from paceline.strategies.gradients import GradientAveraging


@dataclass(kw_only=True)
class GatherScatter(GradientAveraging):
    """Rank 0 gathers each gradient tensor, averages it and sends the mean to all; all traffic passes through rank 0."""

    name: ClassVar[str] = "gather-scatter"
    is_tried: ClassVar[bool] = False  # not tried by `tune`, because it is only a baseline

    def sum(self, tensor: Tensor) -> None:
        gather_scatter(tensor, self.worker.comm)

    def sum_bytes(self, spec: TensorSpec, rank: int, world_size: int) -> int:
        """Estimate the bytes that `sum` needs: on rank 0, all workers' tensors and their sum; elsewhere, 0."""
        return (world_size + 1) * spec.nbytes if rank == 0 else 0

    def sum_traffic(self, spec: TensorSpec, rank: int, world_size: int) -> list[Operation]:  # noqa: ARG002
        return [Operation("gather", spec.nbytes, 0), Operation("scatter", spec.nbytes, 0)]


def gather_scatter(tensor: Tensor, comm: Comm) -> None:
    """Sum a tensor over workers in place: rank 0 gathers the workers' tensors, adds them, and sends the sum to all."""
    pieces = comm.gather(tensor, root=0)
    if pieces:
        total = pieces[0].clone()
        for piece in pieces[1:]:
            comm.add(total, piece)
        pieces = [total] * comm.world_size
    comm.scatter(tensor, pieces, root=0)
