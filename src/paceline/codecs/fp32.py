"""Codec `fp32`: tensors are sent without encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.codecs.base import Codec, Key, SumFunction, SumTraffic, TensorSpec
from paceline.comm import Comm, Operation


@dataclass(kw_only=True)
class Fp32(Codec):
    """Tensors are sent unchanged: float32, or float64 for a float64 model."""

    name: ClassVar[str] = "fp32"

    def sum(self, tensor: Tensor, sum_over_workers: SumFunction, comm: Comm, key: Key = 0) -> None:  # noqa: ARG002
        sum_over_workers(tensor)

    def traffic(self, spec: TensorSpec, sum_traffic: SumTraffic, world_size: int) -> list[Operation]:  # noqa: ARG002
        return sum_traffic(spec)
