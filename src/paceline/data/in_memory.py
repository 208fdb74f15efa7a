"""Data set of uint8 images in memory, converted to float32, normalised and augmented batch by batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.data.base import Batch, Dataset
from paceline.data.sharding import epoch_generator

# Added to the seed of the run, so that augmentation is independent of shuffling.
AUGMENT_SEED_OFFSET = 0x5EED


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of every channel, for values between 0 and 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply_(self, images: Tensor) -> Tensor:
        """Normalise float images (samples, channels, height, width) in place."""
        mean = torch.tensor(self.mean).view(1, -1, 1, 1)
        std = torch.tensor(self.std).view(1, -1, 1, 1)
        return images.sub_(mean).div_(std)


def float_images(images: Tensor, normalization: Normalization | None) -> Tensor:
    """Convert uint8 images to contiguous float32 values from 0 to 1; normalise them if `normalization` is given."""
    values = images.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
    return values if normalization is None else normalization.apply_(values)


@dataclass(frozen=True)
class Augmentation:
    """Random changes of images: zero padding, then a crop of the original size at a random position.

    `pad` is in pixels. With `flip`, each image is also mirrored with probability 1/2.
    """

    pad: int
    flip: bool


class InMemory(Dataset):
    """Data set of uint8 images (samples, channels, height, width) and their classes.

    The random choices of an epoch are drawn for all samples together, so that a sample depends only on seed, epoch and
    index, not on its batch.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        normalization: Normalization | None = None,
        augmentation: Augmentation | None = None,
        seed: int = 0,
    ) -> None:
        assert images.dtype is torch.uint8
        assert images.dim() == 4
        assert len(images) == len(labels)
        self._images = images
        self._labels = labels.to(torch.int64)
        self._normalization = normalization
        self._augmentation = augmentation
        self._seed = seed
        self._choices: tuple[int, Tensor, Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self._images)

    def batch(self, indices: Tensor, epoch: int) -> Batch:
        images = self._images[indices]
        if self._augmentation is not None:
            images = self._augment(images, indices, epoch, self._augmentation)
        return float_images(images, self._normalization), self._labels[indices]

    def labels(self) -> Tensor:
        return self._labels

    def _augment(self, images: Tensor, indices: Tensor, epoch: int, augmentation: Augmentation) -> Tensor:
        num_images, num_channels, height, width = images.shape
        top, left, mirrored = (choice[indices] for choice in self._epoch_choices(epoch, augmentation))
        across = torch.arange(width)
        columns = left[:, None] + torch.where(mirrored[:, None], width - 1 - across, across)
        rows = top[:, None] + torch.arange(height)
        padded = F.pad(images, (augmentation.pad,) * 4)
        return padded[
            torch.arange(num_images)[:, None, None, None],
            torch.arange(num_channels)[None, :, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]

    def _epoch_choices(self, epoch: int, augmentation: Augmentation) -> tuple[Tensor, Tensor, Tensor]:
        """Return three tensors with an element per sample: top and left of the crop, and whether to mirror.

        The choices of the latest epoch are cached.
        """
        if self._choices is None or self._choices[0] != epoch:
            generator = epoch_generator(self._seed + AUGMENT_SEED_OFFSET, epoch)
            shape, places = (len(self),), 2 * augmentation.pad + 1
            top = torch.randint(places, shape, generator=generator)
            left = torch.randint(places, shape, generator=generator)
            mirrored = (torch.rand(shape, generator=generator) < 0.5) & augmentation.flip
            self._choices = (epoch, top, left, mirrored)
            return top, left, mirrored
        return self._choices[1:]
