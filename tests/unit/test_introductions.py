"""The line that a command prints before it starts workers: how long it trains, and over which comm."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.cli.output import comm_of, length_of
from paceline.recipe import Recipe
from paceline.study.preflight import ModelFacts


def recipe(**changes: Any) -> Recipe:
    return Recipe().replace({key.replace("__", "."): value for key, value in changes.items()})


def facts(steps_per_epoch: int, total_steps: int) -> ModelFacts:
    return ModelFacts(
        num_parameters=1,
        num_train_samples=100,
        num_test_samples=10,
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
    )


def test_whole_epochs_are_counted_in_epochs() -> None:
    assert length_of(recipe(train__epochs=100), facts(1, 100)) == "100 epochs of 1 step"
    assert length_of(recipe(train__epochs=1), facts(4, 4)) == "1 epoch of 4 steps"


def test_other_lengths_are_counted_in_steps() -> None:
    assert length_of(recipe(train__epochs=None, train__iterations=50), facts(4, 50)) == "50 steps"
    assert length_of(recipe(train__epochs=3, train__iterations=5), facts(4, 5)) == "5 steps"


@pytest.mark.parametrize(
    ("device", "num_gpus", "where", "expected"),
    [
        ("cpu", 0, "", "comm torch (gloo)"),
        ("cpu", 0, ", on a, b", "comm torch (gloo)"),
        ("cuda", 4, "", "comm torch (nccl)"),
        ("cuda", 1, "", "comm torch"),
        ("cuda", 4, ", on a, b", "comm torch"),
    ],
)
def test_the_library_of_comm_torch(
    monkeypatch: pytest.MonkeyPatch, device: str, num_gpus: int, where: str, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    assert comm_of(recipe(device=device), 4, where) == expected


def test_other_comms_have_one_library() -> None:
    assert comm_of(recipe(comm="shm"), 4, "") == "comm shm"
