"""paceline.shard: disjoint, seeded, epoch-aware parts of a DataLoader, as many batches on every worker."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, WeightedRandomSampler

import library_cases
import paceline
from helpers import on_pool
from library_cases import alone, on, sentence
from paceline.errors import UsageError
from paceline.launch.local import LocalPool


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_loaders", [0, 1])
def test_shards_are_disjoint_and_cover_the_epoch(pool: LocalPool, shuffle: bool, num_loaders: int) -> None:
    # 17 samples, 3 workers, 2 each: two global batches of 6, and 5 left: 2, 2 and 1.
    workers = on(pool, 3, "shards", num_samples=17, batch_size=2, shuffle=shuffle, num_workers=num_loaders)
    for epoch in range(2):
        batches = [worker[epoch] for worker in workers]
        assert [[len(items) for items in worker] for worker in batches] == [[2, 2, 2], [2, 2, 2], [2, 2, 1]]
        seen = [sample for worker in batches for items in worker for sample in items]
        assert sorted(seen) == list(range(17))
        assert shuffle == (seen != [0, 1, 6, 7, 12, 13, 2, 3, 8, 9, 14, 15, 4, 5, 10, 11, 16])
    assert shuffle == (workers[0][0] != workers[0][1])


def test_an_epoch_can_be_gone_on_with(pool: LocalPool) -> None:
    whole = on(pool, 2, "shards", num_samples=20, batch_size=3, shuffle=True, epochs=4)
    later = on(pool, 2, "shards", num_samples=20, batch_size=3, shuffle=True, epochs=2, start=2)
    assert [worker[2:] for worker in whole] == later


def test_every_global_batch_is_what_one_worker_sees(pool: LocalPool) -> None:
    two = on(pool, 2, "shards", num_samples=20, batch_size=3, shuffle=True)
    one = alone("shards", num_samples=20, batch_size=6, shuffle=True)
    for epoch in range(2):
        assert [a + b for a, b in zip(*(worker[epoch] for worker in two), strict=True)] == one[epoch]


def test_what_is_left_over_can_be_dropped(pool: LocalPool) -> None:
    workers = on(pool, 2, "shards", num_samples=11, batch_size=2, epochs=1, drop_last=True)
    assert workers == [[[[0, 1], [4, 5]]], [[[2, 3], [6, 7]]]]


def test_a_stream_gives_every_worker_as_many(pool: LocalPool) -> None:
    # 11 samples over 3 workers: three whole rounds; the last two samples are left out.
    workers = on(pool, 3, "shards", num_samples=0, batch_size=2, epochs=1)
    assert workers == [[[[0, 3], [6]]], [[[1, 4], [7]]], [[[2, 5], [8]]]]


def test_data_sets_of_different_lengths(pool: LocalPool) -> None:
    assert sentence(on(pool, 2, "shard_lengths")).startswith("worker 0 has 8 samples and worker 1 has 9: pass")


def test_what_is_left_out_is_said(pool: LocalPool) -> None:
    workers = on_pool(pool, 3, library_cases.warned_shard)
    assert workers == ["the last 2 samples of every epoch are dropped: they are fewer than 3 workers"] * 3


@pytest.mark.usefixtures("session")
def test_loaders_that_cannot_be_divided() -> None:
    data = TensorDataset(torch.arange(8))
    with pytest.raises(UsageError, match="this loader has a WeightedRandomSampler"):
        paceline.shard(DataLoader(data, batch_size=2, sampler=WeightedRandomSampler([1.0] * 8, 8)))
    with pytest.raises(UsageError, match="this loader has a DistributedSampler"):
        paceline.shard(DataLoader(data, batch_size=2, sampler=DistributedSampler(data, num_replicas=2, rank=0)))
    with pytest.raises(UsageError, match="this loader has no batch_size"):
        paceline.shard(DataLoader(data, batch_size=None))
    with pytest.raises(UsageError, match=r"shard.. forms batches itself"):
        paceline.shard(DataLoader(data, batch_sampler=[[0, 1]]))
    with pytest.raises(UsageError, match=r"shard.. takes a torch DataLoader, not a list"):
        paceline.shard([])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="8 samples are fewer than one batch of 9"):
        paceline.shard(DataLoader(data, batch_size=9, drop_last=True))
    loader = paceline.shard(DataLoader(data, batch_size=2, collate_fn=lambda items: len(items)))
    assert list(loader) == [2] * 4
    assert loader.dataset is data
