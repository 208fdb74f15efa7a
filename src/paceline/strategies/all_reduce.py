"""Strategy `all-reduce`: one all-reduce per gradient tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.codecs import TensorSpec
from paceline.comm import Operation
from paceline.strategies.gradients import GradientAveraging


@dataclass(kw_only=True)
class AllReduce(GradientAveraging):
    """Each gradient tensor is summed by the comm's own all-reduce, one tensor after the other."""

    name: ClassVar[str] = "all-reduce"

    def sum(self, tensor: Tensor) -> None:
        self.worker.comm.all_reduce(tensor)

    def sum_traffic(self, spec: TensorSpec, rank: int, world_size: int) -> list[Operation]:  # noqa: ARG002
        return [Operation("all_reduce", spec.nbytes)]
