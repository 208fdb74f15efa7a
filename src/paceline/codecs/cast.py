"""Codecs `fp16` and `bf16`: tensors are cast to 16 bits and summed in that type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paceline.codecs.base import Codec, Key, SumFunction, SumTraffic, TensorSpec
from paceline.comm import Comm, Operation


@dataclass(kw_only=True)
class Cast(Codec):
    """Tensors are sent and summed in another data type."""

    cast: ClassVar[torch.dtype]

    def sum(self, tensor: Tensor, sum_over_workers: SumFunction, comm: Comm, key: Key = 0) -> None:  # noqa: ARG002
        encoded = tensor.to(self.cast)
        sum_over_workers(encoded)
        tensor.copy_(encoded)

    def traffic(self, spec: TensorSpec, sum_traffic: SumTraffic, world_size: int) -> list[Operation]:  # noqa: ARG002
        return sum_traffic(TensorSpec(spec.numel, self.cast.itemsize))

    def error_bound(self, world_size: int) -> float:
        # Each element is rounded once, and so is each of W - 1 partial sums; the factor 2 covers subnormal numbers.
        return 2 * world_size * self.relative_error


@dataclass(kw_only=True)
class Fp16(Cast):
    """IEEE half precision: 11 significant bits, overflows beyond 65,504."""

    name: ClassVar[str] = "fp16"
    cast: ClassVar[torch.dtype] = torch.float16
    relative_error: ClassVar[float] = 2.0**-11


@dataclass(kw_only=True)
class Bf16(Cast):
    """bfloat16: float32's range with 8 significant bits."""

    name: ClassVar[str] = "bf16"
    cast: ClassVar[torch.dtype] = torch.bfloat16
    relative_error: ClassVar[float] = 2.0**-8
