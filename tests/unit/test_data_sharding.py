"""Whatever the number of workers, an epoch is every sample once and a global batch is the same samples."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data import ShardPlan, epoch_generator

plans = st.builds(
    ShardPlan,
    num_samples=st.integers(1, 120),
    batch_size=st.integers(1, 50),
    num_workers=st.integers(1, 7),
    seed=st.integers(0, 2**31),
)
epochs = st.integers(0, 1000)


def shards(plan: ShardPlan, epoch: int, step: int) -> list[torch.Tensor]:
    return [plan.shard(epoch, step, rank) for rank in range(plan.num_workers)]


@settings(max_examples=60, deadline=None)
@given(plans, epochs)
def test_an_epoch_is_every_sample_exactly_once(plan: ShardPlan, epoch: int) -> None:
    taken = torch.cat([shard for step in range(plan.steps_per_epoch) for shard in shards(plan, epoch, step)])
    assert sorted(taken.tolist()) == list(range(plan.num_samples))


@settings(max_examples=60, deadline=None)
@given(plans, epochs)
def test_counts_are_the_sizes_of_the_shards_and_as_even_as_they_can_be(plan: ShardPlan, epoch: int) -> None:
    for step in range(plan.steps_per_epoch):
        counts = plan.counts(step)
        assert counts == [len(shard) for shard in shards(plan, epoch, step)]
        assert sum(counts) == min(plan.batch_size, plan.num_samples - step * plan.batch_size)
        assert max(counts) - min(counts) <= 1
        assert counts == sorted(counts, reverse=True)


@settings(max_examples=60, deadline=None)
@given(plans, epochs)
def test_the_global_batch_does_not_depend_on_the_number_of_workers(plan: ShardPlan, epoch: int) -> None:
    alone = ShardPlan(plan.num_samples, plan.batch_size, 1, plan.seed)
    for step in range(plan.steps_per_epoch):
        assert torch.equal(torch.cat(shards(plan, epoch, step)), alone.shard(epoch, step, 0))


def test_samples_are_reshuffled_every_epoch_and_repeat_with_the_seed() -> None:
    plan = ShardPlan(num_samples=1000, batch_size=1000, num_workers=1, seed=3)
    orders = [plan.shard(epoch, 0, 0) for epoch in range(3)]
    assert not torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[1], orders[2])
    assert not torch.equal(orders[0], torch.arange(1000))
    assert torch.equal(orders[1], ShardPlan(1000, 1000, 1, seed=3).shard(1, 0, 0))
    assert not torch.equal(orders[0], ShardPlan(1000, 1000, 1, seed=4).shard(0, 0, 0))


def test_a_last_batch_smaller_than_the_workers_leaves_some_without_samples() -> None:
    plan = ShardPlan(num_samples=10, batch_size=8, num_workers=4, seed=0)
    assert plan.steps_per_epoch == 2
    assert plan.counts(0) == [2, 2, 2, 2]
    assert plan.counts(1) == [1, 1, 0, 0]


def test_generators_differ_by_seed_and_by_epoch() -> None:
    seeds = {epoch_generator(seed, epoch).initial_seed() for seed in range(20) for epoch in range(20)}
    assert len(seeds) == 400
