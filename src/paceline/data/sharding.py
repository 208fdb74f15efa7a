"""Who trains on what: a seeded permutation per epoch, cut into global batches, each cut into disjoint shards.

The global batch does not depend on the number of workers, so N workers see together what one would see alone.
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
    """Which samples each worker takes in each step. Every worker can compute everybody's."""

    num_samples: int
    batch_size: int
    num_workers: int
    seed: int
    # Where given, each worker has a part of this order to itself, as it lies there, reshuffled within in every epoch.
    order: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_samples // self.batch_size)

    def shard(self, epoch: int, step: int, rank: int) -> Tensor:
        """Indices of the samples that a worker takes in a step of an epoch."""
        if self.order is not None:
            return self._own_shard(self.order, epoch, step, rank)
        start, stop = self._bounds(step)[rank : rank + 2]
        return _permutation(self.num_samples, self.seed, epoch)[start:stop]

    def counts(self, step: int) -> list[int]:
        """Samples of every worker in a step; the first workers take what does not divide evenly."""
        bounds = self._bounds(step)
        return [bounds[rank + 1] - bounds[rank] for rank in range(self.num_workers)]

    def _own_shard(self, order: Tensor, epoch: int, step: int, rank: int) -> Tensor:
        # Workers take as many samples in each step as ever; all steps but the last are alike.
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
    """The plan for a data set; `sorted` deals it out by label: the hardest case for workers that rarely agree."""
    by_label = None
    if order == "sorted":
        labels = data.labels()
        if labels is None:
            raise UsageError("data order sorted needs the label of every sample, and this data does not say them")
        by_label = labels.argsort(stable=True)
    return ShardPlan(len(data), batch_size, num_workers, seed, by_label)


@lru_cache(maxsize=2)
def _permutation(num_samples: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(num_samples, generator=epoch_generator(seed, epoch))


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """A generator that depends on seed and epoch alone."""
    # Python's integer hash of a tuple is stable between processes and versions only for ints mixed by hand.
    mixed = (seed * 0x9E3779B97F4A7C15 + (epoch + 1) * 0xBF58476D1CE4E5B9) & (2**63 - 1)
    return torch.Generator().manual_seed(mixed)
