"""User code for tests: a model whose weights ignore the seed, a model with tied weights, and data for both."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch
from torch import nn

from toys import Tied, toy_data


def unseeded() -> nn.Module:
    """A model with weights from the system's randomness, different in every process."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 3))
    generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(6), "big"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def tied() -> nn.Module:
    return Tied()


def data() -> Any:
    found = toy_data(samples=40, test_samples=10)
    return tuple((part.inputs.float(), part.targets) for part in (found.train, found.test))


class Noisy(nn.Module):
    """A model that draws from the random number generators of torch, NumPy and Python in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(72, 20), nn.Dropout(0.5), nn.Linear(20, 3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores = self.layers(images)
        return scores * (1 + 0.1 * random.random() + 0.1 * np.random.random()) if self.training else scores


def noisy() -> nn.Module:
    return Noisy()
