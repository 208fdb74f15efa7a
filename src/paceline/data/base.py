"""What training asks of data: samples by index, a whole batch at a time.

Data sets of plain tensors: nested tensors indexed on their first dimension, and the first samples of a set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.errors import UsageError

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


class Tensors(Dataset):
    """Inputs and targets held in memory; every tensor in them counts samples on its first dimension."""

    def __init__(self, inputs: Tree, targets: Tree) -> None:
        self.inputs = inputs
        self.targets = targets
        lengths = {len(tensor) for tensor in leaves((inputs, targets))}
        if len(lengths) != 1:
            counts = " and ".join(map(str, sorted(lengths)))
            raise UsageError(f"inputs and targets of a data set must have equally many samples, not {counts}")
        self._num_samples = lengths.pop()

    def __len__(self) -> int:
        return self._num_samples

    def batch(self, indices: Tensor, epoch: int) -> Batch:  # noqa: ARG002
        return map_leaves(self.inputs, lambda tensor: tensor[indices]), map_leaves(
            self.targets, lambda tensor: tensor[indices]
        )

    def labels(self) -> Tensor | None:
        targets = self.targets
        is_class = isinstance(targets, Tensor) and targets.dtype is torch.int64 and targets.dim() == 1
        return targets if is_class else None


class First(Dataset):
    """The first samples of another set, each exactly as it is there."""

    def __init__(self, dataset: Dataset, num_samples: int) -> None:
        assert 0 < num_samples <= len(dataset)
        self._dataset = dataset
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def batch(self, indices: Tensor, epoch: int) -> Batch:
        return self._dataset.batch(indices, epoch)

    def labels(self) -> Tensor | None:
        labels = self._dataset.labels()
        return None if labels is None else labels[: self._num_samples]


def leaves(tree: Tree) -> Iterator[Any]:
    """Whatever a nesting of dict, list and tuple ends in, tensor or not."""
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        yield tree
        return
    for item in tree:
        yield from leaves(item)


def map_leaves(tree: Tree, function: Callable[[Any], Any]) -> Tree:
    """The same nesting with a function applied to each leaf."""
    if isinstance(tree, dict):
        return {key: map_leaves(item, function) for key, item in tree.items()}
    if isinstance(tree, list):
        return [map_leaves(item, function) for item in tree]
    if isinstance(tree, tuple):
        return tuple(map_leaves(item, function) for item in tree)
    return function(tree)
