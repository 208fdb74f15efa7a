"""Convert nodes of a torch.fx trace (modules, functions, methods) to operations of the quantized graph.

A reader is a function that converts one node. It returns a list of operations; or the name of the input, if the node
returns its input unchanged; or None, if the node has no integer implementation.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from paceline.errors import UsageError
from paceline.quantize.ops import Add, AveragePool, BatchNorm, Clip, Conv, Flatten, Linear, MaxPool, Op, Pair, Relu

Converted = list[Op] | str | None


@dataclass(frozen=True, eq=False)
class Reading:
    """A node of the trace, with access to its inputs, arguments and shapes."""

    node: fx.Node
    aliases: dict[str, str]  # from the name of a node that returns its input unchanged to the name of the input
    module: Any = None  # the module that the node calls, if any

    def name_of(self, node: Any) -> str:
        """Return the name of the node's output tensor, or of its input if the node returns the input unchanged."""
        name: str = node.name
        return self.aliases.get(name, name)

    @property
    def source(self) -> str:
        """Name of the tensor that is the node's first input."""
        return self.name_of(self.input_node)

    @property
    def input_node(self) -> Any:
        """The node that computes the first input, which is passed as `f(x)` or as `f(input=x)`."""
        return self.node.args[0] if self.node.args else self.node.kwargs.get("input")

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument of the node's call, by position or name.

        If the node calls a module, return the attribute `name` of the module.
        """
        if self.module is not None:
            return getattr(self.module, name, default)
        if len(self.node.args) > position:
            return self.node.args[position]
        return self.node.kwargs.get(name, default)

    def shape(self, node: Any = None) -> tuple[int, ...] | None:
        """Return the output shape of `node` (default: this node), or None if the shape is unknown."""
        meta: Any = (node or self.node).meta.get("tensor_meta")
        return tuple(meta.shape) if isinstance(getattr(meta, "shape", None), torch.Size) else None

    def op(self, kind: Callable[..., Op], **settings: Any) -> list[Op]:
        """Return a list with one operation of class `kind` for this node, which must have one input."""
        return [kind(name=self.node.name, inputs=(self.source,), **settings)]


def _pair(value: Any) -> Pair:
    items = _items(value)
    return int(items[0]), int(items[-1])


def _floats(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().to(torch.float32)


def _bias(module: Any, num_outputs: int) -> Tensor:
    return _floats(module.bias) if module.bias is not None else torch.zeros(num_outputs)


def _conv(reading: Reading) -> Converted:
    module = reading.module
    padding = _conv_padding(module)
    if module.padding_mode != "zeros" or padding is None:
        return None
    return reading.op(
        Conv,
        weight=_floats(module.weight),
        bias=_bias(module, module.out_channels),
        stride=_pair(module.stride),
        padding=padding,
        dilation=_pair(module.dilation),
        groups=module.groups,
        module=str(reading.node.target),
    )


def _conv_padding(module: nn.Conv2d) -> Pair | None:
    """Return the padding in pixels, or None if padding="same" needs different amounts on opposite sides."""
    if module.padding == "valid":
        return (0, 0)
    if module.padding != "same":
        return _pair(module.padding)
    totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    return None if any(total % 2 for total in totals) else (totals[0] // 2, totals[1] // 2)


def _linear(reading: Reading) -> Converted:
    module = reading.module
    shape = reading.shape()
    if shape is None or len(shape) != 2:
        return None
    weight, bias = _floats(module.weight), _bias(module, module.out_features)
    return reading.op(Linear, weight=weight, bias=bias, module=str(reading.node.target))


def _batchnorm(reading: Reading) -> Converted:
    module, shape = reading.module, reading.shape()
    if module.running_mean is None or module.running_var is None:
        raise UsageError(
            f"BatchNorm {reading.node.target} has no running statistics and cannot be folded; train with a "
            "--batchnorm other than off"
        )
    if shape is None or len(shape) not in (2, 4) or (len(shape) == 2 and not _follows_linear(reading)):
        return None
    size = len(module.running_mean)
    weight, bias = _floats(module.weight) if module.weight is not None else torch.ones(size), _bias(module, size)
    factor = weight / (_floats(module.running_var) + module.eps).sqrt()
    return reading.op(BatchNorm, factor=factor, offset=bias - _floats(module.running_mean) * factor)


def _follows_linear(reading: Reading) -> bool:
    """Return whether the node's input comes from a linear layer whose output no other node reads."""
    before, owner = reading.node.args[0], reading.node.graph.owning_module
    if not isinstance(before, fx.Node) or before.op != "call_module" or owner is None:
        return False
    return len(before.users) == 1 and type(owner.get_submodule(str(before.target))) is nn.Linear


def _relu(reading: Reading) -> Converted:
    return reading.op(Relu, clip=Clip())


def _relu6(reading: Reading) -> Converted:
    return reading.op(Relu, clip=Clip(6.0))


def _hardtanh(reading: Reading) -> Converted:
    low, high = float(reading.argument(1, "min_val", -1.0)), float(reading.argument(2, "max_val", 1.0))
    return reading.op(Relu, clip=Clip(high)) if low == 0 < high else None


def _windows(reading: Reading) -> tuple[Pair, Pair, Pair] | None:
    """Return kernel size, stride and padding of a pooling operation, or None if any of them depends on a tensor."""
    kernel = reading.argument(1, "kernel_size")
    stride, padding = reading.argument(2, "stride") or kernel, reading.argument(3, "padding", 0)
    if any(isinstance(value, fx.Node) for given in (kernel, stride, padding) for value in _items(given)):
        return None
    return _pair(kernel), _pair(stride), _pair(padding)


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else (value,)


def _max_pool(reading: Reading) -> Converted:
    windows = _windows(reading)
    if windows is None:
        return None
    if reading.argument(5, "ceil_mode", False) or _pair(reading.argument(4, "dilation", 1)) != (1, 1):
        return None
    if reading.argument(6, "return_indices", False):
        return None
    kernel, stride, padding = windows
    return reading.op(MaxPool, kernel=kernel, stride=stride, padding=padding)


def _average_pool(reading: Reading) -> Converted:
    windows = _windows(reading)
    if windows is None:
        return None
    kernel, stride, padding = windows
    counts_padding = reading.argument(5, "count_include_pad", True) or padding == (0, 0)
    if reading.argument(4, "ceil_mode", False) or not counts_padding:
        return None
    if reading.argument(6, "divisor_override", None) is not None:
        return None
    return reading.op(AveragePool, kernel=kernel, stride=stride, padding=padding)


def _adaptive_pool(reading: Reading) -> Converted:
    """Convert adaptive average pooling to average pooling if all windows have the same size; else return None."""
    before, after = reading.shape(reading.input_node), reading.shape()
    if before is None or after is None or len(after) != 4 or before[2] % after[2] or before[3] % after[3]:
        return None
    kernel = (before[2] // after[2], before[3] // after[3])
    return reading.op(AveragePool, kernel=kernel, stride=kernel)


def _mean(reading: Reading) -> Converted:
    """Convert an average over height and width to average pooling; return None for other averages."""
    before = reading.shape(reading.input_node)
    dims = reading.argument(1, "dim")
    if before is None or len(before) != 4 or not isinstance(dims, tuple | list):
        return None
    if sorted(dim % 4 for dim in dims) != [2, 3] or reading.node.kwargs.get("dtype") is not None:
        return None
    kernel = (before[2], before[3])
    name = reading.node.name
    if reading.argument(2, "keepdim", False):
        return reading.op(AveragePool, kernel=kernel, stride=kernel)
    pool = AveragePool(name=f"{name}_pool", inputs=(reading.source,), kernel=kernel, stride=kernel)
    return [pool, Flatten(name=name, inputs=(pool.name,))]


def _reshape(reading: Reading) -> Converted:
    """Convert a reshape to `Flatten` if it flattens all dimensions but the first.

    Return the name of the input for a reshape that keeps the shape, and None for other reshapes.
    """
    before, after = reading.shape(reading.input_node), reading.shape()
    if before is None or after is None:
        return None
    if after == before:
        return reading.source
    return reading.op(Flatten) if after == (before[0], math.prod(before[1:])) else None


def _add(reading: Reading) -> Converted:
    args = [*reading.node.args, *reading.node.kwargs.values()]
    if len(args) != 2 or not all(isinstance(arg, fx.Node) for arg in args):
        return None
    shapes = [reading.shape(arg) for arg in args]
    if shapes[0] is None or shapes[0] != shapes[1]:
        return None
    return [Add(name=reading.node.name, inputs=(reading.name_of(args[0]), reading.name_of(args[1])))]


def _pass_on(reading: Reading) -> Converted:
    """Return the name of the input, for nodes that do not change it, such as dropout in evaluation mode."""
    return reading.source


def _dropout(reading: Reading) -> Converted:
    return None if reading.argument(2, "training", True) else reading.source


MODULES: dict[type[nn.Module], Callable[[Reading], Converted]] = {
    nn.Conv2d: _conv,
    nn.Linear: _linear,
    nn.BatchNorm1d: _batchnorm,
    nn.BatchNorm2d: _batchnorm,
    nn.ReLU: _relu,
    nn.ReLU6: _relu6,
    nn.Hardtanh: _hardtanh,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _average_pool,
    nn.AdaptiveAvgPool2d: _adaptive_pool,
    nn.Flatten: _reshape,
    nn.Identity: _pass_on,
    nn.Dropout: _pass_on,
    nn.Dropout2d: _pass_on,
}
FUNCTIONS: dict[Any, Callable[[Reading], Converted]] = {
    F.relu: _relu,
    torch.relu: _relu,
    F.relu6: _relu6,
    F.max_pool2d: _max_pool,
    torch.max_pool2d: _max_pool,
    F.avg_pool2d: _average_pool,
    F.adaptive_avg_pool2d: _adaptive_pool,
    torch.mean: _mean,
    torch.flatten: _reshape,
    torch.reshape: _reshape,
    operator.add: _add,
    operator.iadd: _add,
    torch.add: _add,
    F.dropout: _dropout,
    F.dropout2d: _dropout,
}
METHODS: dict[str, Callable[[Reading], Converted]] = {
    "relu": _relu,
    "relu_": _relu,
    "mean": _mean,
    "flatten": _reshape,
    "view": _reshape,
    "reshape": _reshape,
    "add": _add,
    "add_": _add,
    "contiguous": _pass_on,
}
