"""Strategy `root-average`: rank 0 receives all gradients and sends the mean back, in point-to-point messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paceline.codecs import TensorSpec
from paceline.comm import Operation
from paceline.strategies.gradients import GradientAveraging


@dataclass(kw_only=True)
class RootAverage(GradientAveraging):
    """Each gradient is sent to rank 0, which sends the mean back: the all-reduce of many tutorials."""

    name: ClassVar[str] = "root-average"
    is_tried: ClassVar[bool] = False  # not tried by `tune`, because it is only a baseline

    def sum(self, tensor: Tensor) -> None:
        comm = self.worker.comm
        if comm.rank != 0:
            comm.send(tensor, 0)
            comm.recv(tensor, 0)
            return
        received = torch.empty_like(tensor)
        for peer in range(1, comm.world_size):
            comm.recv(received, peer)
            comm.add(tensor, received)
        for peer in range(1, comm.world_size):
            comm.send(tensor, peer)

    def sum_traffic(self, spec: TensorSpec, rank: int, world_size: int) -> list[Operation]:
        peers = range(1, world_size) if rank == 0 else [0]
        return [Operation(op, spec.nbytes, peer) for peer in peers for op in ("send", "recv")]
