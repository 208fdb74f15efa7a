"""Every strategy in the registry, resumed from a checkpoint of every kind of step: equal bits to the run without."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from helpers import TESTS, build, is_possible, on_pool, on_threads, on_threads_supported
from paceline.errors import UsageError
from paceline.launch.local import LocalPool
from paceline.recipe import OptimizerConfig
from paceline.strategies import available_strategies
from paceline.strategies.capabilities import as_asynchronous
from paceline.train.optimizers import optimizer_class
from pairwise import cover
from resume_jobs import train_toy
from toys import STEPS_PER_EPOCH

VARIANTS = [
    "ring:average=weights",
    "stepwise:correct=delayed",
    "stepwise:exact_every=5",
    "local-sgd:sync_every=2",
    "local-sgd:sync_every=4:outer_lr=0.7:outer_momentum=0.9",
    "parameter-server:servers=2",
    "parameter-server:average=weights",
    "overlap:bucket_mb=0.0005",
    "sharded:bucket_mb=0.0005",
    "overlap:accumulate=2",
    "ring+bf16",
    "ring+topk:ratio=0.1",
    "all-reduce+powersgd:rank=1",
    "overlap+topk:ratio=0.1",
    "sharded+fp16",
    "parameter-server+bf16",
]
STRATEGIES = [
    name
    for name in [*available_strategies(), *VARIANTS]
    if on_threads_supported(name) and is_possible(name) and not as_asynchronous(build(name))
]
ELSEWHERE = [name for name in available_strategies() if not on_threads_supported(name)]

# Recipe and model of a case. Batches are uneven, and the last batch of an epoch has fewer samples than four workers.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "momentum": ({}, "plain"),
    "nesterov": ({"optimizer.nesterov": True, "optimizer.weight_decay": 0.01}, "plain"),
    "adam": ({"optimizer.name": "adam", "optimizer.lr": 0.01, "optimizer.momentum": 0.0}, "frozen"),
    "adamw": (
        {"optimizer.name": "adamw", "optimizer.lr": 0.01, "schedule.name": "cosine", "schedule.warmup": 1.0},
        "tied",
    ),
    "lars": ({"optimizer.name": "lars", "optimizer.lr": 10.0, "schedule.name": "step"}, "plain"),
    "lamb": ({"optimizer.name": "lamb", "optimizer.lr": 0.01}, "plain"),
    "micro-batches": ({"train.micro_batch_size": 2}, "plain"),
    "channels-last": ({"train.channels_last": True}, "plain"),
}
# Batches of 9 and 8 samples, because BatchNorm needs two samples on every worker. There are 6 steps here, too.
WITH_BATCHNORM = {"train.eval_every": 1, "train.batch_size": 9, "train.epochs": 3}
EVERY_STEP = {"train.checkpoint_every": "1step", "train.keep_checkpoints": 100}


def skip_unsupported(strategy: str, num_workers: int, changes: dict[str, Any]) -> None:
    try:
        build(strategy).check(num_workers, optimizer_class(changes.get("optimizer.name", OptimizerConfig().name)))
    except UsageError as reason:
        pytest.skip(str(reason))


def covering_rows() -> list[tuple[Any, ...]]:
    """Return rows in which every pair of a strategy, a number of workers, a step and a case occurs."""
    steps = [1, STEPS_PER_EPOCH - 1, STEPS_PER_EPOCH, STEPS_PER_EPOCH + 1, 2 * STEPS_PER_EPOCH]
    product = list(itertools.product(STRATEGIES, [1, 2, 3, 4], steps, CASES))
    return [product[position] for position in cover(product, 2)]


@pytest.mark.each_choice
@pytest.mark.parametrize(("strategy", "num_workers", "step", "case"), covering_rows())
def test_resumed_training_ends_with_the_same_bits(
    tmp_path: Path, strategy: str, num_workers: int, step: int, case: str
) -> None:
    changes, model = CASES[case]
    skip_unsupported(strategy, num_workers, changes)
    check_resumed(tmp_path, strategy, num_workers, step, changes, model)


@pytest.mark.each_choice
@pytest.mark.parametrize("mode", ["local", "rank0", "average", "sync", "off"])
@pytest.mark.parametrize("num_workers", [2, 4])
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if "accumulate" not in name])  # two samples at least
def test_batchnorm(tmp_path: Path, strategy: str, num_workers: int, mode: str) -> None:
    check_resumed(tmp_path, strategy, num_workers, 3, WITH_BATCHNORM | {"train.batchnorm": mode}, "normalised")


def check_resumed(
    folder: Path, strategy: str, num_workers: int, step: int, changes: dict[str, Any], model: str
) -> None:
    """Train without checkpoints, with checkpoints, and from one of them: the results are equal in bits."""
    arguments = {"strategy": strategy, "model": model}
    expected = on_threads(num_workers, train_toy, changes=changes, **arguments)
    changes = changes | EVERY_STEP
    arguments |= {"folder": str(folder), "changes": changes}
    assert on_threads(num_workers, train_toy, **arguments) == expected, "writing checkpoints changed the training"
    assert on_threads(num_workers, train_toy, resume_step=step, **arguments) == expected


@pytest.mark.parametrize(
    ("strategy", "comm", "num_workers"),
    [
        pytest.param(strategy, comm, 3, marks=[] if (strategy, comm) in quick else [pytest.mark.slow])
        for quick in [{("ddp", "torch"), ("overlap", "shm"), ("sharded", "shm"), ("stepwise", "hierarchical")}]
        for comm in ("torch", "shm", "hierarchical")
        for strategy in [*available_strategies(), "ddp:bucket_mb=0.001", "ddp+powersgd", "stepwise:correct=delayed"]
    ],
)
def test_between_processes(tmp_path: Path, pool: LocalPool, strategy: str, comm: str, num_workers: int) -> None:
    # With three workers the order of sums matters, so a different arrangement of buckets would show.
    arguments = {"strategy": strategy, "model": "plain"}
    expected = on_pool(pool, num_workers, train_toy, comm=comm, **arguments)
    arguments |= {"folder": str(tmp_path), "changes": EVERY_STEP}
    assert on_pool(pool, num_workers, train_toy, comm=comm, **arguments) == expected
    assert on_pool(pool, num_workers, train_toy, comm=comm, resume_step=STEPS_PER_EPOCH + 1, **arguments) == expected


@pytest.mark.parametrize("mode", ["async", pytest.param("bounded:max_staleness=1", marks=pytest.mark.slow)])
def test_asynchronous_servers_resume_with_their_guarantee(tmp_path: Path, mode: str) -> None:
    strategy = f"parameter-server:mode={mode}"
    arguments = {"strategy": strategy, "folder": str(tmp_path), "changes": EVERY_STEP}
    on_threads(3, train_toy, **arguments)
    step = STEPS_PER_EPOCH + 1
    resumed = on_threads(3, train_toy, resume_step=step, **arguments)
    assert len({worker["digest"] for worker in resumed}) == 1  # finish() brings the tensors of the server
    assert all(len(worker["loss"]) == 2 * STEPS_PER_EPOCH for worker in resumed)


def test_a_strategy_that_forgets_its_state_fails(tmp_path: Path) -> None:
    strategy = f"{TESTS / 'wrong_strategies.py'}:Forgetful"
    arguments = {"strategy": strategy, "folder": str(tmp_path), "changes": EVERY_STEP}
    expected = on_threads(2, train_toy, **arguments)
    resumed = on_threads(2, train_toy, resume_step=2, **arguments)
    assert resumed[0]["loss"][:2] == expected[0]["loss"][:2]
    assert resumed[0]["digest"] != expected[0]["digest"]
