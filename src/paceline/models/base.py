"""Base class of the built-in image classifiers, which checks that the data fits the model."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from paceline.errors import UsageError


class ImageModel(nn.Module):
    """A built-in image classifier.

    Its constructor raises UsageError for images of an unsupported shape and for data without classes.
    """

    name: ClassVar[str] = ""
    min_side: ClassVar[int] = 1  # smallest supported height and width of images in pixels

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        if len(shape) != 3:
            given = f"inputs of shape {shape}" if shape else "inputs that are not a single tensor"
            raise UsageError(
                f"model {self.name!r} takes images (channels, height, width), but this data has {given}; "
                "use a model of your own: file.py:factory"
            )
        if num_classes < 1:
            raise UsageError(
                f"model {self.name!r} is a classifier, but this data has no classes; "
                "use data with classes, or a model of your own: file.py:factory"
            )
        if min(shape[1:]) < self.min_side:
            raise UsageError(
                f"model {self.name!r} takes images of at least {self.min_side} x {self.min_side} pixels, "
                f"but this data has {shape[1]} x {shape[2]}; use larger images or another model"
            )


def initialise_convolutions(model: nn.Module) -> None:
    """Initialise convolutions as in He et al. 2015, so that gradients have similar variance in all layers.

    Biases are set to 0.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
