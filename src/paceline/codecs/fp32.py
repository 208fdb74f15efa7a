"""Codec `fp32`: tensors are sent without encoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.codecs.base import Codec, Key, TensorSpec
from paceline.comm import Comm, Operation


@dataclass(kw_only=True)
class Fp32(Codec):
    """Tensors are sent unchanged: float32, or float64 for a float64 model."""

    name: ClassVar[str] = "fp32"

    def sum(
        self,
        tensor: Tensor,
        sum_over_workers: Callable[[Tensor], None],
        comm: Comm,  # noqa: ARG002
        key: Key = 0,  # noqa: ARG002
    ) -> None:
        sum_over_workers(tensor)

    def traffic(
        self,
        spec: TensorSpec,
        sum_traffic: Callable[[TensorSpec], list[Operation]],
        world_size: int,  # noqa: ARG002
    ) -> list[Operation]:
        return sum_traffic(spec)
