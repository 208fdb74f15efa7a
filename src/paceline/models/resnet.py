"""Residual networks (He et al. 2015): ResNet-18 for small images and ResNet-50 for ImageNet."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.base import ImageModel, initialise_convolutions


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_convolution(channels, width, kernel_size=3, stride=stride),
            nn.ReLU(),
            *_convolution(width, width, kernel_size=3),
        )
        self.shortcut = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut; the 3x3 convolution has the stride ("v1.5")."""

    expansion: ClassVar[int] = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_convolution(channels, width, kernel_size=1),
            nn.ReLU(),
            *_convolution(width, width, kernel_size=3, stride=stride),
            nn.ReLU(),
            *_convolution(width, width * self.expansion, kernel_size=1),
        )
        self.shortcut = _shortcut(channels, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))


class ResNet(ImageModel):
    """A stem, four stages of residual blocks, a mean over all pixels, and a linear layer.

    All stages but the first halve the height and width of the image.
    """

    block: ClassVar[type[BasicBlock] | type[Bottleneck]]
    depths: ClassVar[tuple[int, int, int, int]]  # blocks per stage

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(shape, num_classes)
        self.stem = self.build_stem(shape[0])
        blocks: list[nn.Module] = []
        channels = 64
        for stage, depth in enumerate(self.depths):
            width = 64 * 2**stage
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(self.block(channels, width, stride))
                channels = width * self.block.expansion
        self.body = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, num_classes)
        initialise_convolutions(self)

    def build_stem(self, channels: int) -> nn.Sequential:
        """Return the layers that convert an image to the 64 channels of the first stage."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        # A plain mean rather than AdaptiveAvgPool2d, whose backward is not deterministic on GPUs.
        scores: Tensor = self.classifier(self.body(self.stem(images)).mean(dim=(2, 3)))
        return scores


def _convolution(channels: int, width: int, *, kernel_size: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """Return a padded convolution without bias, and a BatchNorm for its output."""
    convolution = nn.Conv2d(channels, width, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)
    return convolution, nn.BatchNorm2d(width)


def _shortcut(channels: int, width: int, stride: int) -> nn.Sequential:
    """Return the identity, or a 1x1 convolution with BatchNorm if the shape changes."""
    if stride == 1 and channels == width:
        return nn.Sequential()
    return nn.Sequential(*_convolution(channels, width, kernel_size=1, stride=stride))


class ResNet18(ResNet):
    """ResNet-18 for small images: 3x3 stem, no max-pooling; 11,173,962 parameters on CIFAR-10."""

    name = "resnet18"
    min_side = 8
    block = BasicBlock
    depths = (2, 2, 2, 2)

    def build_stem(self, channels: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        )


class ResNet50(ResNet):
    """ResNet-50 for large images: 7x7 stem with max-pooling; 25,557,032 parameters on ImageNet."""

    name = "resnet50"
    min_side = 32
    block = Bottleneck
    depths = (3, 4, 6, 3)

    def build_stem(self, channels: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
