"""Learning rates of every schedule, with edge cases."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.errors import UsageError
from paceline.recipe import OptimizerConfig, Recipe, ScheduleConfig, TrainConfig
from paceline.train.optimizers import learning_rate


def rate(step: int, *, lr: float = 0.1, batch_size: int = 256, total_steps: int = 1000, **schedule: Any) -> float:
    """Return the learning rate of a step, with ten steps per epoch."""
    train, optimizer = TrainConfig(batch_size=batch_size), OptimizerConfig(lr=lr)
    recipe = Recipe(train=train, optimizer=optimizer, schedule=ScheduleConfig(**schedule))
    return learning_rate(step, recipe, steps_per_epoch=10, total_steps=total_steps)


def test_constant() -> None:
    assert [rate(step) for step in (0, 1, 999, 5000)] == [0.1] * 4


@pytest.mark.parametrize(
    "scale_lr, batch_size, expected",
    [
        ("none", 8192, 0.1),
        ("linear", 8192, 3.2),
        ("linear", 256, 0.1),
        ("linear", 64, 0.025),
        ("sqrt", 1024, 0.2),
        ("sqrt", 64, 0.05),
    ],
)
def test_scaling_with_the_batch(scale_lr: str, batch_size: int, expected: float) -> None:
    assert rate(0, batch_size=batch_size, scale_lr=scale_lr) == pytest.approx(expected)


def test_scaling_from_another_base() -> None:
    assert rate(0, batch_size=256, scale_lr="linear", base_batch=128) == pytest.approx(0.2)


def test_warmup_without_scaling_ends_at_the_peak() -> None:
    rates = [rate(step, warmup=0.5) for step in range(6)]
    assert rates == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.1])


def test_warmup_with_scaling_starts_at_the_unscaled_rate() -> None:
    rates = [rate(step, batch_size=8192, scale_lr="linear", warmup=0.5) for step in range(7)]
    assert rates == pytest.approx([0.1, 0.72, 1.34, 1.96, 2.58, 3.2, 3.2])


@pytest.mark.parametrize("batch_size", [64, 256])
def test_scaling_that_does_not_raise_the_rate_needs_no_warmup(batch_size: int) -> None:
    rates = [rate(step, batch_size=batch_size, scale_lr="linear", warmup=1) for step in (0, 5, 10, 50)]
    assert rates == pytest.approx([0.1 * batch_size / 256] * 4)


def test_warmup_longer_than_training_keeps_rising() -> None:
    rates = [rate(step, warmup=2, total_steps=10, name="cosine") for step in range(10)]
    assert rates == pytest.approx([0.005 * (step + 1) for step in range(10)])


def test_step_drops_at_epochs() -> None:
    rates = [rate(step, name="step", step_epochs=3, step_factor=0.5) for step in (0, 29, 30, 59, 60, 90)]
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.0125])


def test_step_counts_epochs_from_the_start_of_training() -> None:
    rates = [rate(step, name="step", step_epochs=3, warmup=1) for step in (0, 9, 10, 29, 30)]
    assert rates == pytest.approx([0.01, 0.1, 0.1, 0.1, 0.01])


def test_step_may_drop_to_zero() -> None:
    assert [rate(step, name="step", step_epochs=1, step_factor=0) for step in (9, 10, 20)] == [0.1, 0, 0]


def test_cosine_from_the_peak_to_zero() -> None:
    rates = [rate(step, name="cosine", total_steps=100) for step in (0, 25, 50, 75)]
    assert rates == pytest.approx([0.1 * x for x in (1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125))])
    assert 0 < rate(99, name="cosine", total_steps=100) < 0.1 * 0.001
    assert rate(100, name="cosine", total_steps=100) == pytest.approx(0, abs=1e-12)
    assert rate(150, name="cosine", total_steps=100) == pytest.approx(0, abs=1e-12)


def test_cosine_begins_after_the_warmup() -> None:
    rates = [rate(step, name="cosine", total_steps=30, warmup=1) for step in (9, 10, 20, 30)]
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0])


def test_cosine_of_a_single_step_is_the_peak() -> None:
    assert rate(0, name="cosine", total_steps=1) == pytest.approx(0.1)


def test_no_rate_at_all() -> None:
    assert rate(3, lr=0, name="cosine", warmup=1, scale_lr="linear", batch_size=512) == 0


def test_unknown_names_are_refused() -> None:
    """The recipe refuses them first; a schedule created otherwise still gets a message."""
    schedule = ScheduleConfig()
    for field, value, message in (
        ("name", "cosinus", "unknown schedule 'cosinus'; did you mean 'cosine'"),
        ("scale_lr", "liner", "unknown lr scaling 'liner'; did you mean 'linear'"),
    ):
        changed = ScheduleConfig(**vars(schedule))
        object.__setattr__(changed, field, value)
        with pytest.raises(UsageError, match=message):
            learning_rate(0, Recipe(schedule=changed), steps_per_epoch=1, total_steps=1)
