"""Divide the samples of a data set among steps and workers, at random or by label.

By default, a seeded permutation per epoch is cut into global batches, and each global batch into one shard per worker.
The global batches then do not depend on the number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from paceline.data.base import Dataset
from paceline.errors import UsageError


@dataclass(frozen=True)
class ShardPlan:
    """Division of samples among steps and workers. Every worker can compute the shards of all workers."""

    num_samples: int
    batch_size: int
    num_workers: int
    seed: int
    # Sample indices. If set, each worker keeps a contiguous slice of them for all epochs, shuffled anew in every epoch.
    order: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_samples // self.batch_size)

    def shard(self, epoch: int, step: int, rank: int) -> Tensor:
        """Return the indices (int64) of the samples that a worker processes in a step of an epoch."""
        if self.order is not None:
            return self._own_shard(self.order, epoch, step, rank)
        start, stop = self._bounds(step)[rank : rank + 2]
        return _permutation(self.num_samples, self.seed, epoch)[start:stop]

    def counts(self, step: int) -> list[int]:
        """Return the number of samples of every worker in a step.

        If the samples do not divide evenly, each of the first workers gets one sample more.
        """
        bounds = self._bounds(step)
        return [bounds[rank + 1] - bounds[rank] for rank in range(self.num_workers)]

    def _own_shard(self, order: Tensor, epoch: int, step: int, rank: int) -> Tensor:
        # Only the last step of an epoch can have fewer samples than the others.
        last = self.steps_per_epoch - 1
        full = self.counts(0)
        sizes = [last * count + rest for count, rest in zip(full, self.counts(last), strict=True)]
        first, start = sum(sizes[:rank]), step * full[rank]
        shuffled = torch.randperm(sizes[rank], generator=epoch_generator(self.seed, epoch))
        return order[first + shuffled[start : start + self.counts(step)[rank]]]

    def _bounds(self, step: int) -> list[int]:
        first = step * self.batch_size
        total = min(self.batch_size, self.num_samples - first)
        assert total > 0, f"step {step} is beyond the epoch's {self.steps_per_epoch} steps"
        each, extra = divmod(total, self.num_workers)
        return [first + rank * each + min(rank, extra) for rank in range(self.num_workers + 1)]


def make_plan(data: Dataset, *, batch_size: int, num_workers: int, seed: int, order: str = "shuffled") -> ShardPlan:
    """Return the shard plan of a data set.

    With order `sorted`, each worker gets a contiguous slice of the samples sorted by label, so it sees few labels. This
    is the hardest case for strategies that rarely synchronise.
    """
    by_label = None
    if order == "sorted":
        labels = data.labels()
        if labels is None:
            raise UsageError(
                "data order sorted needs the label of every sample, which this data does not have; use shuffled"
            )
        by_label = labels.argsort(stable=True)
    return ShardPlan(len(data), batch_size, num_workers, seed, by_label)


@lru_cache(maxsize=2)
def _permutation(num_samples: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(num_samples, generator=epoch_generator(seed, epoch))


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """Return a random generator that is seeded from `seed` and `epoch`."""
    # Mixed by hand: the hash of a tuple differs between Python versions.
    mixed = (seed * 0x9E3779B97F4A7C15 + (epoch + 1) * 0xBF58476D1CE4E5B9) & (2**63 - 1)
    return torch.Generator().manual_seed(mixed)
