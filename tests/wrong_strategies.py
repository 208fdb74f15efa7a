"""Strategies with one mistake each: what the certificate must find. Named `wrong_strategies.py:Class`."""

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
    """Every worker counts alike, however many samples it had."""

    name: ClassVar[str] = "unweighted-mean"

    def after_backward(self) -> None:
        self.worker.weight = 1 / self.worker.comm.world_size
        super().after_backward()


@dataclass(kw_only=True)
class SkipsLastTensor(AllReduce):
    """The last gradient is never exchanged, and this is predicted."""

    name: ClassVar[str] = "skips-last-tensor"

    def after_backward(self) -> None:
        last = self.worker.parameters.pop()
        super().after_backward()
        self.worker.parameters.append(last)

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:
        return super().traffic(tensors[:-1], rank, world_size, step)


@dataclass(kw_only=True)
class LosesOneNumber(AllReduce):
    """In the second step one number of the last worker becomes NaN."""

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
    """Exact, but one worker sends more than it says, from the second step on."""

    name: ClassVar[str] = "wrong-prediction"
    surplus: int = 8

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:
        operations = super().traffic(tensors, rank, world_size, step)
        return [*operations, Operation("all_reduce", self.surplus)] if rank == 1 and step > 0 else operations


@dataclass(kw_only=True)
class PromisesTooMuch(Stepwise):
    """Replicas drift as they do, but it is said that they hardly do."""

    name: ClassVar[str] = "promises-too-much"

    def drift_bound(self, num_workers: int) -> float:
        return super().drift_bound(num_workers) / 100


@dataclass(kw_only=True)
class NeverMeets(Gossip):
    """Replicas stay near each other, but are not brought together at the end."""

    name: ClassVar[str] = "never-meets"

    def finish(self) -> None: ...


@dataclass(kw_only=True)
class ForgetsAWorker(LocalSgd):
    """After a synchronisation the last worker is one number off."""

    name: ClassVar[str] = "forgets-a-worker"

    def average(self, step: int) -> None:
        super().average(step)
        comm = self.worker.comm
        if self.is_synchronised(step) and comm.rank == comm.world_size - 1:
            self.worker.parameters[0].view(-1)[0] += 1e-12
