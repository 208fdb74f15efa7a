"""Strategies that keep gradients and parameters in memory of the comm (overlap and sharded), on every comm."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jobs
from certified import TOLERANCE, assert_exact, assert_traffic_as_predicted, certify
from helpers import build, on_pool, on_shm_threads, on_threads
from jobs import Slopes, slopes_of
from paceline.comm import comms, shm, shm_reduction
from paceline.launch.local import LocalPool
from paceline.strategies import Worker
from paceline.train.context import Context
from paceline.train.trainer import Trainer
from toys import toy_data, toy_model, toy_recipe

COMMS = list(comms.classes)
STRATEGIES = ["overlap", "sharded"]
# float32 rounds at 6e-8; six small steps with momentum amplify that by less than two orders of magnitude.
MIXED_TOLERANCE = 1e-5


@pytest.mark.pairwise
@pytest.mark.parametrize("comm", COMMS)
@pytest.mark.parametrize(
    "strategy",
    [
        "overlap:accumulate=2",
        "overlap:bucket_mb=0.0001:first_bucket_mb=0.0001",  # one bucket per tensor
        "overlap:bucket_mb=0.0001:accumulate=3",
        "sharded:bucket_mb=0.0001:first_bucket_mb=0.0001",
    ],
)
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_options_leave_it_exact(pool: LocalPool, strategy: str, comm: str, world_size: int) -> None:
    # 7 samples over 2, 3 and 4 workers: uneven shards, and one worker without any in the third step of four.
    workers = certify(pool, strategy, world_size, comm, changes={})
    assert_exact(workers)
    assert_traffic_as_predicted(workers)


@pytest.mark.each_choice
@pytest.mark.parametrize("comm", COMMS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_optimiser_that_writes_to_gradients(pool: LocalPool, strategy: str, comm: str) -> None:
    changes = {"optimizer.nesterov": True, "optimizer.weight_decay": 0.01}
    workers = certify(pool, strategy, 3, comm, changes=changes)
    assert_exact(workers)


@pytest.mark.each_choice
@pytest.mark.parametrize("comm", COMMS)
@pytest.mark.parametrize("strategy", [*STRATEGIES, "overlap:bucket_mb=0.0001:first_bucket_mb=0.0001"])
def test_two_number_types(pool: LocalPool, strategy: str, comm: str) -> None:
    assert {p.dtype for p in toy_model("mixed").parameters()} == {torch.float32, torch.float64}
    workers = certify(pool, strategy, 3, comm, changes={"train.precision": "fp32"}, model="mixed")
    assert_exact(workers, MIXED_TOLERANCE)
    assert_traffic_as_predicted(workers)
    assert MIXED_TOLERANCE > TOLERANCE


def make_trainer(context: Context, strategy: str, changes: dict[str, Any]) -> Trainer:
    recipe = toy_recipe(context.world_size, changes)
    return Trainer(recipe, build(strategy), toy_data(), context, toy_model("plain"))


def lies_in_shared_sums(context: Context, changes: dict[str, Any]) -> bool:
    """Return whether gradients after a step are in memory that all workers read."""
    trainer: Any = make_trainer(context, "overlap", changes)
    [reduction] = trainer.strategy._buckets.reductions.values()
    return reduction.result is not reduction.own


@pytest.mark.parametrize(
    ("changes", "is_shared"),
    [({}, True), ({"optimizer.name": "adam", "optimizer.momentum": 0.0}, True), ({"optimizer.nesterov": True}, False)],
)
def test_sums_are_read_in_place_only_if_nothing_writes_to_them(changes: dict[str, Any], is_shared: bool) -> None:
    assert on_shm_threads(2, lies_in_shared_sums, changes=changes) == [is_shared] * 2


def mark_parameters(context: Context) -> tuple[list[float], list[float]]:
    """Write to rank 0's parameters before and after `finish`; return what this worker has then."""
    trainer = make_trainer(context, "sharded", {})
    trainer.run()
    seen = []
    for mark in (42.0, 43.0):
        context.comm.barrier()
        if context.rank == 0:
            for parameter in trainer.model.parameters():
                parameter.data.view(-1)[0] = mark
        context.comm.barrier()
        seen.append([float(parameter.detach().view(-1)[0]) for parameter in trainer.model.parameters()])
        context.comm.barrier()
        if mark == 42.0:
            trainer.strategy.finish()
    return seen[0], seen[1]


@pytest.mark.parametrize("comm", ["shm", "torch"])
def test_sharded_parameters_share_memory_if_the_comm_can(pool: LocalPool, comm: str) -> None:
    first, *others = on_pool(pool, 3, mark_parameters, comm=comm)
    assert first == ([42.0] * 4, [43.0] * 4)
    for during, after in others:
        assert (during == [42.0] * 4) == (comm == "shm")
        assert after == during


def count_state(context: Context, strategy: str) -> tuple[int, int]:
    """Return the number of elements in this worker's optimiser state and in the parameters."""
    trainer: Any = make_trainer(context, strategy, {"optimizer.name": "adam", "optimizer.momentum": 0.0})
    trainer.run()
    optimizer = trainer.strategy._optimizer if strategy == "sharded" else trainer.worker.optimizer
    state = sum(value.numel() for values in optimizer.state.values() for value in values.values() if value.dim())
    return state, sum(parameter.numel() for parameter in trainer.model.parameters())


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_sharded_divides_the_optimisers_state(world_size: int) -> None:
    counts = on_shm_threads(world_size, count_state, strategy="sharded")
    total = counts[0][1]
    # Adam keeps two numbers per parameter; each is kept by one worker only.
    assert sum(state for state, _ in counts) == 2 * total
    assert max(state for state, _ in counts) <= 2 * -(-total // world_size)
    assert on_shm_threads(2, count_state, strategy="overlap")[0] == (2 * total, total)


def step_with_slopes(context: Context, steps: list[int], start: Any, state: Any) -> Any:
    """Return the parameters after steps with known gradients, and the state of the strategy."""
    strategy, model = build("sharded:bucket_mb=0.001:first_bucket_mb=0.001"), Slopes()
    if start is not None:
        model.load_state_dict(start)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    worker = Worker(comm=context.comm, codec=strategy.codec, model=model, optimizer=optimizer)
    strategy.setup(worker)
    if state is not None:
        strategy.load_state_dict(state[context.rank])
    worker.weight = [0.2, 0.3, 0.5][context.rank]
    for step in steps:
        optimizer.zero_grad()
        worker.replica(slopes_of(context.rank, step)).backward()
        strategy.after_backward()
        strategy.step()
        strategy.after_step()
    strategy.finish()
    kept = {name: tensor.clone() for name, tensor in strategy.state_dict().items()}
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, kept


@pytest.mark.parametrize("run", [on_shm_threads, on_threads])
def test_sharded_resumes_bit_for_bit(run: Any) -> None:
    whole = run(3, step_with_slopes, steps=[0, 1, 2, 3], start=None, state=None)
    first = run(3, step_with_slopes, steps=[0, 1], start=None, state=None)
    states = [kept for _, kept in first]
    assert all(states)
    rest = run(3, step_with_slopes, steps=[2, 3], start=first[0][0], state=states)
    forgetful = run(3, step_with_slopes, steps=[2, 3], start=first[0][0], state=None)
    for rank in range(3):
        for (name, expected), got in zip(whole[rank][0].items(), rest[rank][0].values(), strict=True):
            assert torch.equal(got, expected), (rank, name)
        assert whole[rank][1].keys() == rest[rank][1].keys()
        assert all(torch.equal(whole[rank][1][key], rest[rank][1][key]) for key in whole[rank][1])
        assert not torch.equal(forgetful[rank][0]["weights.0"], whole[rank][0]["weights.0"])


@pytest.mark.parametrize("shared", [True, False])
def test_training_with_helper_threads(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    monkeypatch.setattr(shm, "spare_cores", lambda num_workers: 2)  # noqa: ARG005
    monkeypatch.setattr(shm_reduction, "HELPER_BYTES", 1)
    monkeypatch.setattr(shm_reduction, "BLOCK_BYTES", 64)
    changes = {} if shared else {"optimizer.nesterov": True}
    for strategy in ("overlap:bucket_mb=0.001:first_bucket_mb=0.0001", "sharded"):
        workers = on_shm_threads(3, jobs.certify, strategy=strategy, changes=changes)
        assert_exact(workers)
        assert_traffic_as_predicted(workers)
