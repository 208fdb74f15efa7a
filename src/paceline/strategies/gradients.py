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
from paceline.strategies.base import Guarantee, Strategy, gradient_of, joined_size
from paceline.strategies.capabilities import Accumulating, BufferEstimate, Tunable


@dataclass(kw_only=True)
class GradientAveraging(Accumulating, BufferEstimate, Tunable, Strategy):
    """Base class: averages gradients after backward, weighted by samples. A subclass implements `sum`."""

    fused: ClassVar[bool] = False  # all gradients as one vector, or tensor by tensor

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.of_codec(self.codec)

    @abstractmethod
    def sum(self, tensor: Tensor) -> None:
        """Sum a contiguous tensor over workers, in place, to the same bits on every worker."""

    @abstractmethod
    def sum_traffic(self, spec: TensorSpec, rank: int, world_size: int) -> list[Operation]:
        """Return the operations of `sum` on one worker."""

    def sum_bytes(self, spec: TensorSpec, rank: int, world_size: int) -> int:  # noqa: ARG002
        """Estimate the memory that `sum` needs on one worker in addition to the tensor."""
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
                contiguous = tensor.contiguous()  # the tensor itself unless it is channels-last
                self._average(contiguous, key)
                if contiguous is not tensor:
                    tensor.copy_(contiguous)

    def _average(self, tensor: Tensor, key: Key) -> None:
        # Weights add up to 1, so the sum is the mean. Scaling first keeps 16-bit sums in range.
        tensor.mul_(self.worker.weight)
        self.codec.sum(tensor, self.sum, self.worker.comm, key)

    def buffer_bytes(self, tensors: Sequence[TensorSpec], rank: int, world_size: int) -> int:
        """Estimate the memory of one vector of all gradients, or of the largest tensor. A lossy codec doubles it."""
        if world_size == 1:
            return 0
        total = sum(tensor.nbytes for tensor in tensors)
        summed = joined_size(tensors) if self.fused else max(tensors, key=lambda tensor: tensor.nbytes)
        own = total if self.fused else summed.nbytes
        return own + self.sum_bytes(summed, rank, world_size) + (total if self.codec.relative_error else 0)

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:  # noqa: ARG002
        if world_size == 1:
            return []
        if self.fused:
            tensors = [joined_size(tensors)]
        return [
            operation
            for spec in tensors
            for operation in self.codec.traffic(spec, lambda s: self.sum_traffic(s, rank, world_size), world_size)
        ]


@dataclass(kw_only=True)
class GradientsOrWeights(GradientAveraging):
    """Base class of strategies that average gradients or, with average=weights, the weights after each worker's step.

    Weights are averaged in proportion to samples too. The result equals that of averaged gradients only if a step is
    linear in the gradient, as in plain SGD; SGD with momentum and Adam are not.
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
    """Raise UsageError for a lossy codec with average=weights: rounding would exceed the change of a step."""
    if average == "weights" and strategy.codec.relative_error:
        raise UsageError(
            f"strategy {strategy.name} with average=weights cannot use codec {strategy.codec.name}, because "
            "rounded weights lose small updates; use fp32, or average=gradients"
        )
