"""Split nested values into plain JSON values and tensors, and join them again.

A state consists of None, bool, int, float, str, lists, tuples, dicts (with keys of type str or int) and tensors. The
tensors are stored in one file, apart from the rest. In the plain values, a small dict with its name stands for each.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from paceline.errors import UsageError

Tree = Any  # nested values as described above

_TENSOR, _TUPLE, _DICT, _FLOAT = "$tensor", "$tuple", "$dict", "$float"  # keys of the dicts that stand for values


def split(tree: Tree) -> tuple[Any, dict[str, Tensor]]:
    """Return the plain values of a state, and its tensors by name.

    The tensors are contiguous. They share memory with those of the state where that is possible.
    """
    tensors: dict[str, Tensor] = {}
    return _split(tree, "", tensors), tensors


def join(plain: Any, tensors: dict[str, Tensor]) -> Tree:
    """Return the state that `split` was called with. Raises ValueError or KeyError for damaged plain values."""
    if isinstance(plain, list):
        return [join(item, tensors) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if _TENSOR in plain:
        tensor = tensors[plain[_TENSOR]]
        order = plain.get("order")
        return tensor if order is None else tensor.permute([order.index(dim) for dim in range(tensor.dim())])
    if _TUPLE in plain:
        return tuple(join(item, tensors) for item in plain[_TUPLE])
    if _DICT in plain:
        return {key: join(value, tensors) for key, value in plain[_DICT]}
    if _FLOAT in plain:
        return float(plain[_FLOAT])
    return {key: join(value, tensors) for key, value in plain.items()}


def _split(tree: Tree, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        return _split_tensor(tree, path or "value", tensors)
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else {_FLOAT: str(tree)}
    if tree is None or isinstance(tree, str | bool | int):
        return tree
    if isinstance(tree, list | tuple):
        items = [_split(item, f"{path}/{index}", tensors) for index, item in enumerate(tree)]
        return {_TUPLE: items} if isinstance(tree, tuple) else items
    if isinstance(tree, dict):
        parts = {key: _split(value, f"{path}/{key}" if path else str(key), tensors) for key, value in tree.items()}
        if all(isinstance(key, str) and not key.startswith("$") for key in tree):
            return parts
        if all(isinstance(key, str | int) and not isinstance(key, bool) for key in tree):
            return {_DICT: [[key, value] for key, value in parts.items()]}
        raise UsageError(f"a checkpoint cannot hold {path!r}: keys of a dict must be strings or whole numbers")
    raise UsageError(
        f"a checkpoint cannot hold {path!r}, which is a {type(tree).__name__}; it holds tensors, numbers, text, None, "
        "lists and dicts"
    )


def _split_tensor(tensor: Tensor, path: str, tensors: dict[str, Tensor]) -> Any:
    tensor = tensor.detach()
    name = path
    while name in tensors:  # such as the keys 1 and "1" of one dict
        name += "'"
    if tensor.is_contiguous():
        tensors[name] = tensor
        return {_TENSOR: name}
    # A dense tensor in another memory layout, such as channels-last, keeps its layout.
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    moved = tensor.permute(order)
    if not moved.is_contiguous():
        tensors[name] = tensor.contiguous()
        return {_TENSOR: name}
    tensors[name] = moved
    return {_TENSOR: name, "order": order}


def private_copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of contiguous tensors in the main memory, which later training steps do not change."""
    return {
        name: tensor.clone() if tensor.device.type == "cpu" else tensor.to("cpu", copy=True)
        for name, tensor in tensors.items()
    }


def restore_(target: Tensor, source: Tensor) -> None:
    """Copy the values of `source` to `target` in place. Raises ValueError if their shapes differ."""
    if target.shape != source.shape:
        raise ValueError(f"its shape is {tuple(source.shape)}, not {tuple(target.shape)}")
    with torch.no_grad():
        target.copy_(source)
