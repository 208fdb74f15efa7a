"""VGG-11 with BatchNorm for small images."""

from __future__ import annotations

from torch import Tensor, nn

from paceline.models.base import ImageModel, initialise_convolutions

# Output channels of each convolution. Max-pooling follows each group.
GROUPS = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class VGG11(ImageModel):
    """VGG-11 (Simonyan & Zisserman 2014) with BatchNorm and one linear layer; 9,231,114 parameters on CIFAR-10.

    Images of 32 x 32 pixels are reduced to one pixel. For larger images, the remaining pixels are averaged.
    """

    name = "vgg11"
    min_side = 32

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(shape, num_classes)
        layers: list[nn.Module] = []
        channels = shape[0]
        for group in GROUPS:
            for width in group:
                layers += [nn.Conv2d(channels, width, kernel_size=3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, num_classes)
        initialise_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        # A plain mean rather than AdaptiveAvgPool2d, whose backward is not deterministic on GPUs.
        scores: Tensor = self.classifier(self.features(images).mean(dim=(2, 3)))
        return scores
