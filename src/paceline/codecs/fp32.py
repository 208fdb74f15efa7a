from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from paceline.codecs.base import Codec, TensorSpec
from paceline.comm import Comm, Operation


class Fp32(Codec):
    """Tensors travel as they are: float32, or float64 where the model is in float64."""

    name: ClassVar[str] = "fp32"

    def sum(self, tensor: Tensor, sum_over_workers: Callable[[Tensor], None], comm: Comm) -> None:  # noqa: ARG002
        sum_over_workers(tensor)

    def traffic(self, spec: TensorSpec, sum_traffic: Callable[[TensorSpec], list[Operation]]) -> list[Operation]:
        return sum_traffic(spec)
