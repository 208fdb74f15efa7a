"""Losses, accuracies, and functions on batches of nested tensors."""

from __future__ import annotations

import dataclasses
import math
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.data.base import call_model, cast_floats, num_samples, slice_tree, to_device
from paceline.errors import UsageError
from paceline.train.step import build_objective


def test_cross_entropy_is_a_mean_over_samples() -> None:
    objective = build_objective("cross-entropy")
    output = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]], dtype=torch.float64)
    target = torch.tensor([1, 0])
    assert float(objective.loss(output, target)) == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)
    halves = [float(objective.loss(output[i : i + 1], target[i : i + 1])) for i in (0, 1)]
    assert sum(halves) / 2 == pytest.approx(float(objective.loss(output, target)))


def test_cross_entropy_counts_right_classes() -> None:
    objective = build_objective("cross-entropy")
    output = torch.tensor([[1.0, 0.0, 2.0], [3.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert objective.correct(output, torch.tensor([2, 0, 2])) == (2, 3)
    assert objective.correct(output, torch.tensor([0, 1, 0])) == (0, 3)


def test_cross_entropy_of_sequences_counts_every_position() -> None:
    objective = build_objective("cross-entropy")
    target = torch.tensor([[0, 1, 2], [2, 1, 0]])
    output = nn.functional.one_hot(target, 4).movedim(-1, 1).double()  # (samples, classes, positions)
    assert objective.correct(output, target) == (6, 6)
    target[0, 0] = 3
    assert objective.correct(output, target) == (5, 6)
    target[1, 1] = -100  # F.cross_entropy leaves it out of the mean
    assert objective.correct(output, target) == (4, 5)
    assert objective.loss(output, target).shape == ()


def test_cross_entropy_takes_probabilities() -> None:
    objective = build_objective("cross-entropy")
    target = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    assert objective.correct(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), target) == (1, 2)


LOSSES = """
def half_square(output, target):
    return 0.5 * ((output - target) ** 2).mean()

def per_sample(output, target):
    return (output - target) ** 2

def number(output, target):
    return 0.5

constant = 3
"""


@pytest.fixture
def losses(tmp_path: Path) -> str:
    (tmp_path / "losses.py").write_text(LOSSES)
    return str(tmp_path / "losses.py")


def test_the_users_loss(losses: str) -> None:
    objective = build_objective(f"{losses}:half_square")
    output, target = torch.tensor([1.0, 4.0], requires_grad=True), torch.tensor([0.0, 2.0])
    loss = objective.loss(output, target)
    assert float(loss.detach()) == 1.25
    loss.backward()
    assert output.grad is not None
    assert output.grad.tolist() == [0.5, 1.0]
    assert objective.correct(output, target) is None


def test_the_users_accuracy(tmp_path: Path) -> None:
    path = tmp_path / "counted.py"
    path.write_text(
        LOSSES + "\ndef accuracy(output, target):\n    return (output.round() == target).float().mean().item()\n"
    )
    objective = build_objective(f"{path}:half_square")
    assert objective.correct(torch.tensor([1.1, 2.4, 2.6]), torch.tensor([1.0, 2.0, 2.0])) == (2, 3)
    # A fraction of positions is not rounded to whole samples.
    assert objective.correct(torch.zeros(2, 3), torch.tensor([[0.0, 1, 1], [1, 1, 1]])) == (1, 6)


@pytest.mark.parametrize("value", ["1.5", "-0.1", "float('nan')"])
def test_an_accuracy_that_is_no_fraction_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(LOSSES + f"\ndef accuracy(output, target):\n    return {value}\n")
    objective = build_objective(f"{path}:half_square")
    with pytest.raises(UsageError, match=r"accuracy '.*wrong.py:accuracy' returned .* from 0 to 1"):
        objective.correct(torch.zeros(2), torch.zeros(2))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return (output > 0).float()", r"returned a tensor of shape \(4,\); return a scalar"),
        ("return 'good'", "returned a str; return a scalar"),
        ("return None", "returned a NoneType; return a scalar"),
        ("return output / [1]", "raised TypeError: "),
    ],
)
def test_faults_of_an_accuracy_are_blamed_on_it(tmp_path: Path, body: str, sentence: str) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(f"{LOSSES}\ndef accuracy(output, target):\n    {body}\n")
    objective = build_objective(f"{file}:half_square")
    with pytest.raises(UsageError, match=rf"^accuracy '.*wrong.py:accuracy' {sentence}"):
        objective.correct(torch.ones(4), torch.ones(4))


def test_an_accuracy_that_is_no_function_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "named.py"
    path.write_text(LOSSES + "\naccuracy = 0.5\n")
    assert build_objective(f"{path}:half_square").correct(torch.zeros(2), torch.zeros(2)) is None


def test_a_loss_that_is_no_scalar_is_refused(losses: str) -> None:
    with pytest.raises(UsageError, match=r"per_sample' returned a tensor of shape \(2,\); return a scalar, the mean"):
        build_objective(f"{losses}:per_sample").loss(torch.zeros(2), torch.zeros(2))
    with pytest.raises(UsageError, match=r"number' returned a float; return a scalar tensor"):
        build_objective(f"{losses}:number").loss(torch.zeros(2), torch.zeros(2))


def test_a_loss_that_does_not_exist_is_refused(losses: str) -> None:
    with pytest.raises(UsageError, match="unknown loss 'cross_entropy'; did you mean 'cross-entropy'"):
        build_objective("cross_entropy")
    with pytest.raises(UsageError, match=r"unknown loss 'mse'; known: cross-entropy, file\.py:loss"):
        build_objective("mse")
    with pytest.raises(UsageError, match="constant' is a int; name a function"):
        build_objective(f"{losses}:constant")
    with pytest.raises(UsageError, match=r"loss file 'missing\.py' does not exist"):
        build_objective("missing.py:loss")


def test_an_objective_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        build_objective("cross-entropy").name = "other"  # type: ignore[misc]


Point = namedtuple("Point", "x y")


def nested() -> dict[str, Any]:
    return {
        "image": torch.arange(12.0).reshape(4, 3),
        "more": [torch.arange(4), (torch.ones(4, dtype=torch.float64), "label")],
        "point": Point(torch.zeros(4, 2), None),
    }


def test_number_of_samples() -> None:
    assert num_samples(torch.zeros(5, 2)) == 5
    assert num_samples(nested()) == 4
    assert num_samples(("text", [torch.zeros(3)])) == 3
    assert num_samples(torch.zeros(0, 2)) == 0


def test_number_of_samples_of_nothing() -> None:
    with pytest.raises(UsageError, match="a batch of type dict has no tensor; use tensors"):
        num_samples({"a": 1})
    with pytest.raises(UsageError, match="the first tensor of a batch is a scalar"):
        num_samples([torch.tensor(1.0)])


def test_slices_are_views_of_every_tensor() -> None:
    tree = nested()
    part = slice_tree(tree, 1, 3)
    assert part["image"].tolist() == [[3, 4, 5], [6, 7, 8]]
    assert part["more"][0].tolist() == [1, 2]
    assert part["more"][1][0].shape == (2,)
    assert part["more"][1][1] == "label"
    assert isinstance(part["point"], Point)
    assert part["point"].x.shape == (2, 2)
    assert part["point"].y is None
    part["image"][0, 0] = 100
    assert tree["image"][1, 0] == 100


def test_only_floats_are_cast() -> None:
    tree = cast_floats(nested(), torch.bfloat16)
    assert tree["image"].dtype == torch.bfloat16
    assert tree["more"][0].dtype == torch.int64
    assert tree["more"][1][0].dtype == torch.bfloat16


def test_everything_moves_to_the_device() -> None:
    tree = to_device(nested(), "meta")
    assert [t.device.type for t in (tree["image"], tree["more"][0], tree["more"][1][0], tree["point"].x)] == [
        "meta"
    ] * 4


class Minus(nn.Module):
    def forward(self, a: Tensor, b: Tensor | float = 0.0) -> Tensor:
        return a - b


def test_a_model_is_called_as_its_input_says() -> None:
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    assert call_model(Minus(), one).item() == 1
    assert call_model(Minus(), (one, two)).item() == -1
    assert call_model(Minus(), [two, one]).item() == 1
    assert call_model(Minus(), {"b": one, "a": two}).item() == 1
