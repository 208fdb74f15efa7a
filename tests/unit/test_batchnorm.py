"""BatchNorm with several workers: synchronised statistics, evaluation, and workers without samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jobs
from helpers import on_pool, on_threads
from paceline.comm.threads import ThreadsComm
from paceline.launch.local import LocalPool
from paceline.strategies import StrategySpec
from paceline.train.batchnorm import GlobalBatch, batchnorm_layers, prepare_batchnorm, synchronise_statistics
from paceline.train.context import Context
from paceline.train.trainer import Trainer
from toys import CLASSES, STEPS_PER_EPOCH, toy_data, toy_model, toy_recipe

# float64 rounds at 1e-16; one pass through two layers leaves a few times that.
ROUNDING = 1e-12
TRAINED = 1e-9  # six steps of training amplify it by much less than seven orders of magnitude


def a_pass(model: nn.Module, inputs: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Run forward and backward of the mean over samples of an asymmetric function."""
    inputs = inputs.clone().requires_grad_()
    output = model(inputs)
    loss = (output * weights).sum(1).square().mean()
    loss.backward()
    gradients = {f"gradient of {name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    buffers = {name: buffer.double().clone() for name, buffer in model.named_buffers()}
    return {"output": output.detach(), "input gradient": inputs.grad, **gradients, **buffers}


def a_share(context: Context, images: Tensor, weights: Tensor, counts: list[int]) -> dict[str, Tensor]:
    """Run a worker's share of `a_pass`, with its gradients weighted by its samples."""
    rank = context.rank
    batch = GlobalBatch(context.comm)
    share = counts[rank] / sum(counts)
    batch.gradient_share, batch.has_samples = share, counts[rank] > 0
    model = prepare_batchnorm(toy_model("normalised"), "sync", batch).train()
    start = sum(counts[:rank])
    # As in training: a worker without samples computes on another worker's, with weight 0.
    inputs = images[start : start + counts[rank]] if counts[rank] else images[:1].repeat(2, 1, 1, 1)
    found = a_pass(model, inputs, weights)
    for name in found:
        if name.startswith("gradient of") or name == "input gradient":
            found[name] = found[name] * share
    if not counts[rank]:
        found["output"], found["input gradient"] = found["output"][:0], found["input gradient"][:0]
    return found


@pytest.mark.parametrize("counts", [[7], [4, 3], [5, 1, 1], [3, 2, 1, 1], [2, 1, 0], [0, 4], [3, 0, 2, 0]], ids=str)
def test_sync_equals_one_process_on_the_global_batch(counts: list[int]) -> None:
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(sum(counts), 2, 6, 6, generator=generator, dtype=torch.float64) * 3 + 1
    weights = torch.randn(CLASSES, generator=generator, dtype=torch.float64)
    expected = a_pass(toy_model("normalised").train(), images, weights)
    workers = on_threads(len(counts), a_share, images=images, weights=weights, counts=counts)
    for name, value in expected.items():
        parts = [worker[name] for worker in workers]
        if name.startswith("gradient of"):
            torch.testing.assert_close(sum(parts), value, rtol=ROUNDING, atol=ROUNDING)
        elif name in ("output", "input gradient"):
            torch.testing.assert_close(torch.cat(parts), value, rtol=ROUNDING, atol=ROUNDING)
        else:
            for part in parts:
                torch.testing.assert_close(part, value, rtol=ROUNDING, atol=ROUNDING)


def test_sync_survives_a_large_mean() -> None:
    """Sums of squares would lose every digit here; means and deviations do not."""
    images = torch.randn(6, 2, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 1e7

    def forward(context: Context) -> Tensor:
        layer = prepare_batchnorm(nn.BatchNorm2d(2).double(), "sync", GlobalBatch(context.comm)).train()
        return layer(images[context.rank * 2 : context.rank * 2 + 2]).detach()

    whole = nn.BatchNorm2d(2).double().train()(images).detach()
    # A mean of 1e7 leaves nine digits of a deviation of 1.
    torch.testing.assert_close(torch.cat(on_threads(3, forward)), whole, rtol=0, atol=1e-7)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy", ["all-reduce", "ddp"])
def test_training_with_sync_equals_one_process(pool: LocalPool, strategy: str, world_size: int) -> None:
    arguments: dict[str, Any] = {"changes": {"train.batchnorm": "sync"}, "model": "normalised"}
    if strategy == "ddp":  # the one that scales the loss
        workers = on_pool(pool, world_size, jobs.certify, strategy=strategy, **arguments)
    else:
        workers = on_threads(world_size, jobs.certify, strategy=strategy, **arguments)
    [alone] = on_threads(1, jobs.certify, strategy="none", **arguments)
    for worker in workers:
        assert max(row["relative_error"] for row in worker["steps"]) <= TRAINED
        for name, values in alone["buffers"].items():
            assert worker["buffers"][name] == pytest.approx(values, rel=TRAINED), name
        # The traffic of statistics is counted in addition to that of the strategy.
        for row in worker["steps"]:
            extra = sum(row["counted"].values()) - sum(row["predicted"].values())
            assert extra > 0 if world_size > 1 else extra == 0


@pytest.mark.parametrize("mode", ["local", "rank0", "average", "off"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_parameters_are_exact_in_every_mode(mode: str, world_size: int) -> None:
    # Two steps of 8 samples: the third has a single one, on which BatchNorm1d cannot train.
    changes = {"train.batchnorm": mode, "train.batch_size": 8, "train.epochs": None, "train.iterations": 2}
    workers = on_threads(world_size, jobs.certify, strategy="ring", changes=changes, model="normalised")
    assert max(row["relative_error"] for worker in workers for row in worker["steps"]) <= TRAINED


def layers_with(values: list[float]) -> list[nn.Module]:
    models = []
    for value in values:
        model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm2d(1))
        for buffer in model.buffers():
            buffer.fill_(value)
        models.append(model.double())
    return models


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("local", lambda rank: [1.0, 2.0, 6.0][rank]),
        ("rank0", lambda rank: 1.0),  # noqa: ARG005
        ("average", lambda rank: 3.0),  # noqa: ARG005
        ("sync", lambda rank: [1.0, 2.0, 6.0][rank]),
    ],
)
def test_statistics_that_evaluation_reads(mode: str, expected: Callable[[int], float]) -> None:
    models = layers_with([1.0, 2.0, 6.0])

    def together(context: Context) -> Any:
        synchronise_statistics(models[context.rank], mode, context.comm, 1 / 3)
        return dict(context.comm.counter.nbytes)

    counted = on_threads(3, together)
    assert counted == [{}, {}, {}]
    for rank, model in enumerate(models):
        for name, buffer in model.named_buffers():
            if "running" in name:
                assert buffer.tolist() == pytest.approx([expected(rank)] * buffer.numel())


def test_off_keeps_no_statistics_and_judges_by_the_batch() -> None:
    batch = GlobalBatch(ThreadsComm.world(1)[0])
    model = prepare_batchnorm(toy_model("normalised"), "off", batch)
    assert not list(model.named_buffers())
    images = toy_data().train.batch(torch.arange(7), 0)[0]
    trained = model.train()(images)
    # Evaluation also uses the mean and deviation of the batch.
    assert torch.equal(model.eval()(images), trained)


def test_a_model_without_batchnorm_sends_nothing() -> None:
    model = toy_model("plain")
    assert batchnorm_layers(model) == []

    def together(context: Context) -> None:
        # Only one of two workers calls it; it would wait forever if anything were sent.
        if context.rank == 0:
            synchronise_statistics(model, "average", context.comm, 0.5)

    on_threads(2, together, timeout_s=2)


@pytest.mark.parametrize("mode", ["local", "sync"])
def test_a_worker_without_samples_does_not_disturb_statistics(mode: str) -> None:
    recipe = toy_recipe(4, {"train.batchnorm": mode, "train.epochs": 1, "train.batch_size": 8})
    seen: list[dict[int, dict[str, list[float]]]] = [{} for _ in range(4)]

    def train(context: Context) -> list[int]:
        data = toy_data(samples=19)  # batches of 8, 8 and 3 samples
        trainer = Trainer(recipe, StrategySpec.parse("all-reduce").build(), data, context, small_norm())

        def look(step: int) -> None:
            seen[context.rank][step] = {n: b.flatten().tolist() for n, b in trainer.model.named_buffers()}

        return trainer.run(look).num_samples

    num_samples = on_threads(4, train)
    assert [counts[-1] for counts in num_samples] == [1, 1, 1, 0]
    before, last = seen[3][STEPS_PER_EPOCH - 2], seen[3][STEPS_PER_EPOCH - 1]
    if mode == "local":
        assert last == before
        assert seen[0][STEPS_PER_EPOCH - 1] != seen[0][STEPS_PER_EPOCH - 2]
    else:
        # The statistics are those of the global batch, so this worker updates them like all others.
        assert last != before
        for rank in range(3):
            assert seen[rank][STEPS_PER_EPOCH - 1] == last


def small_norm() -> nn.Module:
    """Return a model with BatchNorm over images only, for which one sample is enough."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, CLASSES)).double()
