"""Sharding: an epoch has every sample once, and global batches do not depend on the number of workers."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.data import ShardPlan, epoch_generator, make_plan
from paceline.data.base import Selected, Tensors
from paceline.errors import UsageError
from properties import examples

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


@examples(60)
@given(plans, epochs)
def test_an_epoch_is_every_sample_exactly_once(plan: ShardPlan, epoch: int) -> None:
    taken = torch.cat([shard for step in range(plan.steps_per_epoch) for shard in shards(plan, epoch, step)])
    assert sorted(taken.tolist()) == list(range(plan.num_samples))


@examples(60)
@given(plans, epochs)
def test_counts_are_the_sizes_of_the_shards_and_as_even_as_they_can_be(plan: ShardPlan, epoch: int) -> None:
    for step in range(plan.steps_per_epoch):
        counts = plan.counts(step)
        assert counts == [len(shard) for shard in shards(plan, epoch, step)]
        assert sum(counts) == min(plan.batch_size, plan.num_samples - step * plan.batch_size)
        assert max(counts) - min(counts) <= 1
        assert counts == sorted(counts, reverse=True)


@examples(60)
@given(plans, epochs)
def test_the_global_batch_does_not_depend_on_the_number_of_workers(plan: ShardPlan, epoch: int) -> None:
    alone = ShardPlan(plan.num_samples, plan.batch_size, 1, plan.seed)
    for step in range(plan.steps_per_epoch):
        assert torch.equal(torch.cat(shards(plan, epoch, step)), alone.shard(epoch, step, 0))


@examples(60)
@given(plans, epochs)
def test_sorted_shards_are_disjoint_cover_and_count_as_ever(plan: ShardPlan, epoch: int) -> None:
    labels = torch.arange(plan.num_samples) % 5
    ordered = ShardPlan(plan.num_samples, plan.batch_size, plan.num_workers, plan.seed, labels.argsort(stable=True))
    steps = range(plan.steps_per_epoch)
    taken = [torch.cat([ordered.shard(epoch, step, rank) for step in steps]) for rank in range(plan.num_workers)]
    assert sorted(torch.cat(taken).tolist()) == list(range(plan.num_samples))
    for step in steps:
        assert [len(shard) for shard in shards(ordered, epoch, step)] == plan.counts(step)
    # Contiguous parts of the order: no worker has a label below its left neighbour's.
    seen = [labels[own] for own in taken if len(own)]
    assert all(int(left.max()) <= int(right.min()) for left, right in pairwise(seen))
    # The same samples in every epoch.
    again = [torch.cat([ordered.shard(epoch + 1, step, rank) for step in steps]) for rank in range(plan.num_workers)]
    assert [set(own.tolist()) for own in again] == [set(own.tolist()) for own in taken]


def test_sorted_shards_are_reshuffled_within_themselves() -> None:
    data = Tensors(torch.zeros(400), torch.arange(400) % 4)
    plan = make_plan(data, batch_size=40, num_workers=4, seed=3, order="sorted")
    firsts = [torch.cat([plan.shard(epoch, step, 1) for step in range(10)]) for epoch in range(2)]
    assert not torch.equal(*firsts)
    assert set((firsts[0] % 4).tolist()) == {1}
    assert torch.equal(firsts[0], torch.cat([plan.shard(0, step, 1) for step in range(10)]))


def test_sorting_needs_labels() -> None:
    regression = Tensors(torch.zeros(8, 2), torch.zeros(8))
    assert make_plan(regression, batch_size=4, num_workers=2, seed=0).order is None
    with pytest.raises(UsageError, match="needs the label of every sample"):
        make_plan(regression, batch_size=4, num_workers=2, seed=0, order="sorted")
    classes = Selected(Tensors(torch.zeros(8, 2), torch.arange(8) % 3), torch.arange(5))
    assert classes.labels() is not None
    assert classes.labels().tolist() == [0, 1, 2, 0, 1]
    order = make_plan(classes, batch_size=4, num_workers=2, seed=0, order="sorted").order
    assert order is not None
    assert order.tolist() == [0, 3, 1, 4, 2]


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
