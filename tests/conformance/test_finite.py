"""Losses and gradients that are not finite: every strategy stops or skips in the same step, and names the worker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import on_threads, on_threads_supported
from paceline.data import Data
from paceline.data.base import Tensors
from paceline.errors import DivergedError
from paceline.strategies import Guarantee, Strategy, StrategySpec, available_strategies
from paceline.strategies.base import gradient_of
from paceline.train.context import Context
from paceline.train.finite import all_finite, last_nonfinite
from paceline.train.replicas import parameter_digest
from paceline.train.trainer import Trainer
from toys import Plain, toy_data, toy_model, toy_recipe

BAD_STEP, BAD_RANK = 1, 1
AVERAGED = ["all-reduce", "overlap", "ring+fp16", "overlap+topk"]
OWN = [
    "none",
    "stepwise",
    "stepwise:correct=delayed",
    "local-sgd",
    "ring:average=weights",
    "parameter-server:average=weights",
    "gossip",
]
QUICK = ["overlap", "sharded", "parameter-server:servers=2", "local-sgd", "ring+powersgd"]
AT_THEIR_OWN_PACE = ["parameter-server:mode=async:servers=2", "parameter-server:mode=bounded:max_staleness=0"]


def all_strategies() -> list[str]:
    names = [name for name in available_strategies() if on_threads_supported(name)]
    return list(dict.fromkeys([*names, *AVERAGED, *OWN, *QUICK, "sharded+fp16", "overlap:bucket_mb=0.0001"]))


def bad_sample(context: Context, data: Data, *, rank: int = BAD_RANK) -> int:
    """Return the index of a sample that worker `rank` gets in step BAD_STEP of the first epoch."""
    recipe = toy_recipe(context.world_size)
    built = StrategySpec.parse("none").build()
    return int(Trainer(recipe, built, data, context, toy_model("plain")).plan.shard(0, BAD_STEP, rank)[0])


class Rooted(Plain):
    """A model whose loss is finite for an image of zeros, but not the gradient of `conv`: a root has no slope at 0."""

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(torch.tanh(F.conv2d(images, self.conv.weight).abs().sqrt()).flatten(1))


def train(
    context: Context, strategy: str, mode: str, kind: str = "plain", value: float = float("inf"), **changes: Any
) -> dict[str, Any]:
    """Train a toy with one bad image: all its elements are `value`. Return what the worker found."""
    events: list[dict[str, Any]] = []
    context = Context(context.comm, servers=context.servers, emit=events.append)
    data = toy_data()
    images = data.train.inputs.clone()  # type: ignore[attr-defined]
    images[bad_sample(context, data)] = value
    data = Data(Tensors(images, data.train.labels()), data.test, data.shape, data.num_classes)
    recipe = toy_recipe(context.world_size, {"train.on_nonfinite": mode, "train.epochs": 1, **changes})
    model = toy_model("plain" if kind == "rooted" else kind)
    if kind == "rooted":
        model.__class__ = Rooted
    trainer = Trainer(recipe, StrategySpec.parse(strategy).build(), data, context, model)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    digests = []

    def on_step(step: int) -> None:  # noqa: ARG001
        digests.append(parameter_digest(trainer.model))

    try:
        history = trainer.run(on_step)
        trainer.strategy.finish()
    except DivergedError as raised:
        if context.rank != BAD_RANK:
            raise
        return {"error": str(raised)}
    return {
        "steps": len(history.loss),
        "reason": trainer.finite.reason,
        "skipped": trainer.finite.skipped_steps,
        "digests": digests,
        "digest": parameter_digest(trainer.model),
        "is_finite": all(bool(p.isfinite().all()) for p in trainer.model.state_dict().values()),
        "has_moved": any(not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True)),
        "texts": [event["text"] for event in events],
    }


def marked(strategies: list[str]) -> list[Any]:
    return [
        strategy if strategy in QUICK else pytest.param(strategy, marks=pytest.mark.slow) for strategy in strategies
    ]


@pytest.mark.parametrize("strategy", marked([s for s in all_strategies() if s not in OWN]))
@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_all_workers_stop_after_the_same_step_and_name_the_worker(strategy: str, world_size: int) -> None:
    workers = on_threads(world_size, train, strategy=strategy, mode="stop")
    assert [worker["steps"] for worker in workers] == [BAD_STEP + 1] * world_size
    (reason,) = {worker["reason"] for worker in workers}
    assert reason == "worker 1: the loss is nan in step 1; use a smaller --lr, or --on-nonfinite skip"
    assert all(worker["is_finite"] and worker["has_moved"] for worker in workers)
    assert len({worker["digest"] for worker in workers}) == 1


@pytest.mark.parametrize("strategy", marked(all_strategies()))
@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_skipped_step_changes_no_replica(strategy: str, world_size: int) -> None:
    workers = on_threads(world_size, train, strategy=strategy, mode="skip")
    is_own = strategy in OWN
    assert [worker["steps"] for worker in workers] == [3] * world_size
    assert [worker["skipped"] for worker in workers] == [
        [BAD_STEP] if not is_own or rank == BAD_RANK else [] for rank in range(world_size)
    ]
    assert all(worker["is_finite"] for worker in workers)
    if strategy != "none":
        assert len({worker["digest"] for worker in workers}) == 1
    if not is_own:
        assert workers[0]["digests"][BAD_STEP] == workers[0]["digests"][BAD_STEP - 1]
        assert workers[0]["digests"][BAD_STEP + 1] != workers[0]["digests"][BAD_STEP]
    texts = [text for worker in workers for text in worker["texts"]]
    assert texts == ["worker 1: the loss is nan in step 1; the update is skipped"]


@pytest.mark.parametrize("strategy", marked(OWN))
def test_a_worker_with_a_replica_of_its_own_ends_the_run(strategy: str) -> None:
    with pytest.raises(DivergedError, match=r"^worker 1: the loss is nan in step 1; use a smaller --lr, or"):
        on_threads(2, train_or_raise, strategy=strategy)


def train_or_raise(context: Context, strategy: str) -> None:
    worker = train(context, strategy, "stop")
    if "error" in worker:
        raise DivergedError(worker["error"])


@pytest.mark.parametrize("strategy", ["overlap", "sharded", "parameter-server", "ring"])
@pytest.mark.parametrize("mode", ["stop", "skip"])
def test_the_gradient_and_the_loss_are_named_if_only_a_gradient_is_not_finite(strategy: str, mode: str) -> None:
    workers = on_threads(3, train, strategy=strategy, mode=mode, kind="rooted", value=0.0)
    text = workers[0]["reason"] if mode == "stop" else workers[0]["texts"][0]
    assert re.match(r"worker 1: the gradient of conv\.weight is not finite in step 1 \(loss \d+\.\d+\); ", text), text
    assert len({worker["digest"] for worker in workers}) == 1


@pytest.mark.parametrize("mode", ["stop", "skip"])
@pytest.mark.parametrize("batchnorm", ["local", "sync"])
def test_running_statistics_do_not_keep_values_that_are_not_finite(mode: str, batchnorm: str) -> None:
    changes = {"train.batchnorm": batchnorm, "train.iterations": 2}
    workers = on_threads(2, train, strategy="all-reduce", mode=mode, kind="normalised", **changes)
    assert all(worker["is_finite"] for worker in workers)
    named = "all 2 workers" if batchnorm == "sync" else "worker 1"  # in the mode sync, all workers see the batch's mean
    text = workers[0]["reason"] or workers[0]["texts"][0]
    assert text.startswith(f"{named}: the loss is nan in step 1; ")


def test_micro_batches_are_checked_together() -> None:
    workers = on_threads(2, train, strategy="overlap", mode="skip", **{"train.micro_batch_size": 2})
    assert [worker["skipped"] for worker in workers] == [[BAD_STEP]] * 2


def test_continue_applies_the_update_as_before() -> None:
    workers = on_threads(2, train, strategy="all-reduce", mode="continue")
    assert [(worker["steps"], worker["is_finite"], worker["reason"]) for worker in workers] == [(3, False, "")] * 2


@pytest.mark.parametrize("strategy", AT_THEIR_OWN_PACE)
@pytest.mark.parametrize("mode", ["stop", "skip"])
def test_an_asynchronous_worker_withholds_its_gradient(strategy: str, mode: str) -> None:
    changes = {"train.epochs": 30 if mode == "stop" else 1}
    workers = on_threads(3, train, strategy=strategy, mode=mode, **changes)
    assert all(worker["is_finite"] for worker in workers)
    if mode == "skip":
        assert [worker["skipped"] for worker in workers] == [[], [BAD_STEP], []]
        return
    assert [bool(worker["reason"]) for worker in workers] == [False, True, False]
    assert workers[1]["steps"] == BAD_STEP + 1
    assert all(worker["steps"] < 90 for worker in workers)


@dataclass(kw_only=True)
class InStep(Strategy):
    """All gradients are averaged in `step`: a strategy that does not state what gradients are before."""

    name: ClassVar[str] = "in-step"

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACT

    def step(self) -> None:
        for parameter in self.worker.parameters:
            gradient = gradient_of(parameter)
            gradient.mul_(self.worker.weight)
            self.worker.comm.all_reduce(gradient)
        super().step()

    def traffic(self, tensors: Any, rank: int, world_size: int, step: int) -> list[Any]:  # noqa: ARG002
        return []


def test_workers_of_a_strategy_that_states_nothing_agree_before_they_skip() -> None:
    workers = on_threads(3, train, strategy=f"{__file__}:InStep", mode="skip")
    assert [worker["skipped"] for worker in workers] == [[BAD_STEP]] * 3
    assert all(worker["is_finite"] for worker in workers)
    assert len({worker["digest"] for worker in workers}) == 1


def test_large_values_are_finite() -> None:
    large = [torch.full((5,), 3e38), torch.zeros(2, dtype=torch.float64)]
    assert all_finite(large)
    assert all_finite([])
    for value in (float("nan"), float("inf"), -float("inf")):
        bad = [*large, torch.tensor([1.0, value])]
        assert not all_finite(bad)
        assert last_nonfinite([None, *bad]) == 3
