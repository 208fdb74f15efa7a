"""`average=weights`: each worker steps by itself before weights are averaged; compared with an oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import build, on_threads
from paceline.comm import Counter
from paceline.data import Data, ShardPlan
from paceline.recipe import Recipe
from paceline.strategies import Guarantee, StrategySpec, strategies
from paceline.train.context import Context
from paceline.train.optimizers import build_optimizer, learning_rate
from paceline.train.replicas import parameter_digest
from paceline.train.step import Arithmetic, build_objective, forward_backward
from paceline.train.trainer import Trainer
from toys import toy_data, toy_model, toy_recipe

# float64 rounds at 1e-16; six steps of training amplify that by much less than seven orders of magnitude.
TOLERANCE = 1e-9
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer.name": "sgd", "optimizer.lr": 0.05, "optimizer.momentum": 0.9, "schedule.name": "cosine"},
    "adam": {"optimizer.name": "adam", "optimizer.lr": 0.01},
    "lars": {"optimizer.name": "lars", "optimizer.lr": 2.0, "optimizer.momentum": 0.9},
}
NAMES = [name for name, cls in strategies.classes.items() if "average" in cls.option_fields()]


def weights_oracle(recipe: Recipe, data: Data, num_workers: int) -> Iterator[dict[str, Tensor]]:
    """Return the weights after every step if each worker has its own optimiser and weights are then averaged."""
    models = [toy_model("plain") for _ in range(num_workers)]
    optimizers = [build_optimizer(recipe.optimizer, model.parameters()) for model in models]
    plan = ShardPlan(len(data.train), recipe.batch_size, num_workers, recipe.seed)
    total_steps = recipe.num_steps(len(data.train))
    for step in range(total_steps):
        epoch, index = divmod(step, plan.steps_per_epoch)
        counts = plan.counts(index)
        rate = learning_rate(step, recipe, steps_per_epoch=plan.steps_per_epoch, total_steps=total_steps)
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            if counts[rank]:
                batch = data.train.batch(plan.shard(epoch, index, rank), epoch)
                objective = build_objective(recipe.train.loss)
                forward_backward(model, *batch, objective=objective, arithmetic=Arithmetic("fp64"))
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
        with torch.no_grad():
            for replicas in zip(*(model.parameters() for model in models), strict=True):
                mean = sum(count / sum(counts) * replica for count, replica in zip(counts, replicas, strict=True))
                for replica in replicas:
                    replica.copy_(mean)
        yield {name: parameter.detach().clone() for name, parameter in models[0].named_parameters()}


def follow(context: Context, strategy: str, changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Train a toy; return the weights and sent bytes of a worker after every step."""
    recipe, comm = toy_recipe(context.world_size, changes), context.comm
    trainer = Trainer(recipe, StrategySpec.parse(strategy).build(), toy_data(), context, toy_model("plain"))
    comm.counter.clear()
    steps: list[dict[str, Any]] = []

    def look(step: int) -> None:
        operations = trainer.strategy.traffic(trainer.worker.specs, comm.rank, comm.world_size, step)
        steps.append(
            {
                "parameters": {name: p.detach().clone() for name, p in trainer.model.named_parameters()},
                "digest": parameter_digest(trainer.model),
                "counted": dict(comm.counter.nbytes),
                "predicted": dict(Counter.of(operations).nbytes),
            }
        )
        comm.counter.clear()

    trainer.run(look)
    trainer.strategy.finish()
    return steps


def distance(parameters: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    off = sum(float((parameters[name] - expected[name]).square().sum()) for name in expected)
    return float((off / sum(float(tensor.square().sum()) for tensor in expected.values())) ** 0.5)


def test_strategies_with_the_option() -> None:
    assert {"ring", "ring-reduce"} <= set(NAMES)
    for name in NAMES:
        assert build(name).guarantee is Guarantee.EXACT
        assert build(f"{name}:average=weights").guarantee is Guarantee.PERIODIC


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_weights_equal_the_oracle(name: str, world_size: int, optimizer: str) -> None:
    changes = OPTIMIZERS[optimizer]
    expected = list(weights_oracle(toy_recipe(world_size, changes), toy_data(), world_size))
    workers = on_threads(world_size, follow, strategy=f"{name}:average=weights", changes=changes)
    for steps in workers:
        assert len(steps) == len(expected) > 0
        for step, row in enumerate(steps):
            assert distance(row["parameters"], expected[step]) <= TOLERANCE
            assert row["digest"] == workers[0][step]["digest"]
            assert row["counted"] == row["predicted"]


@pytest.mark.parametrize("name", NAMES)
def test_weights_send_as_much_as_gradients_but_differ(name: str) -> None:
    changes = OPTIMIZERS["adam"]
    gradients = on_threads(3, follow, strategy=name, changes=changes)[0]
    weights = on_threads(3, follow, strategy=f"{name}:average=weights", changes=changes)[0]
    assert [row["counted"] for row in weights] == [row["counted"] for row in gradients]
    assert distance(weights[-1]["parameters"], gradients[-1]["parameters"]) > 1e-6
