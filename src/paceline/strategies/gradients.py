"""Base classes of strategies that average gradients (or weights) over workers after backward."""

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
from paceline.strategies.capabilities import Accumulating, BufferEstimate, GradientsAtStep, KnownGradients, Tunable


@dataclass(kw_only=True)
class GradientAveraging(Accumulating, KnownGradients, BufferEstimate, Tunable, Strategy):
    """Base class of strategies that average gradients after backward; a subclass implements `sum`.

    Each worker's gradients are weighted by its number of samples in the step.
    """

    fused: ClassVar[bool] = False  # True: `sum` gets all gradients as one vector; False: tensor by tensor

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.of_codec(self.codec)

    @property
    def gradients_at_step(self) -> GradientsAtStep:
        return GradientsAtStep.AVERAGED

    @abstractmethod
    def sum(self, tensor: Tensor) -> None:
        """Sum a contiguous tensor over workers, in place. The result must be bit-identical on all workers."""

    @abstractmethod
    def sum_traffic(self, spec: TensorSpec, rank: int, world_size: int) -> list[Operation]:
        """Predict the operations of `sum` on one worker."""

    def sum_bytes(self, spec: TensorSpec, rank: int, world_size: int) -> int:  # noqa: ARG002
        """Estimate the bytes that `sum` needs on one worker in addition to the tensor."""
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
                contiguous = tensor.contiguous()  # a copy only if the tensor is, for example, channels-last
                self._average(contiguous, key)
                if contiguous is not tensor:
                    tensor.copy_(contiguous)

    def _average(self, tensor: Tensor, key: Key) -> None:
        # Weights add up to 1, so the sum is the mean. Scaling first keeps 16-bit sums in range.
        tensor.mul_(self.worker.weight)
        self.codec.sum(tensor, self.sum, self.worker.comm, key)

    def buffer_bytes(self, tensors: Sequence[TensorSpec], rank: int, world_size: int) -> int:
        """Estimate the bytes of the tensor that is passed to `sum`, plus those that `sum` needs in addition.

        If `fused` is set, the tensor holds all gradients. Otherwise every gradient is passed as a tensor of its own,
        and the largest is counted. A lossy codec adds the bytes of all gradients.
        """
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

    Weights, like gradients, are averaged in proportion to samples. Averaging weights gives the same result as averaging
    gradients only if the optimiser is linear in the gradients: with SGD, but not with Adam. SGD with momentum also
    requires that the workers' shares of the global batch are the same in every step, as momentum is not averaged.
    """

    average: Literal["gradients", "weights"] = "gradients"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_lossy_weights(self, self.average)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.PERIODIC if self.average == "weights" else super().guarantee

    @property
    def gradients_at_step(self) -> GradientsAtStep:
        return GradientsAtStep.OWN if self.average == "weights" else super().gradients_at_step

    def after_backward(self) -> None:
        if self.average == "gradients":
            super().after_backward()

    def after_step(self) -> None:
        worker = self.worker
        if self.average == "weights" and worker.comm.world_size > 1:
            with torch.no_grad():
                self._average_all([parameter.detach() for parameter in worker.parameters])


def refuse_lossy_weights(strategy: Strategy, average: str) -> None:
    """Raise UsageError if a strategy averages weights (`average` is "weights") with a lossy codec.

    Rounding by the codec can change weights more than an optimiser step does.
    """
    if average == "weights" and strategy.codec.relative_error:
        raise UsageError(
            f"strategy {strategy.name} with average=weights cannot use codec {strategy.codec.name}, because "
            "rounded weights lose small updates; use fp32, or average=gradients"
        )
