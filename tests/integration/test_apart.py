"""Replicas that end apart are judged one by one before they are brought together; shards of a few labels each."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import ignore_event
from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.recipe import Recipe
from paceline.train.job import train_job

SMALL = {"data.train_samples": 96, "data.test_samples": 60, "train.batch_size": 24, "train.epochs": 1, "workers": 3}


def train(pool: LocalPool, strategy: str, changes: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    recipe = Recipe().replace({**SMALL, **(changes or {})})
    arguments = {"recipe": recipe, "strategy": strategy, "checkpoint": ""}
    return pool.run(Task(train_job, arguments, num_workers=3, timeout_s=20.0), ignore_event)


@pytest.mark.parametrize(
    "strategy", ["stepwise", "stepwise:form=whole:correct=delayed", "gossip", "local-sgd:sync_every=3"]
)
def test_replicas_are_judged_apart_and_then_together(pool: LocalPool, strategy: str) -> None:
    workers = train(pool, strategy, {"data.order": "sorted"})
    assert workers[0]["replica_drift"] > 1e-6
    assert len({worker["test_loss_before_finish"] for worker in workers}) == 3
    assert len({worker["test_loss"] for worker in workers}) == 1
    assert len({worker["parameter_digest"] for worker in workers}) == 1


def test_equal_replicas_are_judged_once(pool: LocalPool) -> None:
    for worker in train(pool, "all-reduce"):
        assert worker["test_loss_before_finish"] == worker["test_loss"]
        assert worker["test_accuracy_before_finish"] == worker["test_accuracy"]


def test_sorted_shards_are_easier_to_learn_by_heart(pool: LocalPool) -> None:
    # 96 of mnist-mini have each digit nine or ten times: a worker that sees three or four digits learns just those.
    changes = {"train.epochs": 6, "data.test_samples": 500}
    apart = train(pool, "none", {**changes, "data.order": "sorted"})
    mixed = train(pool, "none", changes)
    assert all(worker["test_accuracy"] < 0.45 for worker in apart)
    assert all(worker["train_loss"] < other["train_loss"] for worker, other in zip(apart, mixed, strict=True))
