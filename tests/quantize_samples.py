"""Small networks for quantization tests, and a dispatch mode that records the dtype of every tensor."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paceline.codecs.rounding import to_numbers
from paceline.quantize.graph import Graph
from paceline.quantize.ops import Add, AveragePool, Clip, Conv, Flatten, Linear, MaxPool, Op, Relu
from paceline.quantize.quantized import Grid, Quantized, grid_for, quantize_graph


def dequantize(grid: Grid, integers: Tensor) -> Tensor:
    """Return the numbers that integers on a grid represent."""
    return to_numbers(integers.to(torch.float32), grid.scale, grid.zero_point)


class Walker(TorchDispatchMode):
    """Records the dtypes of the inputs and outputs of every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[torch.dtype, set[str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor):
                self.seen.setdefault(leaf.dtype, set()).add(str(func))
        return result


class Residual(nn.Module):
    """A user's CNN with every supported operation: pools, an addition, BatchNorm with and without a layer before."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding="same", bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=2, dilation=2), nn.BatchNorm2d(8), nn.ReLU6())
        self.grouped = nn.Conv2d(8, 8, 1, groups=2)
        self.before = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.linear = nn.Linear(32, 16)
        self.norm1 = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        y = self.second(self.depthwise(x))
        x = self.before(torch.relu(x + self.grouped(y)))
        x = self.pool(self.drop(F.avg_pool2d(x, 2)))
        x = x.view(x.size(0), -1)
        x = F.dropout(self.norm1(self.linear(x)).relu(), 0.5, self.training)
        scores: Tensor = self.last(x)
        return scores


def with_statistics(model: nn.Module, seed: int = 0) -> nn.Module:
    """Fill BatchNorm with random statistics, as after training."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(generator=generator)
                module.running_var.uniform_(0.5, 2.0, generator=generator)
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.normal_(generator=generator)
    return model.eval()


class RandomNetwork:
    """A network of random operations with random weights on random grids, for tests against the scalar reference."""

    def __init__(self, seed: int, *, symmetric: bool, per_channel: bool, length: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.symmetric = symmetric
        self.names = (f"op{number}" for number in itertools.count())
        self.ops: list[Op] = []
        self.grids: dict[str, Grid] = {"input": self._grid(1.0)}
        self.shape = (self._pick(1, 2, 4), self._pick(5, 6, 7), self._pick(5, 6))
        self.input_shape = self.shape
        self.name = "input"
        for _ in range(length):
            self._pick(self._conv, self._conv, self._residual, self._max, self._average, self._relu)()
        self._append(Flatten(name=next(self.names), inputs=(self.name,)))
        size = self.shape[0] * self.shape[1] * self.shape[2]
        self._append(self._linear_op(size, 5, clip=Clip()), self._size_after(size))
        self._append(self._linear_op(5, 3, clip=self._clip()), self._size_after(5))
        graph = Graph("input", tuple(self.ops), self.name)
        self.model: Quantized = quantize_graph(graph, self.grids, per_channel=per_channel)

    def images(self, count: int) -> Tensor:
        grid = self.grids["input"]
        shape = (count, *self.input_shape)
        return torch.randint(grid.low, grid.high + 1, shape, generator=self.generator).to(torch.int8)

    def _pick(self, *choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (1,), generator=self.generator))]

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def _grid(self, size: float) -> Grid:
        low, high = (torch.rand(2, generator=self.generator) * size).tolist()
        return grid_for(-low * self._pick(0.0, 1.0), high, symmetric=self.symmetric)

    def _size_after(self, inputs: int) -> float:
        return 2.0 * float(inputs) ** 0.5

    def _append(self, op: Op, size: float | None = None) -> None:
        self.ops.append(op)
        self.name = op.name
        if size is not None:
            self.grids[op.name] = self._grid(size)

    def _conv(self) -> None:
        channels, rows, columns = self.shape
        groups = self._pick(*(g for g in (1, 1, 2, 4) if channels % g == 0))
        outputs = groups * self._pick(1, 2) if groups > 1 else self._pick(1, 3, 4)
        kernel = self._pick((1, 1), (3, 3), (2, 3))
        facts = {"stride": self._pick((1, 1), (2, 1)), "padding": self._pick((0, 0), (1, 1), (2, 0))}
        dilation = self._pick((1, 1), (1, 2))
        sides = [
            (side + 2 * pad - step * (size - 1) - 1) // jump + 1
            for side, pad, step, size, jump in zip(
                (rows, columns), facts["padding"], dilation, kernel, facts["stride"], strict=True
            )
        ]
        if min(sides) < 1:
            return
        weight = self._random(outputs, channels // groups, *kernel)
        weight[0] *= self._pick(1.0, 0.0, 1e-9)  # a channel of normal, zero or tiny weights
        facts |= {"dilation": dilation, "groups": groups, "clip": self._clip()}
        op = Conv(name=next(self.names), inputs=(self.name,), weight=weight, bias=self._random(outputs), **facts)
        self._append(op, self._size_after(weight[0].numel()))
        self.shape = (outputs, sides[0], sides[1])

    def _residual(self) -> None:
        before, channels = self.name, self.shape[0]
        weight = self._random(channels, channels, 1, 1)
        conv = Conv(name=next(self.names), inputs=(before,), weight=weight, bias=self._random(channels))
        self._append(conv, self._size_after(channels))
        total = Add(name=next(self.names), inputs=(before, conv.name), clip=self._clip())
        self._append(total, self._size_after(channels))

    def _pool(self, make: Any, size: float | None) -> None:
        kernel, stride = self._pick((2, 2), (3, 2)), self._pick((1, 1), (2, 2))
        padding = self._pick((0, 0), (1, 1))
        sides = [
            (side + 2 * pad - k) // s + 1
            for side, pad, k, s in zip(self.shape[1:], padding, kernel, stride, strict=True)
        ]
        if min(sides) < 1:
            return
        op = make(name=next(self.names), inputs=(self.name,), kernel=kernel, stride=stride, padding=padding)
        self._append(op, size)
        self.shape = (self.shape[0], sides[0], sides[1])

    def _max(self) -> None:
        self._pool(MaxPool, None)

    def _average(self) -> None:
        self._pool(AveragePool, 1.0)

    def _relu(self) -> None:
        self._append(Relu(name=next(self.names), inputs=(self.name,), clip=self._pick(Clip(), Clip(0.7))))

    def _clip(self) -> Clip | None:
        return self._pick(None, None, Clip(), Clip(0.7))

    def _linear_op(self, inputs: int, outputs: int, *, clip: Clip | None) -> Linear:
        weight, bias = self._random(outputs, inputs), self._random(outputs)
        if self._pick(True, False):  # a class without weights
            weight[0], bias[0] = 0.0, 0.0
        return Linear(name=next(self.names), inputs=(self.name,), weight=weight, bias=bias, clip=clip)


def odd_model() -> nn.Module:
    """A user's model with an operation that has no integer form."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.Sigmoid(), nn.Linear(16, 10))
