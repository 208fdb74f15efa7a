"""LeNet-5: two convolutions and three linear layers."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.base import ImageModel


class LeNet5(ImageModel):
    """LeNet-5 (LeCun et al. 1998) with ReLU and max-pooling; 61,706 parameters on 28 x 28 digits.

    The network is designed for 32 x 32 pixels. For smaller images the first convolution pads by 2, so that 28 x 28
    pixels become 32 x 32. The size of the first linear layer depends on the size of the images.
    """

    name = "lenet5"
    min_side = 12

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(shape, num_classes)
        channels, height, width = shape
        padding = 2 if min(height, width) < 32 else 0
        self.conv1 = nn.Conv2d(channels, 6, kernel_size=5, padding=padding)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5)
        self.linear1 = nn.Linear(16 * _pooled(height, padding) * _pooled(width, padding), 120)
        self.linear2 = nn.Linear(120, 84)
        self.linear3 = nn.Linear(84, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.linear1(x.flatten(1)))
        x = F.relu(self.linear2(x))
        scores: Tensor = self.linear3(x)
        return scores


def _pooled(side: int, padding: int) -> int:
    """Return the side length of an image, in pixels, after both convolutions and poolings."""
    return ((side + 2 * padding - 4) // 2 - 4) // 2
