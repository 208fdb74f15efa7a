"""The files in examples/ train under two workers, and the loss falls."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import REPOSITORY, ignore_event
from paceline.launch.base import Task
from paceline.launch.local import LocalLauncher
from paceline.recipe import Recipe
from paceline.study.preflight import preflight
from paceline.train.job import train_job

EXAMPLES = {
    "regression": {"optimizer.name": "adam", "optimizer.lr": 0.01, "train.batch_size": 64},
    "transformer_lm": {"optimizer.name": "adamw", "optimizer.lr": 0.003, "train.batch_size": 32},
}


def test_every_example_is_here() -> None:
    elsewhere = {"ddp_backend"}  # a script for torchrun: test_backend.py
    assert {path.stem for path in (REPOSITORY / "examples").glob("*.py")} == set(EXAMPLES) | elsewhere


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_loss_falls(pool: LocalLauncher, name: str) -> None:
    file = REPOSITORY / "examples" / f"{name}.py"
    parts = {"model.name": f"{file}:model", "data.name": f"{file}:data", "train.loss": f"{file}:loss"}
    recipe = Recipe().replace({**parts, **EXAMPLES[name], "train.iterations": 24, "workers": 2})
    assert preflight(recipe).total_steps == 24
    arguments: dict[str, Any] = {"recipe": recipe, "strategy": "ring", "checkpoint": ""}
    workers = pool.run(Task(train_job, arguments, num_workers=2, timeout_s=20.0), ignore_event)
    assert len({worker["parameter_digest"] for worker in workers}) == 1
    for worker in workers:
        first, last = worker["loss"][:4], worker["loss"][-4:]
        # Four steps each, because one batch is noisy; a fifth is far more than noise and far less than they learn.
        assert sum(last) < 0.8 * sum(first)
        has_accuracy = name == "transformer_lm"
        assert (worker["test_accuracy"] is not None) == has_accuracy
