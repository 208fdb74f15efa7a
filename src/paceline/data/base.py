"""Data sets: the interface that training uses, tensors in memory, and the first samples of another set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from paceline.data.trees import Tree, map_tensors
from paceline.errors import UsageError

Batch = tuple[Tree, Tree]  # (input, target); the first dimension of every tensor counts samples


class Dataset(ABC):
    """Samples addressed by index. A sample depends only on seed, epoch and index, so it is the same on every worker."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, indices: Tensor, epoch: int) -> Batch:
        """Return the samples at these indices (int64) in an epoch; augmentation differs between epochs."""

    def labels(self) -> Tensor | None:
        """Return the class of every sample (int64); None if targets are not classes or not in memory."""
        return None


@dataclass(frozen=True)
class Data:
    """A training set, a test set, and the sizes that a model needs."""

    train: Dataset
    test: Dataset
    shape: tuple[int, ...] = ()  # of one input that is a single tensor: (channels, height, width)
    num_classes: int = 0  # 0 if the target is not a class


class Tensors(Dataset):
    """Inputs and targets held in memory; every tensor in them counts samples on its first dimension."""

    def __init__(self, inputs: Tree, targets: Tree) -> None:
        self.inputs = inputs
        self.targets = targets
        lengths = {len(tensor) for tensor in tree_leaves((inputs, targets))}
        if len(lengths) != 1:
            counts = " and ".join(map(str, sorted(lengths)))
            raise UsageError(f"inputs and targets of a data set must have the same number of samples, not {counts}")
        self._num_samples = lengths.pop()

    def __len__(self) -> int:
        return self._num_samples

    def batch(self, indices: Tensor, epoch: int) -> Batch:  # noqa: ARG002
        inputs, targets = map_tensors(lambda tensor: tensor[indices], (self.inputs, self.targets))
        return inputs, targets

    def labels(self) -> Tensor | None:
        targets = self.targets
        is_class = isinstance(targets, Tensor) and targets.dtype is torch.int64 and targets.dim() == 1
        return targets if is_class else None


class First(Dataset):
    """The first samples of another set."""

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
