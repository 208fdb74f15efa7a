"""A traced network: operations in the order in which they run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from paceline.quantize.ops import Add, BatchNorm, Conv, FloatOp, LinearOp, Op, Relu

Seen = Callable[[str, Tensor], None]


@dataclass(frozen=True, eq=False)
class Graph:
    """One input, one output, and every operation after those that it takes from."""

    input: str
    ops: tuple[Op, ...]
    output: str

    def run(self, images: Tensor, seen: Seen | None = None) -> Tensor:
        """The network in floating point; `seen` is told every tensor by its name, the input first."""
        return self.walk(images, lambda op, inputs: op.apply(*inputs), seen)

    def walk(self, first: Tensor, make: Callable[[Op, list[Any]], Any], seen: Seen | None = None) -> Tensor:
        """Every operation in turn, as `make` does it; what nobody needs any more is let go."""
        values = {self.input: first}
        uses = _users(self)
        if seen is not None:
            seen(self.input, first)
        for op in self.ops:
            values[op.name] = make(op, [values[name] for name in op.inputs])
            if seen is not None and isinstance(values[op.name], Tensor):
                seen(op.name, values[op.name])
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
        """The tensor whose grid this one is on: pooling by maximum and the like change no number."""
        by_name = {op.name: op for op in self.ops}
        while name in by_name and by_name[name].keeps_grid:
            name = by_name[name].inputs[0]
        return name

    def has_grid(self, name: str) -> bool:
        """Whether a tensor has a grid of its own; what is only passed on between operations in float needs none."""
        if self.grid_owner(name) != name:
            return False
        maker = next((op for op in self.ops if op.name == name), None)
        if not isinstance(maker, FloatOp):
            return True
        return any(name in op.inputs and not isinstance(op, FloatOp) for op in self.ops)

    def with_layers(self, weights: dict[str, tuple[Tensor, Tensor]]) -> Graph:
        """The same network with other weights and biases, by the names of layers."""
        ops = [
            dataclasses.replace(op, weight=weights[op.name][0], bias=weights[op.name][1])
            if isinstance(op, LinearOp) and op.name in weights
            else op
            for op in self.ops
        ]
        return dataclasses.replace(self, ops=tuple(ops))


def simplified(graph: Graph) -> Graph:
    """BatchNorm folded into the layers before it, ReLU into what makes its input, and what nobody uses dropped."""
    graph = _without_unused(graph)
    return _fuse_relu(_fold(graph))


def _fold(graph: Graph) -> Graph:
    """A BatchNorm is a factor and an offset per channel, so that it can be multiplied into the layer before."""
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
            op = _on_its_own(op)
        ops[op.name] = op
    return Graph(graph.input, tuple(ops.values()), renamed.get(graph.output, graph.output))


def _scaled(layer: LinearOp, norm: BatchNorm) -> LinearOp:
    factor = norm.factor.view(-1, *[1] * (layer.weight.dim() - 1))
    return dataclasses.replace(layer, weight=layer.weight * factor, bias=layer.bias * norm.factor + norm.offset)


def _on_its_own(norm: BatchNorm) -> Conv:
    """As a convolution of one pixel that mixes no channels."""
    weight = norm.factor.view(-1, 1, 1, 1)
    return Conv(name=norm.name, inputs=norm.inputs, weight=weight, bias=norm.offset, groups=len(weight))


def _fuse_relu(graph: Graph) -> Graph:
    """Clipping costs nothing where an integer is clipped anyway, and its grid then holds only what is left.

    A maximum and a flattening may stand between: the largest of clipped numbers is the largest, clipped.
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
    """The layer or addition whose numbers a tensor holds, where nobody else sees them on the way."""
    op = ops.get(name)
    while op is not None and users[op.name] == 1:
        if isinstance(op, LinearOp | Add):
            return op
        op = ops.get(op.inputs[0]) if op.keeps_grid else None
    return None


def _users(graph: Graph) -> Counter[str]:
    """How often each tensor is used; the output is used by whoever asked."""
    return Counter([name for op in graph.ops for name in op.inputs] + [graph.output])


def _without_unused(graph: Graph) -> Graph:
    needed = {graph.output}
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if op.name in needed:
            needed.update(op.inputs)
            kept.append(op)
    return Graph(graph.input, tuple(reversed(kept)), graph.output)


def named(ops: Sequence[FloatOp]) -> str:
    """Operations without an integer form, for a sentence."""
    return ", ".join(f"{op.what} ({op.name})" for op in ops)
