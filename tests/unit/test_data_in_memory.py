"""Images in memory: conversion, normalisation, and augmentation, which is the same on every worker."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.data import ShardPlan
from paceline.data.base import Selected
from paceline.data.in_memory import Augmentation, InMemory, Normalization

NUM_IMAGES, SIZE = 40, 8


@pytest.fixture
def images() -> Tensor:
    # Never 0, so that padding can be distinguished from the image.
    return torch.randint(1, 256, (NUM_IMAGES, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(1)).to(
        torch.uint8
    )


@pytest.fixture
def labels() -> Tensor:
    return torch.arange(NUM_IMAGES) % 10


def everything(dataset: InMemory, epoch: int = 0) -> Tensor:
    values: Tensor = dataset.batch(torch.arange(len(dataset)), epoch)[0]
    return values


def test_without_options_a_batch_is_the_bytes_over_255(images: Tensor, labels: Tensor) -> None:
    values, targets = InMemory(images, labels).batch(torch.tensor([3, 1, 3]), 0)
    assert values.dtype is torch.float32
    assert torch.equal(values, images[[3, 1, 3]].float() / 255)
    assert targets.dtype is torch.int64
    assert targets.tolist() == [3, 1, 3]


def test_normalisation_is_by_channel(images: Tensor, labels: Tensor) -> None:
    pixels = images.double().div(255).transpose(0, 1).reshape(3, -1)
    normalization = Normalization(tuple(pixels.mean(1).tolist()), tuple(pixels.std(1).tolist()))
    channels = everything(InMemory(images, labels, normalization=normalization)).transpose(0, 1).reshape(3, -1)
    # float32 keeps 7 digits of values near 1.
    assert torch.allclose(channels.mean(1), torch.zeros(3), atol=1e-5)
    assert torch.allclose(channels.std(1), torch.ones(3), atol=1e-5)


def slow_crops(image: Tensor, pad: int, *, flip: bool) -> list[Tensor]:
    """Return every crop that augmentation may make of one image, computed one by one."""
    padded = torch.zeros(3, SIZE + 2 * pad, SIZE + 2 * pad)
    padded[:, pad : pad + SIZE, pad : pad + SIZE] = image.float() / 255
    places = range(2 * pad + 1)
    crops = [padded[:, top : top + SIZE, left : left + SIZE] for top in places for left in places]
    return crops + [crop.flip(-1) for crop in crops] if flip else crops


@pytest.mark.parametrize(("pad", "flip"), [(1, True), (2, False), (0, True)])
def test_augmented_images_are_crops_of_the_padded_image(images: Tensor, labels: Tensor, pad: int, flip: bool) -> None:
    dataset = InMemory(images, labels, augmentation=Augmentation(pad, flip), seed=5)
    seen = set()
    for index, value in enumerate(everything(dataset)):
        matches = [i for i, crop in enumerate(slow_crops(images[index], pad, flip=flip)) if torch.equal(crop, value)]
        assert len(matches) == 1
        seen.add(matches[0])
    num_possible = (2 * pad + 1) ** 2 * (2 if flip else 1)
    assert len(seen) > num_possible / 2


@pytest.mark.parametrize("num_workers", [2, 3, 4])
def test_workers_together_get_the_samples_of_one_worker(images: Tensor, labels: Tensor, num_workers: int) -> None:
    def epoch_of(workers: int) -> tuple[Tensor, Tensor]:
        plan = ShardPlan(NUM_IMAGES, batch_size=11, num_workers=workers, seed=2)
        # One data set per worker, as in separate processes.
        own = [InMemory(images, labels, augmentation=Augmentation(2, True), seed=9) for _ in range(workers)]
        parts = [
            own[rank].batch(plan.shard(7, step, rank), 7)
            for step in range(plan.steps_per_epoch)
            for rank in range(workers)
        ]
        return torch.cat([values for values, _ in parts]), torch.cat([targets for _, targets in parts])

    alone, together = epoch_of(1), epoch_of(num_workers)
    assert torch.equal(alone[0], together[0])
    assert torch.equal(alone[1], together[1])


def test_augmentation_differs_by_epoch_and_seed_and_comes_back(images: Tensor, labels: Tensor) -> None:
    dataset = InMemory(images, labels, augmentation=Augmentation(2, True), seed=1)
    first = everything(dataset, 0)
    assert not torch.equal(first, everything(dataset, 1))
    assert torch.equal(first, everything(dataset, 0))
    other = InMemory(images, labels, augmentation=Augmentation(2, True), seed=2)
    assert not torch.equal(first, everything(other, 0))


def test_the_first_samples_are_those_of_the_whole(images: Tensor, labels: Tensor) -> None:
    whole = InMemory(images, labels, augmentation=Augmentation(2, True), seed=1)
    first = Selected(whole, torch.arange(5))
    assert len(first) == 5
    assert torch.equal(first.batch(torch.arange(5), 3)[0], everything(whole, 3)[:5])


def test_an_empty_shard_is_an_empty_batch(images: Tensor, labels: Tensor) -> None:
    dataset = InMemory(images, labels, augmentation=Augmentation(2, True))
    values, targets = dataset.batch(torch.tensor([], dtype=torch.int64), 0)
    assert values.shape == (0, 3, SIZE, SIZE)
    assert targets.shape == (0,)
