"""What the built-in models share: images in, one score per class out, and the checks that the data fits."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from paceline.errors import UsageError


class ImageModel(nn.Module):
    """A built-in model. Takes channels and classes from the data; data that does not fit is a UsageError."""

    name: ClassVar[str] = ""
    min_side: ClassVar[int] = 1  # smallest height and width of which something is left after every pooling

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
                f"model {self.name!r} tells classes apart, but this data has none; "
                "use data with classes, or a model of your own: file.py:factory"
            )
        if min(shape[1:]) < self.min_side:
            raise UsageError(
                f"model {self.name!r} takes images of at least {self.min_side} x {self.min_side} pixels, "
                f"but this data has {shape[1]} x {shape[2]}; use larger images or another model"
            )


def initialise_convolutions(model: nn.Module) -> None:
    """He's initialisation, which keeps the variance of gradients through ReLU layers; biases start at 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
