"""Strategies with one mistake each, which the certificate must detect; used as `wrong_strategies.py:Class`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from paceline.codecs import TensorSpec
from paceline.comm import Operation
from paceline.strategies.all_reduce import AllReduce
from paceline.strategies.gossip import Gossip
from paceline.strategies.local_sgd import LocalSgd
from paceline.strategies.stepwise import Stepwise


@dataclass(kw_only=True)
class UnweightedMean(AllReduce):
    """Average with equal weights, whatever the number of samples."""

    name: ClassVar[str] = "unweighted-mean"

    def after_backward(self) -> None:
        self.worker.weight = 1 / self.worker.comm.world_size
        super().after_backward()


@dataclass(kw_only=True)
class SkipsLastTensor(AllReduce):
    """Skip the last gradient, and predict the traffic correctly."""

    name: ClassVar[str] = "skips-last-tensor"

    def after_backward(self) -> None:
        last = self.worker.parameters.pop()
        super().after_backward()
        self.worker.parameters.append(last)

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:
        return super().traffic(tensors[:-1], rank, world_size, step)


@dataclass(kw_only=True)
class LosesOneNumber(AllReduce):
    """Set one number of the last worker to NaN in the second step."""

    name: ClassVar[str] = "loses-one-number"
    num_steps = 0

    def after_step(self) -> None:
        self.num_steps += 1
        comm = self.worker.comm
        if self.num_steps == 2 and comm.rank == comm.world_size - 1:
            with torch.no_grad():
                self.worker.parameters[0].view(-1)[0] = float("nan")


@dataclass(kw_only=True)
class WrongPrediction(AllReduce):
    """Synchronise exactly, but predict too much traffic for worker 1 from the second step on."""

    name: ClassVar[str] = "wrong-prediction"
    surplus: int = 8

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:
        operations = super().traffic(tensors, rank, world_size, step)
        return [*operations, Operation("all_reduce", self.surplus)] if rank == 1 and step > 0 else operations


@dataclass(kw_only=True)
class PromisesTooMuch(Stepwise):
    """Declare a drift bound that is 100 times too small."""

    name: ClassVar[str] = "promises-too-much"

    def drift_bound(self, num_workers: int) -> float:
        return super().drift_bound(num_workers) / 100


@dataclass(kw_only=True)
class NeverMeets(Gossip):
    """Leave replicas unsynchronised at the end."""

    name: ClassVar[str] = "never-meets"

    def finish(self) -> None: ...


@dataclass(kw_only=True)
class ForgetsAWorker(LocalSgd):
    """Change one number of the last worker after a synchronisation."""

    name: ClassVar[str] = "forgets-a-worker"

    def average(self, step: int) -> None:
        super().average(step)
        comm = self.worker.comm
        if self.is_synchronised(step) and comm.rank == comm.world_size - 1:
            self.worker.parameters[0].view(-1)[0] += 1e-12


@dataclass(kw_only=True)
class Forgetful(AllReduce):
    """Add half of the previous gradients, and leave them out of the state."""

    name: ClassVar[str] = "forgetful"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._before: list[torch.Tensor] = []

    def after_backward(self) -> None:
        super().after_backward()
        gradients = [parameter.grad for parameter in self.worker.parameters]
        for gradient, before in zip(gradients, self._before, strict=False):
            gradient.add_(before, alpha=0.5)
        self._before = [gradient.clone() for gradient in gradients]
