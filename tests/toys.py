"""Toy models and data, equal in every thread and process: weights come from a seeded generator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from paceline.data import Data
from paceline.data.base import Tensors
from paceline.recipe import Recipe

# 17 samples in batches of 7: shards of 7 over 2, 3 and 4 workers are uneven, and the third step has 3 samples,
# fewer than four workers.
SAMPLES, BATCH, STEPS_PER_EPOCH = 17, 7, 3
CLASSES = 3


def toy_recipe(world_size: int, changes: dict[str, Any] | None = None) -> Recipe:
    plain = {"workers": world_size, "train.batch_size": BATCH, "train.epochs": 2, "train.precision": "fp64"}
    base = Recipe().replace({**plain, "optimizer.lr": 0.05, "optimizer.momentum": 0.9})
    return base.replace(changes or {})


def toy_data(samples: int = SAMPLES, test_samples: int = 6, seed: int = 3) -> Data:
    generator = torch.Generator().manual_seed(seed)
    total = samples + test_samples
    images = torch.randn(total, 2, 6, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (total,), generator=generator)
    train, test = Tensors(images[:samples], labels[:samples]), Tensors(images[samples:], labels[samples:])
    return Data(train, test, shape=(2, 6, 6), num_classes=CLASSES)


def toy_model(kind: str) -> nn.Module:
    """Return a float64 model with the same weights on every call."""
    model = _KINDS[kind]()
    model.double()
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.linear = nn.Linear(4 * 4 * 4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(torch.tanh(self.conv(images)).flatten(1))


class Normalised(nn.Module):
    """A model with BatchNorm over images and over vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(64, 5)
        self.hidden_norm = nn.BatchNorm1d(5, affine=False)
        self.linear = nn.Linear(5, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.conv(images))).flatten(1)
        return self.linear(torch.tanh(self.hidden_norm(self.hidden(x))))


class Frozen(Plain):
    """A model with a convolution that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.conv.requires_grad_(requires_grad=False)


class Sometimes(Plain):
    """A model with a layer that only some batches use, and one that none uses."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(64, CLASSES)
        self.never = nn.Linear(2, 2)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.tanh(self.conv(images)).flatten(1)
        scores = self.linear(x)
        # The threshold lies between the means of the shards: only some workers' batches reach it.
        return scores + self.extra(x) if float(images.mean()) > 0 else scores


class Tied(nn.Module):
    """A model with tied weights and a non-persistent buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(72, 72)
        self.second = nn.Linear(72, 72)
        self.second.weight = self.first.weight
        self.last = nn.Linear(72, CLASSES)
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(images.flatten(1))) * self.scale)))


class Mixed(Plain):
    """A model with two dtypes, for a recipe in fp32, which leaves them unchanged."""

    def double(self) -> Mixed:
        super().double()
        self.linear.float()
        return self

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(torch.tanh(self.conv(images)).flatten(1).float()).double()


_KINDS: dict[str, type[nn.Module]] = {
    "plain": Plain,
    "normalised": Normalised,
    "frozen": Frozen,
    "sometimes": Sometimes,
    "tied": Tied,
    "mixed": Mixed,
}
