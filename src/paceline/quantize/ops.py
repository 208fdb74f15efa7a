"""Operations of a quantized graph, each with its floating-point implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

Pair = tuple[int, int]


@dataclass(frozen=True)
class Clip:
    """Clipping at 0 (ReLU) and optionally at a ceiling (ReLU6)."""

    most: float | None = None

    def of(self, x: Tensor) -> Tensor:
        return x.clamp(0.0, self.most)

    def within(self, other: Clip | None) -> Clip:
        """Return a single clipping with the same effect as this clipping and `other` together."""
        ceilings = [clip.most for clip in (self, other) if clip is not None and clip.most is not None]
        return Clip(min(ceilings, default=None))


@dataclass(frozen=True, eq=False, kw_only=True)
class Op:
    """An operation. Its `name` is also the name of its output tensor."""

    kind: ClassVar[str] = ""
    keeps_grid: ClassVar[bool] = False  # whether the output has the scale and zero point of the input
    name: str
    inputs: tuple[str, ...]

    def apply(self, *inputs: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearOp(Op):
    """An operation with weights. The first dimension of `weight` is the output channel."""

    weight: Tensor
    bias: Tensor
    clip: Clip | None = None
    module: str = ""  # name of the layer in the model; empty for a BatchNorm that was not folded

    def apply(self, *inputs: Any) -> Any:
        return self.finish(self.multiply(inputs[0], self.weight, self.bias))

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Apply the operation to `x` with the weight and bias passed in, without clipping the result."""
        raise NotImplementedError

    def finish(self, x: Tensor) -> Tensor:
        return x if self.clip is None else self.clip.of(x)


@dataclass(frozen=True, eq=False, kw_only=True)
class Conv(LinearOp):
    kind: ClassVar[str] = "convolution"
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)


@dataclass(frozen=True, eq=False, kw_only=True)
class Linear(LinearOp):
    kind: ClassVar[str] = "linear"

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchNorm(Op):
    """BatchNorm as a factor and an offset per channel.

    It exists only during tracing: afterwards, it is folded into the layer before it or becomes a convolution.
    """

    kind: ClassVar[str] = "batch normalisation"
    factor: Tensor
    offset: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class Relu(Op):
    """A separate ReLU, which `simplify` has not yet fused with another operation, or cannot fuse."""

    kind: ClassVar[str] = "relu"
    keeps_grid: ClassVar[bool] = True
    clip: Clip

    def apply(self, *inputs: Any) -> Any:
        return self.clip.of(inputs[0])


@dataclass(frozen=True, eq=False, kw_only=True)
class MaxPool(Op):
    kind: ClassVar[str] = "max pooling"
    keeps_grid: ClassVar[bool] = True
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)

    def apply(self, *inputs: Any) -> Any:
        return F.max_pool2d(inputs[0], self.kernel, self.stride, self.padding)


@dataclass(frozen=True, eq=False, kw_only=True)
class AveragePool(Op):
    """Average pooling that counts padding as zeros."""

    kind: ClassVar[str] = "average pooling"
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)

    def apply(self, *inputs: Any) -> Any:
        return F.avg_pool2d(inputs[0], self.kernel, self.stride, self.padding)


@dataclass(frozen=True, eq=False, kw_only=True)
class Flatten(Op):
    """Flattening of all dimensions but the first."""

    kind: ClassVar[str] = "flatten"
    keeps_grid: ClassVar[bool] = True

    def apply(self, *inputs: Any) -> Any:
        return inputs[0].flatten(1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Add(Op):
    kind: ClassVar[str] = "addition"
    clip: Clip | None = None

    def apply(self, *inputs: Any) -> Any:
        total = inputs[0] + inputs[1]
        return total if self.clip is None else self.clip.of(total)


@dataclass(frozen=True, eq=False, kw_only=True)
class FloatOp(Op):
    """An operation that has no integer implementation and runs in float. `what` names its type in messages."""

    kind: ClassVar[str] = "float"
    what: str
    call: Callable[..., Any]

    def apply(self, *inputs: Any) -> Any:
        return self.call(*inputs)
