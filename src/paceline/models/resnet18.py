"""ResNet-18 for small images."""

from __future__ import annotations

from torch import nn

from paceline.models.resnet import BasicBlock, ResNet


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
