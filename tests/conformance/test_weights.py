"""Strategies that average weights, against an oracle with one replica per worker."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import on_pool, on_threads
from paceline.launch.local import LocalPool
from paceline.strategies import strategies
from paceline.strategies.weights import WeightAveraging
from replica_oracle import ORACLES, Mixing, follow, oracle_for, relative_error, replica_steps, resume

# float64 rounds at 1e-16; six steps of training amplify that by much less than seven orders of magnitude.
TOLERANCE = 1e-9
OPTIMIZERS = {
    "sgd": {"optimizer.name": "sgd", "optimizer.lr": 0.05, "optimizer.momentum": 0.9},
    "adam": {"optimizer.name": "adam", "optimizer.lr": 0.01},
}
LONG = {"train.epochs": 4}  # 12 steps: a whole number of rotations and full averages


def assert_follows(workers: list[dict[str, Any]], strategy: str, changes: dict[str, Any]) -> None:
    size = len(workers)
    *expected, [finished] = replica_steps(changes, oracle_for(strategy, size) if size > 1 else _alone(strategy))
    assert len(expected) == len(workers[0]["steps"]) > 0
    for rank, worker in enumerate(workers):
        for step, replica in enumerate(worker["steps"]):
            assert relative_error(replica, expected[step][rank]) <= TOLERANCE, f"rank {rank}, step {step}"
            counted, predicted = worker["traffic"][step]
            assert counted == predicted, f"rank {rank}, step {step}"
        assert worker["finished"] == workers[0]["finished"], f"rank {rank} differs in bits after finish()"
    assert relative_error(workers[0]["finished"], finished) <= TOLERANCE


def _alone(strategy: str) -> Mixing:
    return oracle_for(strategy, 1) if strategy.startswith("local-sgd") else Mixing(1)


STEPWISE = [
    f"stepwise:form={form}:rotate={rotate}:exact_every={every}:correct={correct}"
    for form in ("chunks", "whole")
    for rotate in ("true", "false")
    for every in (0, 1, 5)
    for correct in ("none", "delayed")
]
OTHERS = [
    "gossip",
    "local-sgd:sync_every=1",
    "local-sgd:sync_every=4",
    "local-sgd:sync_every=5:outer_lr=0.7:outer_momentum=0.9",
    "local-sgd:sync_every=2:outer_lr=0.5",
]


def test_every_strategy_that_averages_weights_has_an_oracle_and_follows_it() -> None:
    names = {name for name, cls in strategies.classes.items() if issubclass(cls, WeightAveraging)}
    assert names == set(ORACLES)
    assert names == {words.partition(":")[0] for words in [*STEPWISE, *OTHERS]}


@pytest.mark.each_choice
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("strategy", [*STEPWISE, *OTHERS])
def test_follows_the_oracle_after_every_step(strategy: str, world_size: int, optimizer: str) -> None:
    changes = {**OPTIMIZERS[optimizer], **(LONG if world_size in (3, 5) else {})}
    assert_follows(on_threads(world_size, follow, strategy=strategy, changes=changes), strategy, changes)


@pytest.mark.each_choice
@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize(
    "strategy",
    [
        "stepwise",
        "stepwise:form=whole:rotate=false",
        "stepwise:form=whole:correct=delayed",
        "stepwise:exact_every=5:correct=delayed",
        "gossip",
        "local-sgd:sync_every=2:outer_lr=0.7:outer_momentum=0.9",
    ],
)
def test_follows_the_oracle_over_gloo(pool: LocalPool, strategy: str, world_size: int) -> None:
    changes = {**OPTIMIZERS["sgd"], **LONG}
    assert_follows(on_pool(pool, world_size, follow, strategy=strategy, changes=changes), strategy, changes)


@pytest.mark.parametrize("strategy", ["stepwise", "stepwise:form=whole:correct=delayed", "gossip", "local-sgd"])
def test_frozen_parameters_and_channels_last(strategy: str) -> None:
    workers = on_threads(3, follow, strategy=strategy, changes={}, model="frozen")
    *expected, _ = replica_steps({}, oracle_for(strategy, 3, "frozen"), "frozen")
    for rank, worker in enumerate(workers):
        assert relative_error(worker["steps"][-1], expected[-1][rank]) <= TOLERANCE
    changes = {"train.channels_last": True}
    assert_follows(on_threads(3, follow, strategy=strategy, changes=changes), strategy, changes)


@pytest.mark.parametrize(
    "strategy",
    [
        "stepwise",
        "stepwise:form=whole:exact_every=4",
        "stepwise:correct=delayed",
        "gossip",
        "local-sgd:sync_every=4",
        "local-sgd:sync_every=4:outer_lr=0.7:outer_momentum=0.9",
    ],
)
def test_a_restart_changes_no_bit(strategy: str) -> None:
    for whole, again in on_threads(3, resume, strategy=strategy, changes=LONG, at=5):
        assert whole == again


def test_metrics() -> None:
    for worker in on_threads(3, follow, strategy="stepwise", changes={}):
        assert 0 < worker["metrics"]["moved_last"] <= worker["metrics"]["moved_max"]
    assert on_threads(1, follow, strategy="stepwise", changes={})[0]["metrics"] == {}
