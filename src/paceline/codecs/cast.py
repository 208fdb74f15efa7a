"""Encodings that are only another number type: what they encode can be summed as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from paceline.codecs.base import Codec, TensorSpec
from paceline.comm import Comm, Operation


class Cast(Codec):
    """Tensors travel, and are summed, in another number type."""

    cast: ClassVar[torch.dtype]

    def sum(self, tensor: Tensor, sum_over_workers: Callable[[Tensor], None], comm: Comm) -> None:  # noqa: ARG002
        encoded = tensor.to(self.cast)
        sum_over_workers(encoded)
        tensor.copy_(encoded)

    def traffic(self, spec: TensorSpec, sum_traffic: Callable[[TensorSpec], list[Operation]]) -> list[Operation]:
        return sum_traffic(TensorSpec(spec.numel, self.cast.itemsize))
