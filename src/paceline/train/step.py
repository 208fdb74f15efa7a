"""Computation of one worker in a training step: forward pass, loss and backward pass on its batch.

The training loop uses these functions with every strategy. The oracle (`oracle.py`) uses them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.data.base import Tree, call_model, cast_floats, first_tensor, num_samples, slice_tree, to_device
from paceline.errors import UsageError, unknown
from paceline.measure.observer import NO_OBSERVERS, Observers
from paceline.plugins import is_reference, load_reference, refuse_file_alone
from paceline.train.context import CPU

CROSS_ENTROPY = "cross-entropy"
ACCURACY = "accuracy"  # the function of that name in the file of the loss is its accuracy
_IGNORED = -100  # the target that F.cross_entropy ignores


@dataclass(frozen=True)
class Objective:
    """A loss with an optional accuracy.

    `count_correct` returns the numbers of correct and of all predictions; `fraction_correct` returns their quotient,
    from 0 to 1. At most one of the two functions is set.
    """

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
        """Return the number of correct predictions and the number of all predictions.

        Returns None if the objective has no accuracy.
        """
        if self.count_correct is not None:
            return self.count_correct(output, target)
        if self.fraction_correct is None:
            return None
        fraction = self._fraction(self.fraction_correct, output, target)
        # Multiply by elements of the target, not by samples: then a fraction of text positions gives a whole number.
        num_targets = first_tensor(target).numel()
        return round(fraction * num_targets), num_targets

    def _fraction(self, accuracy: Callable[[Any, Any], Any], output: Tree, target: Tree) -> float:
        """Call the user's accuracy and check its result. Errors name the accuracy."""
        name = f"{self.name.partition(':')[0]}:{ACCURACY}"
        try:
            value = accuracy(output, target)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(f"accuracy {name!r} raised {type(error).__name__}: {reason}") from error
        if isinstance(value, Tensor) and value.ndim:
            raise UsageError(f"accuracy {name!r} returned a tensor of shape {tuple(value.shape)}; return a scalar")
        try:
            fraction = float(value)
        except (TypeError, ValueError):
            raise UsageError(f"accuracy {name!r} returned a {type(value).__name__}; return a scalar") from None
        if not 0 <= fraction <= 1:
            raise UsageError(f"accuracy {name!r} returned {fraction:g}; return a fraction from 0 to 1")
        return fraction


def build_objective(name: str) -> Objective:
    """Return the objective for a loss name: `cross-entropy`, or `file.py:function` for the user's own function.

    If the user's file also defines `accuracy`, it becomes the accuracy of the objective.
    """
    if name == CROSS_ENTROPY:
        return Objective(name, F.cross_entropy, count_correct=_count_classes)
    if not is_reference(name):
        refuse_file_alone(name, "loss")
        raise unknown("loss", name, [CROSS_ENTROPY, "file.py:loss"])
    function = load_reference(name, "loss")
    if not callable(function):
        raise UsageError(f"loss {name!r} is a {type(function).__name__}; name a function loss(output, target)")
    return Objective(name, function, fraction_correct=_accuracy_in_same_file(name))


def _accuracy_in_same_file(name: str) -> Callable[[Any, Any], float] | None:
    module, _, _ = name.partition(":")
    try:
        accuracy = load_reference(f"{module}:{ACCURACY}", "accuracy")
    except UsageError:  # the file has been loaded before, so this error means that it defines no accuracy
        return None
    return accuracy if callable(accuracy) else None


def _count_classes(output: Tensor, target: Tensor) -> tuple[int, int]:
    """Return the number of correct predictions, and the number of predictions whose target is not ignored.

    As in F.cross_entropy, dimension 1 of the output is the class.
    """
    if target.is_floating_point():  # a probability per class
        target = target.argmax(dim=1)
    num_right = int((output.argmax(dim=1) == target).sum())
    return num_right, int((target != _IGNORED).sum())


@dataclass(frozen=True)
class Arithmetic:
    """Precision, memory layout and device of a model's computation."""

    precision: str = "fp32"
    channels_last: bool = False
    device: torch.device = CPU

    def place(self, model: nn.Module) -> nn.Module:
        model = model.to(self.device)
        if self.precision == "fp64":
            model = model.double()
        if self.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def prepare(self, inputs: Tree) -> Tree:
        inputs = to_device(inputs, self.device)
        if self.precision == "fp64":
            inputs = cast_floats(inputs, torch.float64)
        if self.channels_last and isinstance(inputs, Tensor) and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()


@dataclass(frozen=True)
class Outcome:
    """Mean loss of one worker's batch, and its numbers of correct predictions, of all predictions and of samples."""

    loss: float
    num_right: int
    num_answers: int
    num_samples: int


def forward_backward(
    replica: nn.Module,
    inputs: Tree,
    target: Tree,
    *,
    objective: Objective,
    arithmetic: Arithmetic,
    loss_scale: float = 1.0,
    micro_batch_size: int | None = None,
    least_pieces: int = 1,
    before_last: Callable[[], AbstractContextManager[Any]] = nullcontext,
    spreads_nonfinite: bool = False,
    observers: Observers = NO_OBSERVERS,
) -> Outcome:
    """Run forward and backward on a batch, split into micro-batches.

    Return the batch's mean loss, not scaled, and its numbers of correct and of all predictions. The gradient of the
    mean loss times `loss_scale` is added to `.grad` of the parameters. The micro-batches have at most
    `micro_batch_size` samples each (None: no limit). Their number is at least `least_pieces`, unless the batch has
    fewer samples. Every micro-batch except the last runs in a context manager that `before_last` returns, because
    strategies synchronise gradients only during the last one. With `spreads_nonfinite`, a loss that is not finite makes
    all gradients NaN, so that a check of the gradients also finds such a loss.
    """
    total = num_samples(inputs)
    pieces = micro_batches(total, micro_batch_size, least_pieces=least_pieces)
    loss_sum, num_right, num_answers = 0.0, 0, 0
    for piece, (start, stop) in enumerate(pieces):
        begin = observers.begin_phase("forward")
        piece_inputs = arithmetic.prepare(slice_tree(inputs, start, stop))
        piece_target = arithmetic.prepare(slice_tree(target, start, stop))
        is_last = piece == len(pieces) - 1
        with nullcontext() if is_last else before_last():
            output, loss = _forward(replica, piece_inputs, piece_target, objective, arithmetic)
            observers.end_phase("forward", begin)
            begin = observers.begin_phase("backward")
            scaled = loss * (loss_scale * (stop - start) / total)
            # This gradient of the scaled loss is 1 if the loss is finite, else NaN.
            scaled.backward(scaled.detach() * 0 + 1 if spreads_nonfinite else None)
            observers.end_phase("backward", begin)
        loss_sum += float(loss.detach()) * (stop - start)
        right = objective.correct(output, piece_target)
        if right is not None:
            num_right, num_answers = num_right + right[0], num_answers + right[1]
    return Outcome(loss_sum / total, num_right, num_answers, total)


def micro_batches(total: int, most_samples: int | None, *, least_pieces: int = 1) -> list[tuple[int, int]]:
    """Return the bounds (start, stop) of the micro-batches of a batch of `total` samples."""
    num_pieces = -(-total // most_samples) if most_samples else 1
    num_pieces = min(max(num_pieces, least_pieces), total)
    return list(pairwise(total * piece // num_pieces for piece in range(num_pieces + 1)))


def gradients_of_batch(
    model: nn.Module,
    inputs: Tree,
    target: Tree,
    *,
    objective: Objective,
    arithmetic: Arithmetic,
    micro_batch_size: int | None = None,
) -> Iterator[tuple[Tensor | None, ...]]:
    """Yield the gradients of all trained parameters for each micro-batch of a batch.

    Neither `.grad` nor gradient hooks are used, so nothing is sent.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for start, stop in micro_batches(num_samples(inputs), micro_batch_size):
        piece_inputs = arithmetic.prepare(slice_tree(inputs, start, stop))
        piece_target = arithmetic.prepare(slice_tree(target, start, stop))
        _, loss = _forward(model, piece_inputs, piece_target, objective, arithmetic)
        yield torch.autograd.grad(loss, parameters, allow_unused=True)


def _forward(
    model: nn.Module, inputs: Tree, target: Tree, objective: Objective, arithmetic: Arithmetic
) -> tuple[Any, Tensor]:
    """Return the output of a model and its loss."""
    with arithmetic.autocast():
        output = call_model(model, inputs)
        if arithmetic.precision == "bf16":
            output = cast_floats(output, torch.float32)
        return output, objective.loss(output, target)


@torch.no_grad()
def forward(model: nn.Module, inputs: Tree, target: Tree, *, objective: Objective, arithmetic: Arithmetic) -> Outcome:
    """Return a batch's loss and its numbers of correct and of all predictions, computed without gradients."""
    inputs, target = arithmetic.prepare(inputs), arithmetic.prepare(target)
    output, loss = _forward(model, inputs, target, objective, arithmetic)
    right = objective.correct(output, target) or (0, 0)
    return Outcome(float(loss), *right, first_tensor(inputs).shape[0])
