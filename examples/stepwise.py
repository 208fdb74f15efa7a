"""Average weights instead of gradients: each replica makes its own steps, and `finish()` makes all replicas equal.

    torchrun --nproc-per-node 2 examples/stepwise.py
    torchrun --nproc-per-node 2 examples/stepwise.py --strategy local-sgd:sync_every=8

Other strategies are used in the same way (those with servers need `paceline run`), and so is your own class, as
`file.py:Class`. Without `finish()` replicas would differ, and the program would warn when it ends.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--strategy", default="stepwise")
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
