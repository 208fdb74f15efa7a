"""Train a regression whose input is a dict of two tensors: measurements, and the kind of each sample.

    paceline run --model examples/regression.py:model --data examples/regression.py:data \
        --loss examples/regression.py:loss --workers 2 --optimizer adam --lr 0.01 --batch-size 64 --epochs 5

The loss starts near the variance of the target and falls towards 0.01, the variance of its noise. The file
has no function `accuracy`, because a regression has none.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NUM_MEASUREMENTS = 8
NUM_KINDS = 5

Inputs = dict[str, Tensor]
Pair = tuple[Inputs, Tensor]


def data(seed: int) -> tuple[Pair, Pair]:
    """Return (inputs, targets) for training and for testing; each kind has its own weights and offset."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(NUM_KINDS, NUM_MEASUREMENTS, generator=generator) / NUM_MEASUREMENTS**0.5
    offsets = torch.randn(NUM_KINDS, generator=generator)
    num_samples = 4096 + 512
    measurements = torch.randn(num_samples, NUM_MEASUREMENTS, generator=generator)
    kind = torch.randint(NUM_KINDS, (num_samples,), generator=generator)
    noise = 0.1 * torch.randn(num_samples, generator=generator)
    targets = (weights[kind] * measurements).sum(dim=1) + offsets[kind] + noise
    train = {"measurements": measurements[:4096], "kind": kind[:4096]}
    test = {"measurements": measurements[4096:], "kind": kind[4096:]}
    return (train, targets[:4096]), (test, targets[4096:])


def model() -> nn.Module:
    return Regression()


def loss(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target)


class Regression(nn.Module):
    """A linear model per kind; the names of the arguments of `forward` are the keys of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(NUM_KINDS, 8)
        self.perceptron = nn.Sequential(
            nn.Linear(NUM_MEASUREMENTS + 8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, measurements: Tensor, kind: Tensor) -> Tensor:
        predicted: Tensor = self.perceptron(torch.cat([measurements, self.kinds(kind)], dim=1))
        return predicted.squeeze(1)
