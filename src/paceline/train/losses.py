"""Loss and accuracy: cross-entropy, or the user's own `file.py:loss`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from paceline.data.trees import Tree, first_tensor
from paceline.errors import UsageError, unknown
from paceline.plugins import is_reference, load_reference

CROSS_ENTROPY = "cross-entropy"
_IGNORED = -100  # the class that F.cross_entropy ignores


@dataclass(frozen=True)
class Objective:
    """A loss and, where there is one, an accuracy."""

    name: str
    mean_loss: Callable[[Any, Any], Tensor]
    count_correct: Callable[[Any, Any], tuple[int, int]] | None = None
    fraction_correct: Callable[[Any, Any], float] | None = None

    def loss(self, output: Tree, target: Tree) -> Tensor:
        """Return the loss as a scalar: the mean over the samples of the batch."""
        value = self.mean_loss(output, target)
        if not isinstance(value, Tensor):
            raise UsageError(f"loss {self.name!r} returned a {type(value).__name__}; return a scalar tensor")
        if value.ndim != 0:
            raise UsageError(
                f"loss {self.name!r} returned a tensor of shape {tuple(value.shape)}; "
                "return a scalar, the mean over samples"
            )
        return value

    def correct(self, output: Tree, target: Tree) -> tuple[int, int] | None:
        """Return the number of correct predictions and of all predictions; None without an accuracy."""
        if self.count_correct is not None:
            return self.count_correct(output, target)
        if self.fraction_correct is None:
            return None
        fraction = float(self.fraction_correct(output, target))
        if not 0 <= fraction <= 1:
            raise UsageError(f"accuracy of loss {self.name!r} returned {fraction:g}; return a fraction from 0 to 1")
        # Elements rather than samples, so that a fraction of positions becomes a whole number too.
        num_targets = first_tensor(target).numel()
        return round(fraction * num_targets), num_targets


def build_objective(name: str) -> Objective:
    """Return cross-entropy, or the user's loss(output, target) with `accuracy` of the same file, if there is one."""
    if name == CROSS_ENTROPY:
        return Objective(name, F.cross_entropy, count_correct=_count_classes)
    if not is_reference(name):
        raise unknown("loss", name, [CROSS_ENTROPY, "file.py:loss"])
    function = load_reference(name, "loss")
    if not callable(function):
        raise UsageError(f"loss {name!r} is a {type(function).__name__}; name a function loss(output, target)")
    return Objective(name, function, fraction_correct=_accuracy_beside(name))


def _accuracy_beside(name: str) -> Callable[[Any, Any], float] | None:
    module, _, _ = name.partition(":")
    try:
        accuracy = load_reference(f"{module}:accuracy", "accuracy")
    except UsageError:  # the file is loaded already, so it has no such function
        return None
    return accuracy if callable(accuracy) else None


def _count_classes(output: Tensor, target: Tensor) -> tuple[int, int]:
    """Count correct classes; as in F.cross_entropy, dimension 1 of the output is the class."""
    if target.is_floating_point():  # a probability per class
        target = target.argmax(dim=1)
    num_right = int((output.argmax(dim=1) == target).sum())
    return num_right, int((target != _IGNORED).sum())
