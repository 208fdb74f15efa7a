"""Base classes of strategies that average gradients after backward."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from paceline.codecs import Key, TensorSpec
from paceline.comm import Operation
from paceline.errors import UsageError
from paceline.strategies.base import Guarantee, Strategy, gradient_of, joined
from paceline.strategies.capabilities import Accumulating, BufferEstimate, Tunable


@dataclass(kw_only=True)
class GradientAveraging(Accumulating, BufferEstimate, Tunable, Strategy):
    """Gradients are averaged after backward, weighted by samples; a subclass says how a tensor is summed."""

    fused: ClassVar[bool] = False  # all gradients as one vector, or tensor by tensor

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.of_codec(self.codec)

    @abstractmethod
    def sum(self, tensor: Tensor) -> None:
        """Sum a contiguous tensor over workers, in place, to the same bits on every worker."""

    @abstractmethod
    def sum_traffic(self, spec: TensorSpec, rank: int, world_size: int) -> list[Operation]:
        """The operations of `sum` on one worker."""

    def sum_bytes(self, spec: TensorSpec, rank: int, world_size: int) -> int:  # noqa: ARG002
        """Memory that `sum` takes on one worker beside the tensor: an estimate."""
        return 0

    def after_backward(self) -> None:
        worker = self.worker
        if worker.comm.world_size > 1:
            self._average_all([gradient_of(parameter) for parameter in worker.parameters])

    def _average_all(self, tensors: list[Tensor]) -> None:
        if self.fused:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            self._average(flat, 0)
            for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view(tensor.shape))
        else:
            for key, tensor in enumerate(tensors):
                whole = tensor.contiguous()  # the tensor itself, unless it lies channels-last in memory
                self._average(whole, key)
                if whole is not tensor:
                    tensor.copy_(whole)

    def _average(self, tensor: Tensor, key: Key) -> None:
        # Scaling before the sum keeps 16-bit sums in range, and makes a mean of what is summed.
        tensor.mul_(self.worker.weight)
        self.codec.sum(tensor, self.sum, self.worker.comm, key)

    def buffer_bytes(self, tensors: Sequence[TensorSpec], rank: int, world_size: int) -> int:
        """One vector of everything, or one tensor at a time; a lossy codec keeps about as much again."""
        if world_size == 1:
            return 0
        total = sum(tensor.nbytes for tensor in tensors)
        summed = joined(tensors) if self.fused else max(tensors, key=lambda tensor: tensor.nbytes)
        own = total if self.fused else summed.nbytes
        return own + self.sum_bytes(summed, rank, world_size) + (total if self.codec.relative_error else 0)

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:  # noqa: ARG002
        if world_size == 1:
            return []
        if self.fused:
            tensors = [joined(tensors)]
        return [
            operation
            for spec in tensors
            for operation in self.codec.traffic(spec, lambda s: self.sum_traffic(s, rank, world_size), world_size)
        ]


@dataclass(kw_only=True)
class GradientsOrWeights(GradientAveraging):
    """As above, or the other way round: every worker steps on its own gradient, then weights are averaged.

    Averaged weights are weighted by samples too. They equal averaged gradients only where a step is linear in the
    gradient: plain SGD is, one with momentum of its own or Adam is not.
    """

    average: Literal["gradients", "weights"] = "gradients"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_lossy_weights(self, self.average)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.PERIODIC if self.average == "weights" else super().guarantee

    def after_backward(self) -> None:
        if self.average == "gradients":
            super().after_backward()

    def after_step(self) -> None:
        worker = self.worker
        if self.average == "weights" and worker.comm.world_size > 1:
            with torch.no_grad():
                self._average_all([parameter.detach() for parameter in worker.parameters])


def refuse_lossy_weights(strategy: Strategy, average: str) -> None:
    """A step is small beside the weights that it changes: rounded weights would lose it."""
    if average == "weights" and strategy.codec.relative_error:
        raise UsageError(
            f"strategy {strategy.name} with average=weights cannot use codec {strategy.codec.name}: rounding the "
            "weights themselves would lose the steps; use fp32, or average=gradients"
        )
