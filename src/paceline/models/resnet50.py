"""ResNet-50 for ImageNet."""

from __future__ import annotations

from torch import nn

from paceline.models.resnet import Bottleneck, ResNet


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
