"""Whole runs over processes: repeatable, judged alike by any number of workers, and kept as a file that loads."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from helpers import TESTS, ignore_event, on_threads
from paceline.data import load_data
from paceline.errors import WorkerError
from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.models import build_model
from paceline.recipe import Recipe
from paceline.strategies import StrategySpec
from paceline.train.context import Context
from paceline.train.job import train_job
from paceline.train.replicas import mean_state
from paceline.train.trainer import Trainer
from toys import toy_data, toy_model, toy_recipe

USER = TESTS / "user_code.py"
SMALL = {"data.train_samples": 64, "data.test_samples": 500, "train.batch_size": 32, "train.iterations": 3}


def train(pool: LocalPool, recipe: Recipe, strategy: str, checkpoint: str = "") -> list[dict[str, Any]]:
    arguments = {"recipe": recipe, "strategy": strategy, "checkpoint": checkpoint}
    return pool.run(Task(train_job, arguments, num_workers=recipe.workers, timeout_s=20.0), ignore_event)


@pytest.mark.parametrize("strategy", ["all-reduce", "ddp"])
def test_the_same_recipe_and_seed_give_the_same_bits(pool: LocalPool, strategy: str) -> None:
    recipe = Recipe().replace({**SMALL, "workers": 2})
    first, second = train(pool, recipe, strategy), train(pool, recipe, strategy)
    assert len({worker["parameter_digest"] for worker in first + second}) == 1
    assert [worker["loss"] for worker in first] == [worker["loss"] for worker in second]
    other = train(pool, recipe.replace({"seed": 1}), strategy)
    assert other[0]["parameter_digest"] != first[0]["parameter_digest"]


def test_what_a_worker_says_of_a_run(pool: LocalPool) -> None:
    changes = {"workers": 3, "train.batch_size": 25, "train.iterations": None, "train.epochs": 2, "train.eval_every": 1}
    recipe = Recipe().replace({**SMALL, **changes})
    workers = train(pool, recipe, "gather-scatter")
    for rank, worker in enumerate(workers):
        assert worker["rank"] == rank
        assert worker["steps_per_epoch"] == 3  # 25, 25 and 14 of 64 samples
        assert all(len(worker[key]) == 6 for key in ("iteration_s", "data_s", "loss", "num_samples", "num_right"))
        assert [row["step"] for row in worker["evaluations"]] == [3, 6]
        assert worker["evaluations"][-1]["accuracy"] == worker["test_accuracy"]
        assert worker["replica_drift"] == 0.0
        assert worker["num_parameters"] == 61_706
    assert [sum(worker["num_samples"]) for worker in workers] == [2 * (9 + 9 + 5), 2 * (8 + 8 + 5), 2 * (8 + 8 + 4)]
    # All traffic meets at rank 0: two tensors' worth for each of the others, per step.
    nbytes = 4 * 61_706 * 6
    assert [worker["sent_bytes"] for worker in workers] == [2 * nbytes, nbytes, nbytes]
    assert [worker["received_bytes"] for worker in workers] == [2 * nbytes, nbytes, nbytes]


def evaluate_toy(context: Context, strategy: str, kind: str, mode: str) -> list[Any]:
    recipe = toy_recipe(context.world_size, {"train.batchnorm": mode, "train.batch_size": 16, "train.epochs": 1})
    data = toy_data(samples=32, test_samples=1100)  # several batches of evaluation, the last one smaller
    trainer = Trainer(recipe, StrategySpec.parse(strategy).build(), data, context, toy_model(kind))
    trainer.run()
    score = trainer.evaluate()
    assert trainer.model.training
    return [score.loss, score.accuracy]


@pytest.mark.parametrize(("kind", "mode"), [("plain", "local"), ("normalised", "sync"), ("normalised", "off")])
def test_evaluation_shared_by_workers_equals_evaluation_by_one(kind: str, mode: str) -> None:
    if mode == "off":
        # Not synchronised: more workers train another model. Without training they are all the same one.
        arguments = {"strategy": "none", "kind": kind, "mode": mode}
        [alone], *_ = [on_threads(1, evaluate_untrained, **arguments)]
        everybody = on_threads(3, evaluate_untrained, **arguments)
    else:
        arguments = {"strategy": "all-reduce", "kind": kind, "mode": mode}
        [alone] = on_threads(1, evaluate_toy, **arguments)
        everybody = on_threads(3, evaluate_toy, **arguments)
    for loss, accuracy in everybody:
        assert [loss, accuracy] == everybody[0]
        assert loss == pytest.approx(alone[0], rel=1e-9)  # sums of float64 in another order, after a short training
        assert accuracy == alone[1]


def evaluate_untrained(context: Context, strategy: str, kind: str, mode: str) -> list[Any]:
    recipe = toy_recipe(context.world_size, {"train.batchnorm": mode})
    data = toy_data(test_samples=1100)
    score = Trainer(recipe, StrategySpec.parse(strategy).build(), data, context, toy_model(kind)).evaluate()
    return [score.loss, score.accuracy]


def test_replicas_that_differ_are_judged_one_by_one() -> None:
    workers = on_threads(2, evaluate_toy, strategy="none", kind="plain", mode="local")
    assert workers[0][0] != workers[1][0]


def test_weights_that_no_seed_decides_still_start_equal(pool: LocalPool) -> None:
    changes = {"model.name": f"{USER}:unseeded", "data.name": f"{USER}:data", "train.batch_size": 10}
    recipe = Recipe().replace({**changes, "train.iterations": 2, "workers": 3})
    workers = train(pool, recipe, "ring")
    assert len({worker["parameter_digest"] for worker in workers}) == 1
    assert {worker["replica_drift"] for worker in workers} == {0.0}
    again = train(pool, recipe, "ring")
    assert again[0]["parameter_digest"] != workers[0]["parameter_digest"]


@pytest.mark.parametrize("strategy", ["all-reduce", "none"])
@pytest.mark.parametrize("model", ["lenet5", f"{USER}:tied"], ids=["lenet5", "tied"])
def test_a_checkpoint_loads_into_the_model(pool: LocalPool, tmp_path: Path, strategy: str, model: str) -> None:
    changes = {"model.name": model, "data.name": "mnist-mini" if model == "lenet5" else f"{USER}:data"}
    recipe = Recipe().replace({**changes, "data.train_samples": 40, "train.batch_size": 20, "workers": 2})
    file = tmp_path / "final.safetensors"
    train(pool, recipe, strategy, str(file))
    assert [path.name for path in tmp_path.iterdir()] == ["final.safetensors"]
    data = load_data(recipe.data, seed=0)
    built = build_model(model, data)
    built.load_state_dict(load_file(file))  # every name, and no other
    with safe_open(file, framework="pt") as opened:
        assert opened.metadata() == {"model": model, "strategy": strategy}
    expected = on_threads(2, mean_model, recipe=recipe, strategy=strategy, models=starts(recipe))
    for name, value in built.state_dict().items():
        # The same arithmetic on the same numbers; gloo and threads add two numbers alike.
        assert torch.equal(value, expected[0][name]), name


def starts(recipe: Recipe) -> list[torch.nn.Module]:
    found = []
    for _ in range(2):
        torch.manual_seed(recipe.seed)
        found.append(build_model(recipe.model.name, load_data(recipe.data, seed=recipe.seed)))
    return found


def mean_model(context: Context, recipe: Recipe, strategy: str, models: list[torch.nn.Module]) -> Any:
    data = load_data(recipe.data, seed=recipe.seed)
    model = models[context.rank]
    trainer = Trainer(recipe, StrategySpec.parse(strategy).build(), data, context, model)
    trainer.run()
    return mean_state(trainer.model, context.comm)


def test_the_mean_model_is_the_mean() -> None:
    def mean_of(context: Context) -> Any:
        model = toy_model("normalised")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float(context.rank))
        model.norm.num_batches_tracked.fill_(context.rank + 5)
        return mean_state(model, context.comm)

    for state in on_threads(3, mean_of):
        assert all(torch.all(state[name] == 1.0) for name in ("conv.weight", "norm.bias", "linear.weight"))
    assert int(state["norm.num_batches_tracked"]) in (5, 6, 7)  # counts are not averaged


def test_a_checkpoint_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    recipe = Recipe().replace({**SMALL, "workers": 1})
    missing = tmp_path / "missing" / "final.safetensors"
    with (
        LocalPool(1) as launcher,
        pytest.raises(WorkerError, match=r"worker 0 stopped: .*checkpoint.* cannot be written"),
    ):
        train(launcher, recipe, "all-reduce", str(missing))
    assert list(tmp_path.iterdir()) == []


def forgets(context: Context, strategy: str) -> int:
    """How many parameters of a finished run are still in memory."""
    trainer = Trainer(
        toy_recipe(context.world_size), StrategySpec.parse(strategy).build(), toy_data(), context, toy_model("plain")
    )
    trainer.run()
    trainer.strategy.finish()
    context.comm.barrier()
    parameters = [weakref.ref(parameter) for parameter in trainer.model.parameters()]
    del trainer
    gc.collect()
    return sum(parameter() is not None for parameter in parameters)


@pytest.mark.parametrize("strategy", ["overlap:first_bucket_mb=1e-5:bucket_mb=1e-5", "sharded", "ring"])
def test_what_a_run_has_used_is_freed(strategy: str) -> None:
    assert on_threads(2, forgets, strategy=strategy) == [0, 0]
