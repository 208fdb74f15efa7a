"""Every strategy in the registry against the oracle; a new strategy is tested without a change here."""

from __future__ import annotations

import pytest

import jobs
from certified import assert_exact, assert_traffic_as_predicted, certify
from helpers import build, exact_strategies, on_threads, on_threads_supported
from paceline.comm import comms
from paceline.comm.threads import ThreadsComm
from paceline.data import ShardPlan
from paceline.errors import UsageError
from paceline.launch.local import LocalPool
from paceline.strategies import Accumulating, Guarantee, available_strategies, strategies
from paceline.strategies.capabilities import micro_batches_of, servers_of
from paceline.study.entries import make_entry
from paceline.study.verify import cases, unsupported_strategies, verify
from toys import BATCH, SAMPLES, STEPS_PER_EPOCH, toy_data, toy_model, toy_recipe

OPTIMIZERS = {
    "sgd": {"optimizer.name": "sgd", "optimizer.lr": 0.05, "optimizer.momentum": 0.9},
    "adam": {"optimizer.name": "adam", "optimizer.lr": 0.01},
}
EXACT = exact_strategies()
ON_THREADS = [name for name in available_strategies() if on_threads_supported(name)]
ELSEWHERE = [name for name in available_strategies() if not on_threads_supported(name)]


# Strategies that use memory of the comm, which differs most between comms.
IN_LENT_MEMORY = ["overlap", "sharded"]
# Comms of less important tests: threads, or gloo if threads are unsupported; and shared memory if it is used.
PLACES = [(name, "") for name in EXACT] + [(name, "shm") for name in IN_LENT_MEMORY]
ACCUMULATING = [(name, comm) for name, comm in PLACES if issubclass(strategies.classes[name], Accumulating)]


@pytest.mark.pairwise
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("comm", list(comms.classes))
@pytest.mark.parametrize("strategy", EXACT)
def test_equals_the_oracle_after_every_step(
    pool: LocalPool, strategy: str, comm: str, world_size: int, optimizer: str
) -> None:
    reason = strategies.classes[strategy].unsupported(comms.classes[comm])
    if reason:
        assert reason == f"it needs a torch process group, which comm {comm!r} does not have"
        with pytest.raises(UsageError, match=reason):
            make_entry(strategy, toy_recipe(world_size, {"comm": comm}))
        return
    workers = certify(pool, strategy, world_size, comm, changes=OPTIMIZERS[optimizer])
    assert_exact(workers)
    assert_traffic_as_predicted(workers)
    sends = any(row["counted"] for worker in workers for row in worker["steps"])
    assert sends == (world_size > 1 or servers_of(build(strategy), world_size) > 0)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("name", [n for n in available_strategies() if build(n).guarantee is Guarantee.NONE])
def test_a_strategy_without_a_guarantee_differs_from_the_oracle(name: str, world_size: int) -> None:
    workers = on_threads(world_size, jobs.certify, strategy=name, changes={})
    last = [worker["steps"][-1] for worker in workers]
    assert all(row["relative_error"] > 1e-6 for row in last)
    assert len({row["digest"] for row in last}) == world_size
    assert_traffic_as_predicted(workers)


def test_every_strategy_has_a_description() -> None:
    assert {"all-reduce", "ring", "gather-scatter", "root-average", "ddp", "none"} <= set(strategies.classes)
    for name, cls in strategies.classes.items():
        assert (cls.__doc__ or "").strip(), f"{name} has no first line that says what goes over the wire"
        assert isinstance(build(name).guarantee, Guarantee)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_strategy_that_threads_do_not_support_says_why(name: str) -> None:
    reason = strategies.classes[name].unsupported(ThreadsComm)
    assert "threads" in reason
    if name == "ddp":
        assert reason == "it needs a torch process group, which comm 'threads' does not have"
    with pytest.raises(NotImplementedError, match="comm threads has no torch process group"):
        ThreadsComm.world(1)[0].process_group()


@pytest.mark.each_choice
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("strategy", list(available_strategies()))
def test_certificate_over_gloo(pool: LocalPool, strategy: str, world_size: int) -> None:
    [row] = verify(cases([strategy], [world_size], ["lenet5"]), pool, on_case=lambda _: None)
    assert row["meets_guarantee"], row
    assert row["bytes_as_predicted"]
    assert row["passed"] == (build(strategy).guarantee is not Guarantee.NONE)
    assert (row["first_divergence"] is None) == row["passed"]


@pytest.mark.each_choice
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("strategy", ["all-reduce", "overlap", "ring", "sharded"])
def test_certificate_in_shared_memory(pool: LocalPool, strategy: str, world_size: int) -> None:
    todo = cases([strategy], [world_size], ["lenet5"], comm="shm")
    [row] = verify(todo, pool, comm="shm", on_case=lambda _: None)
    assert row["passed"], row
    assert row["meets_guarantee"]
    assert row["comm"] == "shm"


def test_without_names_a_certificate_covers_all_supported_strategies() -> None:
    for comm in ("torch", "shm"):
        named = {case.strategy for case in cases([], [2], ["lenet5"], comm=comm)}
        assert named | set(unsupported_strategies(comm)) == set(available_strategies())
        assert not named & set(unsupported_strategies(comm))


@pytest.mark.parametrize("options", ["bucket_mb=0.001", "static_graph=true", "gradient_as_view=false"])
def test_options_of_ddp_leave_it_exact(pool: LocalPool, options: str) -> None:
    workers = certify(pool, f"ddp:{options}", 3, changes={})
    assert_exact(workers)
    assert_traffic_as_predicted(workers)


@pytest.mark.each_choice
@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize(("strategy", "comm"), PLACES)
def test_micro_batches_equal_whole_batches(pool: LocalPool, strategy: str, comm: str, world_size: int) -> None:
    # The oracle computes whole batches, whatever the recipe says.
    workers = certify(pool, strategy, world_size, comm, changes={"train.micro_batch_size": 2})
    assert_exact(workers)
    assert_traffic_as_predicted(workers)


@pytest.mark.each_choice
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(("strategy", "comm"), ACCUMULATING)
def test_accumulated_gradients_equal_those_of_whole_batches(
    pool: LocalPool, strategy: str, comm: str, world_size: int
) -> None:
    # Shards of 7 samples in 3 uneven micro-batches, some of a single sample. The traffic stays the same.
    assert micro_batches_of(build(f"{strategy}:accumulate=3")) == 3
    workers = certify(pool, f"{strategy}:accumulate=3", world_size, comm, changes={})
    assert_exact(workers)
    assert_traffic_as_predicted(workers)


@pytest.mark.each_choice
@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize(("strategy", "comm"), PLACES)
def test_channels_last(pool: LocalPool, strategy: str, comm: str, world_size: int) -> None:
    assert_exact(certify(pool, strategy, world_size, comm, changes={"train.channels_last": True}))


@pytest.mark.parametrize(("strategy", "comm"), PLACES)
def test_frozen_parameters_stay_and_are_not_sent(pool: LocalPool, strategy: str, comm: str) -> None:
    workers = certify(pool, strategy, 2, comm, changes={}, model="frozen")
    assert_exact(workers)
    assert_traffic_as_predicted(workers)
    start = toy_model("frozen").conv.weight.flatten().tolist()
    assert all(worker["parameters"]["conv.weight"] == start for worker in workers)


def test_the_toy_reaches_its_extra_layer_on_some_workers_only() -> None:
    data, model = toy_data().train, toy_model("sometimes")
    for world_size in (2, 4):
        plan = ShardPlan(SAMPLES, BATCH, world_size, seed=0)
        mixed = 0
        for step in range(STEPS_PER_EPOCH):
            reached = set()
            for rank in range(world_size):
                if plan.counts(step)[rank]:
                    model.zero_grad()
                    model(data.batch(plan.shard(0, step, rank), 0)[0]).sum().backward()
                    reached.add(model.extra.weight.grad is not None)
            mixed += reached == {True, False}
        assert mixed


@pytest.mark.each_choice
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize(("strategy", "comm"), PLACES)
def test_a_parameter_without_gradient_on_some_worker(
    pool: LocalPool, strategy: str, comm: str, world_size: int
) -> None:
    # Weight decay and momentum distinguish zeros from None, so the choice must not depend on the number of workers.
    name = "ddp:find_unused=true" if strategy == "ddp" else strategy
    workers = certify(pool, name, world_size, comm, changes={"optimizer.weight_decay": 0.01}, model="sometimes")
    assert_exact(workers)
    assert_traffic_as_predicted(workers)
