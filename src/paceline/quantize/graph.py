"""Graph of the operations of a traced network. Calibration, quantization and export start from this graph.

`simplify` folds BatchNorm and fuses ReLU. The grid of a tensor is its quantization parameters: scale, zero point and
limits (`quantized.Grid`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from paceline.quantize.ops import Add, BatchNorm, Conv, FloatOp, LinearOp, Op, Relu

OnTensor = Callable[[str, Tensor], None]  # called with the name and the value of a tensor


@dataclass(frozen=True, eq=False)
class Graph:
    """A network with one input tensor and one output tensor. Its operations are in topological order."""

    input: str
    ops: tuple[Op, ...]
    output: str

    def run(self, images: Tensor, on_tensor: OnTensor | None = None) -> Tensor:
        """Run the graph in floating point and return its output.

        `on_tensor` is called with the name and value of every tensor, starting with the input.
        """
        return self.walk(images, lambda op, inputs: op.apply(*inputs), on_tensor)

    def walk(self, first: Tensor, compute: Callable[[Op, list[Any]], Any], on_tensor: OnTensor | None = None) -> Tensor:
        """Compute every operation by `compute(op, inputs)` and return the output of the graph.

        `first` is the input of the graph. `on_tensor` is called with the name and value of every tensor. A tensor is
        released after its last use.
        """
        values = {self.input: first}
        uses = _users(self)
        if on_tensor is not None:
            on_tensor(self.input, first)
        for op in self.ops:
            values[op.name] = compute(op, [values[name] for name in op.inputs])
            if on_tensor is not None and isinstance(values[op.name], Tensor):
                on_tensor(op.name, values[op.name])
            for name in op.inputs:
                uses[name] -= 1
                if not uses[name]:
                    del values[name]
        output: Tensor = values[self.output]
        return output

    @property
    def layers(self) -> list[LinearOp]:
        return [op for op in self.ops if isinstance(op, LinearOp)]

    @property
    def left_in_float(self) -> list[FloatOp]:
        return [op for op in self.ops if isinstance(op, FloatOp)]

    def grid_owner(self, name: str) -> str:
        """Return the name of the tensor whose grid (scale, zero point and limits) also applies to the tensor `name`.

        Usually, this is `name` itself. But the output of max pooling, for example, has the grid of its input.
        """
        by_name = {op.name: op for op in self.ops}
        while name in by_name and by_name[name].keeps_grid:
            name = by_name[name].inputs[0]
        return name

    def has_grid(self, name: str) -> bool:
        """Return whether a tensor needs its own grid (scale, zero point and limits).

        A tensor needs none if the grid of another tensor applies to it. A tensor also needs none if it stays in float,
        because a float operation computes it and only float operations read it.
        """
        if self.grid_owner(name) != name:
            return False
        maker = next((op for op in self.ops if op.name == name), None)
        if not isinstance(maker, FloatOp):
            return True
        return any(name in op.inputs and not isinstance(op, FloatOp) for op in self.ops)

    def with_layers(self, weights: dict[str, tuple[Tensor, Tensor]]) -> Graph:
        """Return a copy of the graph with new weights and biases, which are passed by layer name."""
        ops = [
            dataclasses.replace(op, weight=weights[op.name][0], bias=weights[op.name][1])
            if isinstance(op, LinearOp) and op.name in weights
            else op
            for op in self.ops
        ]
        return dataclasses.replace(self, ops=tuple(ops))


def simplify(graph: Graph) -> Graph:
    """Remove unused operations, fold BatchNorm into layers, and fuse ReLU with the layer or addition before it."""
    return _fuse_relu(_fold(_without_unused(graph)))


def _fold(graph: Graph) -> Graph:
    """Fold each BatchNorm, which is a factor and an offset per channel, into the layer before it.

    If no layer precedes a BatchNorm, or other operations also read the layer's output, the BatchNorm becomes a
    convolution.
    """
    users = _users(graph)
    ops: dict[str, Op] = {}
    renamed: dict[str, str] = {}
    for original in graph.ops:
        op = dataclasses.replace(original, inputs=tuple(renamed.get(name, name) for name in original.inputs))
        if isinstance(op, BatchNorm):
            before = ops.get(op.inputs[0])
            if isinstance(before, LinearOp) and users[original.inputs[0]] == 1:
                ops[before.name] = _scaled(before, op)
                renamed[op.name] = before.name
                continue
            op = _as_depthwise_conv(op)
        ops[op.name] = op
    return Graph(graph.input, tuple(ops.values()), renamed.get(graph.output, graph.output))


def _scaled(layer: LinearOp, norm: BatchNorm) -> LinearOp:
    factor = norm.factor.view(-1, *[1] * (layer.weight.dim() - 1))
    return dataclasses.replace(layer, weight=layer.weight * factor, bias=layer.bias * norm.factor + norm.offset)


def _as_depthwise_conv(norm: BatchNorm) -> Conv:
    """Return a depthwise 1x1 convolution that is equivalent to a BatchNorm."""
    weight = norm.factor.view(-1, 1, 1, 1)
    return Conv(name=norm.name, inputs=norm.inputs, weight=weight, bias=norm.offset, groups=len(weight))


def _fuse_relu(graph: Graph) -> Graph:
    """Fuse each ReLU with the layer or addition that computes its input.

    The grid of the fused output then covers only the clipped range. Max pooling and flattening may precede the
    ReLU, because they commute with clipping.
    """
    users = _users(graph)
    ops: dict[str, Op] = {}
    renamed: dict[str, str] = {}
    for original in graph.ops:
        op = dataclasses.replace(original, inputs=tuple(renamed.get(name, name) for name in original.inputs))
        maker = _only_maker(op.inputs[0], ops, users) if isinstance(op, Relu) else None
        if isinstance(op, Relu) and maker is not None:
            ops[maker.name] = dataclasses.replace(maker, clip=op.clip.within(maker.clip))
            renamed[op.name] = op.inputs[0]
            users[op.inputs[0]] = users[op.name]
            continue
        ops[op.name] = op
    return Graph(graph.input, tuple(ops.values()), renamed.get(graph.output, graph.output))


def _only_maker(name: str, ops: dict[str, Op], users: Counter[str]) -> LinearOp | Add | None:
    """Return the layer or addition that computes a tensor, directly or followed by max pooling or flattening.

    Return None if another type of operation computes the tensor, or if the tensor or one of the intermediate tensors
    has more than one reader. `ops` has the operations by name, and `users` the number of readers of each tensor.
    """
    op = ops.get(name)
    while op is not None and users[op.name] == 1:
        if isinstance(op, LinearOp | Add):
            return op
        op = ops.get(op.inputs[0]) if op.keeps_grid else None
    return None


def _users(graph: Graph) -> Counter[str]:
    """Return the number of readers of each tensor. The graph's output has one additional reader, outside the graph."""
    return Counter([name for op in graph.ops for name in op.inputs] + [graph.output])


def _without_unused(graph: Graph) -> Graph:
    needed = {graph.output}
    for op in reversed(graph.ops):
        if op.name in needed:
            needed.update(op.inputs)
    return dataclasses.replace(graph, ops=tuple(op for op in graph.ops if op.name in needed))


def op_names(ops: Sequence[FloatOp]) -> str:
    """Return the types and names of operations, as text for a message."""
    return ", ".join(f"{op.what} ({op.name})" for op in ops)
