"""Data sets: the interface that training uses, a data set of tensors, and functions on batches of nested tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from paceline.errors import UsageError

Tree = Any  # a tensor, or nested dicts, lists and tuples of tensors; leaves that are not tensors stay unchanged
Batch = tuple[Tree, Tree]  # (input, target); the first dimension of every tensor counts samples


class BadSample(NamedTuple):
    """A sample that cannot be read."""

    split: str  # train or test
    name: str  # path of a file, or `sample INDEX`
    reason: str


class Dataset(ABC):
    """A data set whose samples are addressed by index.

    A sample depends only on seed, epoch and index, so that it is the same on every worker.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, indices: Tensor, epoch: int) -> Batch:
        """Return the samples at these indices (int64). With augmentation, the samples differ between epochs."""

    def labels(self) -> Tensor | None:
        """Return the class of every sample (int64), or None if targets are not classes or not in memory."""
        return None


@dataclass(frozen=True)
class Data:
    """A training set, a test set, and the sizes that a model needs."""

    train: Dataset
    test: Dataset
    shape: tuple[int, ...] = ()  # of one input, such as (channels, height, width); () if it is not a single tensor
    num_classes: int = 0  # 0 if the target is not a class
    skipped: tuple[BadSample, ...] = ()  # samples that cannot be read and were left out


class NoSamples(Dataset):
    """A data set without samples."""

    def __len__(self) -> int:
        return 0

    def batch(self, indices: Tensor, epoch: int) -> Batch:  # noqa: ARG002
        raise AssertionError("there are no samples")


def data_without_samples(shape: tuple[int, ...], num_classes: int) -> Data:
    """Return data that has sizes but no samples, which is enough to build a model."""
    return Data(NoSamples(), NoSamples(), shape, num_classes)


class Tensors(Dataset):
    """Data set of inputs and targets in memory. Every tensor has the samples along its first dimension."""

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


class Selected(Dataset):
    """Some samples of another data set, `whole`: those at `indices` (int64)."""

    def __init__(self, whole: Dataset, indices: Tensor) -> None:
        assert len(indices) > 0
        self.whole = whole
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def batch(self, indices: Tensor, epoch: int) -> Batch:
        return self.whole.batch(self._indices[indices], epoch)

    def labels(self) -> Tensor | None:
        labels = self.whole.labels()
        return None if labels is None else labels[self._indices]


def first_tensor(tree: Tree) -> Tensor:
    """Return the first tensor of a batch; raise UsageError if there is none or if it is a scalar."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            if leaf.ndim == 0:
                raise UsageError(
                    "the first tensor of a batch is a scalar; its first dimension must be the samples of the batch"
                )
            return leaf
    raise UsageError(
        f"a batch of type {type(tree).__name__} has no tensor; use tensors, or nested dicts, lists and tuples of them"
    )


def num_samples(tree: Tree) -> int:
    """Return the number of samples of a batch: the size of the first dimension of its first tensor."""
    return first_tensor(tree).shape[0]


def to_device(tree: Tree, device: torch.device | str) -> Tree:
    """Return a batch with all tensors moved to a device."""
    return map_tensors(lambda tensor: tensor.to(device), tree)


def cast_floats(tree: Tree, dtype: torch.dtype) -> Tree:
    """Return a batch with all floating-point tensors converted to another precision."""
    return map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, tree)


def slice_tree(tree: Tree, start: int, stop: int) -> Tree:
    """Return the samples of a batch from `start` to `stop` (excluded), as views."""
    return map_tensors(lambda tensor: tensor[start:stop], tree)


def call_model(model: nn.Module, inputs: Tree) -> Any:
    """Call a model with a batch of inputs.

    A tuple or list is passed as positional arguments, a dict as keyword arguments, and anything else as one argument.
    """
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def map_tensors(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Return nested tuples, lists and dicts in which each tensor is replaced by the result of a function."""
    return tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)
