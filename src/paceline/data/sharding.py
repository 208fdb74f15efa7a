"""Who trains on what: a seeded permutation per epoch, cut into global batches, each cut into disjoint shards.

The global batch does not depend on the number of workers, so N workers see together what one would see alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class ShardPlan:
    """Which samples each worker takes in each step. Every worker can compute everybody's."""

    num_samples: int
    batch_size: int
    num_workers: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_samples // self.batch_size)

    def shard(self, epoch: int, step: int, rank: int) -> Tensor:
        """Indices of the samples that a worker takes in a step of an epoch."""
        start, stop = self._bounds(step)[rank : rank + 2]
        return _permutation(self.num_samples, self.seed, epoch)[start:stop]

    def counts(self, step: int) -> list[int]:
        """Samples of every worker in a step; the first workers take what does not divide evenly."""
        bounds = self._bounds(step)
        return [bounds[rank + 1] - bounds[rank] for rank in range(self.num_workers)]

    def _bounds(self, step: int) -> list[int]:
        first = step * self.batch_size
        total = min(self.batch_size, self.num_samples - first)
        assert total > 0, f"step {step} is beyond the epoch's {self.steps_per_epoch} steps"
        each, extra = divmod(total, self.num_workers)
        return [first + rank * each + min(rank, extra) for rank in range(self.num_workers + 1)]


@lru_cache(maxsize=2)
def _permutation(num_samples: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(num_samples, generator=epoch_generator(seed, epoch))


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """A generator that depends on seed and epoch alone."""
    # Python's integer hash of a tuple is stable between processes and versions only for ints mixed by hand.
    mixed = (seed * 0x9E3779B97F4A7C15 + (epoch + 1) * 0xBF58476D1CE4E5B9) & (2**63 - 1)
    return torch.Generator().manual_seed(mixed)
