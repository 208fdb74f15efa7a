"""What a tensor looks like on the wire.

A codec gets the strategy's own way to sum, and the comm, because not every encoding can be summed while encoded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paceline.comm import Comm, Operation


@dataclass(frozen=True)
class TensorSpec:
    """Size of a tensor, for predicting traffic without having it."""

    numel: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize


class Codec(ABC):
    """One encoding. Lossless ones keep a strategy's guarantee; others say how large their error may be."""

    name: ClassVar[str] = ""
    relative_error: ClassVar[float] = 0.0  # of one encoded number; 0 is lossless
    cast: ClassVar[torch.dtype | None] = None  # the number type, where the encoding is nothing but that

    @abstractmethod
    def sum(self, tensor: Tensor, sum_over_workers: Callable[[Tensor], None], comm: Comm) -> None:
        """Sum a tensor over workers in place, encoded on the way."""

    @abstractmethod
    def traffic(self, spec: TensorSpec, sum_traffic: Callable[[TensorSpec], list[Operation]]) -> list[Operation]:
        """The operations that `sum` causes on one worker."""
