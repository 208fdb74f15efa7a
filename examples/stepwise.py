"""Weights instead of gradients: replicas take steps of their own, and `finish()` brings them together.

    torchrun --nproc-per-node 2 examples/stepwise.py
    torchrun --nproc-per-node 2 examples/stepwise.py --strategy examples/stepwise.py:EveryFew:steps=8

The strategy here is a user's own: one class in a file, with its options, used by name. Any strategy of
`paceline strategies` that averages weights is used the same way. Without `finish()` each worker would keep a replica
of its own, and the program would say so at its end.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline
from paceline import Guarantee, Operation, Strategy, TensorSpec, Worker
from paceline.strategies.base import average_parameters


@dataclass(kw_only=True)
class EveryFew(Strategy):
    """Every few steps each weight tensor is summed by the library's all-reduce; nothing is sent between."""

    steps: int = 6

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.PERIODIC

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        self._step = 0

    def is_synchronised(self, step: int) -> bool:
        return (step + 1) % self.steps == 0

    def after_step(self) -> None:
        if self.is_synchronised(self._step):
            average_parameters(self.worker)
        self._step += 1

    def finish(self) -> None:
        average_parameters(self.worker)

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:
        del rank
        if world_size == 1 or not self.is_synchronised(step):
            return []
        return [Operation("all_reduce", spec.nbytes) for spec in tensors]


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--strategy", default=f"{Path(__file__)}:EveryFew")
    chosen = words.parse_args()
    torch.manual_seed(0)
    inputs = torch.randn(1000, 10)
    labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 2))

    paceline.init()
    replica, optimizer = paceline.parallel(model, torch.optim.SGD(model.parameters(), lr=0.3), chosen.strategy)
    loader = paceline.shard(DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True))
    for _ in range(25):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(replica(x), y).backward()
            optimizer.step()
    worker = paceline.rank()
    before = length(model)
    paceline.finish()
    with torch.no_grad():
        accuracy = (model(inputs).argmax(dim=1) == labels).float().mean().item()
    print(f"worker {worker}: accuracy {accuracy:.3f} length {before:.9f} -> {length(model):.9f}")


def length(model: nn.Module) -> float:
    return sum(float(parameter.detach().double().square().sum()) for parameter in model.parameters()) ** 0.5


if __name__ == "__main__":
    main()
