"""What training asks of data: samples by index, a whole batch at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Tree = Any  # a tensor, or any nesting of dict, list and tuple that ends in tensors
Batch = tuple[Tree, Tree]  # (input, target); the first dimension of every tensor counts samples


class Dataset(ABC):
    """Samples addressed by index. A sample depends on seed, epoch and index alone, never on who asks."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, indices: Tensor, epoch: int) -> Batch:
        """The samples at these indices (int64), as they are in that epoch (augmentation differs by epoch)."""

    def labels(self) -> Tensor | None:
        """Every sample's class (int64); None where targets are no classes, or reading them means reading everything."""
        return None


@dataclass(frozen=True)
class Data:
    """A training and a test set, and what a model must know of them."""

    train: Dataset
    test: Dataset
    shape: tuple[int, ...] = ()  # of one input, where it is a single tensor: (channels, height, width)
    num_classes: int = 0  # 0 where the target is not a class
