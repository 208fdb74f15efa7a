"""Functions on trees: tensors, or nested dicts, lists and tuples of tensors. Other leaves are left unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from paceline.errors import UsageError

Tree = Any  # a tensor, or nested dicts, lists and tuples of tensors


def first_tensor(tree: Tree) -> Tensor:
    """Return the first tensor of a batch, whose first dimension counts samples."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            if leaf.ndim == 0:
                raise UsageError("the first tensor of a batch has no dimensions; the first must count samples")
            return leaf
    raise UsageError(
        f"a batch of type {type(tree).__name__} has no tensor; use tensors, or nested dicts, lists and tuples of them"
    )


def num_samples(tree: Tree) -> int:
    """Return the number of samples of a batch: the first dimension of its first tensor."""
    return first_tensor(tree).shape[0]


def to_device(tree: Tree, device: torch.device | str) -> Tree:
    """Move all tensors to a device."""
    return map_tensors(lambda tensor: tensor.to(device), tree)


def cast_floats(tree: Tree, dtype: torch.dtype) -> Tree:
    """Convert floating-point tensors to another precision."""
    return map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, tree)


def slice_tree(tree: Tree, start: int, stop: int) -> Tree:
    """Return the samples from start to stop (excluded), as views."""
    return map_tensors(lambda tensor: tensor[start:stop], tree)


def call_model(model: nn.Module, inputs: Tree) -> Any:
    """Call a model with a tuple or list as positional arguments, a dict as keyword arguments, or one argument."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def map_tensors(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Apply a function to all tensors of a tree."""
    return tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)
