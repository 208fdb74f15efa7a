"""Target accuracy: all workers stop once rank 0 reaches it, and the result says if it was not reached."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from helpers import ignore_event, on_threads
from paceline.errors import UsageError
from paceline.launch.local import LocalPool
from paceline.recipe import Recipe
from paceline.strategies import StrategySpec
from paceline.strategies.capabilities import as_asynchronous
from paceline.study.entries import make_entry
from paceline.study.preflight import preflight
from paceline.study.run import execute
from paceline.train.context import Context
from paceline.train.evaluate import Score
from paceline.train.replicas import parameter_digest
from paceline.train.trainer import Trainer
from toys import STEPS_PER_EPOCH, toy_data, toy_model, toy_recipe

EPOCHS = 40
IN_STEP = ["ring", "none", "stepwise", "local-sgd", "sharded", "overlap", "parameter-server"]
AT_THEIR_OWN_PACE = ["parameter-server:mode=async:servers=2", "parameter-server:mode=bounded:max_staleness=0"]


def train(context: Context, strategy: str, changes: dict[str, Any], scores: dict[int, list[float]]) -> dict[str, Any]:
    """Train a toy with given accuracies: a list per rank, one per evaluation; the last one repeats."""
    built = StrategySpec.parse(strategy).build()
    recipe = toy_recipe(context.world_size, {"train.epochs": EPOCHS, **changes})
    trainer = Trainer(recipe, built, toy_data(), context, toy_model("plain"))
    mine = iter(scores[context.rank])

    def evaluate(*_: Any, **__: Any) -> Score:
        if context.rank and as_asynchronous(built):
            time.sleep(0.02)  # slower than rank 0, so that there is something to stop
        return Score(1.0, next(mine, scores[context.rank][-1]))

    trainer._evaluate = evaluate  # type: ignore[method-assign]
    history = trainer.run()
    built.finish()
    return {
        "steps": len(history.loss),
        "evaluated_after": [row["step"] for row in history.evaluations],
        "sent_bytes": list(history.step_sent_bytes),
        "counted": context.comm.wire().sent_bytes,
        "digest": parameter_digest(trainer.model),
    }


@pytest.mark.parametrize("strategy", IN_STEP)
@pytest.mark.parametrize("world_size", [1, 3])
def test_synchronous_workers_stop_when_rank_0_reaches_it(strategy: str, world_size: int) -> None:
    # Replicas differ, and so do their accuracies; only that of rank 0 counts.
    scores = {0: [0.1, 0.2, 0.9], 1: [1.0], 2: [0.0]}
    changes = {"measure.target_accuracy": 0.9}
    workers = on_threads(world_size, train, strategy=strategy, changes=changes, scores=scores)
    assert [worker["steps"] for worker in workers] == [3 * STEPS_PER_EPOCH] * world_size
    assert workers[0]["evaluated_after"] == [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH, 3 * STEPS_PER_EPOCH]
    assert workers[0]["sent_bytes"] == sorted(workers[0]["sent_bytes"])


@pytest.mark.parametrize("strategy", AT_THEIR_OWN_PACE)
def test_asynchronous_workers_stop_soon_after(strategy: str) -> None:
    scores = {0: [0.1, 0.9], 1: [1.0], 2: [0.0]}
    changes = {"measure.target_accuracy": 0.9}
    workers = on_threads(3, train, strategy=strategy, changes=changes, scores=scores)
    assert workers[0]["steps"] == 2 * STEPS_PER_EPOCH
    assert all(0 < worker["steps"] < EPOCHS * STEPS_PER_EPOCH for worker in workers)
    assert len({worker["digest"] for worker in workers}) == 1  # finish() has made them equal


@pytest.mark.parametrize("strategy", ["ring", AT_THEIR_OWN_PACE[0]])
def test_without_a_target_no_worker_stops(strategy: str) -> None:
    scores = {0: [0.1], 1: [1.0]}
    changes = {"measure.target_accuracy": 0.9, "train.epochs": 2}
    workers = on_threads(2, train, strategy=strategy, changes=changes, scores=scores)
    assert [worker["steps"] for worker in workers] == [2 * STEPS_PER_EPOCH] * 2


def test_steps_that_are_evaluated() -> None:
    def evaluated_after(**changes: Any) -> list[int]:
        changes = {key.replace("__", "."): value for key, value in changes.items()}
        return on_threads(1, train, strategy="none", changes=changes, scores={0: [0.0]})[0]["evaluated_after"]

    target = {"measure__target_accuracy": 1.0}
    assert evaluated_after(train__epochs=3) == []
    assert evaluated_after(train__epochs=3, train__eval_every=2) == [6]
    assert evaluated_after(train__epochs=3, **target) == [3, 6, 9]
    # The last step is always evaluated; otherwise a short run would not know whether it reached the target.
    assert evaluated_after(train__epochs=3, train__eval_every=2, **target) == [6, 9]
    assert evaluated_after(train__epochs=None, train__iterations=2, **target) == [2]
    assert evaluated_after(train__epochs=None, train__iterations=4, **target) == [3, 4]


def test_the_decision_is_not_counted_as_traffic() -> None:
    scores = {0: [0.0], 1: [0.0]}
    plain, aimed = (
        on_threads(2, train, strategy="ring", changes={"train.epochs": 2, **changes}, scores=scores)
        for changes in ({}, {"measure.target_accuracy": 0.9})
    )
    assert [worker["counted"] for worker in aimed] == [worker["counted"] for worker in plain]
    assert aimed[0]["counted"] == aimed[0]["sent_bytes"][-1] > 0


@pytest.mark.parametrize("strategy", ["ring", "ddp", "parameter-server:mode=bounded:max_staleness=1"])
def test_a_run_in_processes(pool: LocalPool, strategy: str) -> None:
    small = {"workers": 2, "train.epochs": 60, "train.batch_size": 50, "optimizer.lr": 0.05}
    recipe = Recipe().replace({**small, "measure.target_accuracy": 0.3})
    result = execute(pool, recipe, make_entry(strategy, recipe), folder=None, on_event=ignore_event)
    assert result is not None
    target, evaluations = result["target"], result["evaluations"]
    assert target["reached"]
    assert target["accuracy"] == 0.3
    assert [row["accuracy"] >= 0.3 for row in evaluations] == [False] * (len(evaluations) - 1) + [True]
    assert (target["step"], target["epoch"]) == (evaluations[-1]["step"], evaluations[-1]["epoch"])
    assert target["step"] == result["steps"] < 60 * 2
    assert 0 < target["train_s"] <= result["train_s"]
    assert target["sent_bytes"] == sum(worker["sent_bytes"] for worker in result["per_worker"])
    assert result["curve"]["sent_bytes"][-1] == target["sent_bytes"]


def test_unsupported_targets_are_refused(tmp_path: Path) -> None:
    recipe = Recipe().replace({"workers": 2, "measure.target_accuracy": 0.5})
    (tmp_path / "loss.py").write_text("def loss(output, target): return output.square().mean()\n")
    aimed = recipe.replace({"train.loss": f"{tmp_path}/loss.py:loss"})
    with pytest.raises(UsageError, match=r"--target-accuracy needs an accuracy"):
        preflight(aimed)
