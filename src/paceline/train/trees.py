"""Inputs and targets as trees: a tensor, or any nesting of dict, list and tuple that ends in tensors.

Leaves that are not tensors pass through every function here unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from paceline.data.base import Tree
from paceline.errors import UsageError


def first_tensor(tree: Tree) -> Tensor:
    """The first tensor of a tree; its first dimension counts samples."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            if leaf.ndim == 0:
                raise UsageError("a batch begins with a tensor without dimensions; its first one must count samples")
            return leaf
    raise UsageError(f"a batch of type {type(tree).__name__} holds no tensor; give tensors, or a nesting of them")


def num_samples(tree: Tree) -> int:
    """How many samples a batch holds: the first dimension of its first tensor."""
    return first_tensor(tree).shape[0]


def to_device(tree: Tree, device: torch.device | str) -> Tree:
    """The same tree with its tensors on a device."""
    return _map_tensors(lambda tensor: tensor.to(device), tree)


def cast_floats(tree: Tree, dtype: torch.dtype) -> Tree:
    """The same tree with its floating-point tensors in another precision; classes and tokens stay integers."""
    return _map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, tree)


def slice_tree(tree: Tree, start: int, stop: int) -> Tree:
    """The samples from start up to stop, as views."""
    return _map_tensors(lambda tensor: tensor[start:stop], tree)


def call_model(model: nn.Module, inputs: Tree) -> Any:
    """A tuple or list is the model's positional arguments, a dict its keyword arguments, else the one argument."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def _map_tensors(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    return tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)
