"""Sharding of the user's DataLoader: each worker gets a disjoint shard, with the same number of batches."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from paceline.comm import Comm
from paceline.data import ShardPlan
from paceline.errors import UsageError
from paceline.library.session import Session, current

# DataLoader arguments that the sharded loader copies from the user's loader.
_COPIED_ARGUMENTS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


def shard(loader: DataLoader[Any], *, seed: int = 0) -> ShardedLoader:
    """Return a loader over this worker's shard of the data. Pass a loader of the whole data set on every worker.

    The loader's `batch_size` is the batch size of one worker. If the loader shuffles, `seed` and the epoch determine
    the order of the samples. Otherwise the samples keep their order. Each `iter()` starts the next epoch. At the end of
    an epoch, the samples that do not fill a batch on every worker are divided among the workers, and each worker's
    gradients are weighted by its number of samples. If the loader has drop_last=True, or if fewer samples than workers
    remain, the remaining samples are dropped.

    If the data set is an IterableDataset, each of N workers gets every N-th sample of it. If fewer than N samples
    remain at the end, they are dropped.
    """
    session = current("shard")
    if not isinstance(loader, DataLoader):
        raise UsageError(f"shard() takes a torch DataLoader, not a {type(loader).__name__}")
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        given = type(loader.batch_sampler).__name__
        raise UsageError(f"shard() forms batches itself, but this loader has a {given}; pass batch_size instead")
    if loader.batch_size is None:
        raise UsageError(
            "shard() divides batches, but this loader has no batch_size; divide the data by paceline.rank()"
        )
    copied = {name: getattr(loader, name) for name in _COPIED_ARGUMENTS}
    if isinstance(loader.dataset, IterableDataset):
        stream = _EveryNth(loader.dataset, session.rank, session.world_size)
        inner: DataLoader[Any] = DataLoader(stream, batch_size=loader.batch_size, drop_last=loader.drop_last, **copied)
        return _known(ShardedLoader(session, inner, None))
    batches = _Batches(loader, session, seed)
    return _known(ShardedLoader(session, DataLoader(loader.dataset, batch_sampler=batches, **copied), batches))


def _known(loader: ShardedLoader) -> ShardedLoader:
    """Add a loader to those whose positions are part of a checkpoint."""
    loader._session.loaders.append(loader)
    return loader


class ShardedLoader:
    """A loader over one worker's samples. It has all attributes of `inner`, the torch DataLoader that it wraps."""

    def __init__(self, session: Session, inner: DataLoader[Any], batches: _Batches | None) -> None:
        self.inner = inner
        self._session, self._batches = session, batches
        self._epoch = 0  # that the next `iter()` begins
        self._num_skipped = 0  # batches that the next `iter()` leaves out, because they came before a checkpoint
        self._num_yielded: int | None = None  # batches of the current epoch so far; None between epochs

    @property
    def position(self) -> dict[str, int]:
        """The current epoch, and the number of its batches that were yielded. Setting it resumes at this point."""
        if self._num_yielded is None:
            return {"epoch": self._epoch, "batches": self._num_skipped}
        return {"epoch": self._epoch - 1, "batches": self._num_yielded}

    @position.setter
    def position(self, position: dict[str, int]) -> None:
        self._epoch, self._num_skipped = position["epoch"], position["batches"]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0, that the next `iter()` begins. Use it to resume training."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        batches, first = self._batches, self._num_skipped
        self._num_skipped = 0
        if batches is not None:
            batches.epoch, batches.first_step = self._epoch, first
        self._epoch += 1
        state = torch.get_rng_state()
        source: Iterator[Any] = iter(self.inner)
        if first:  # this iterator drew its seed before the checkpoint, and must not draw again
            torch.set_rng_state(state)
        if batches is None:
            source = islice(source, first, None)
        try:
            for index, batch in enumerate(source, start=first):
                self._num_yielded = index + 1
                if batches is not None:
                    self._session.set_share(batches.share(index))
                yield batch
        finally:
            self._num_yielded = None
        # Until the next epoch begins, batches come from elsewhere, so their gradients are not weighted.
        self._session.set_share(1.0)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # copy and pickle look attributes up before `inner` is set
            raise AttributeError(name)
        return getattr(self.inner, name)


class _Batches(BatchSampler):
    """Batch sampler that yields the sample indices of one worker's batches in epoch `epoch`."""

    def __init__(self, loader: DataLoader[Any], session: Session, seed: int) -> None:
        assert loader.batch_size is not None
        self.epoch = self.first_step = 0
        self.batch_size, self.drop_last = loader.batch_size, loader.drop_last
        self._rank, self._world_size, self._seed = session.rank, session.world_size, seed
        self._is_shuffled = _is_shuffled(loader)
        self._num_samples = len(loader.dataset)  # type: ignore[arg-type]
        _check_lengths(self._num_samples, session.comm)
        global_batch = self.batch_size * self._world_size
        self._plan = ShardPlan(self._num_samples, global_batch, self._world_size, seed)
        rest = self._num_samples % global_batch
        self._num_steps = self._num_samples // global_batch
        if rest >= self._world_size and not self.drop_last:
            self._num_steps += 1
        elif rest and not self.drop_last:
            warnings.warn(
                f"the last {rest} samples of every epoch are dropped: they are fewer than {self._world_size} workers",
                stacklevel=3,
            )
        if not self._num_steps:
            raise UsageError(
                f"{self._num_samples} samples are fewer than one batch of {self.batch_size} for each of "
                f"{self._world_size} workers; use a smaller batch_size"
            )

    def __len__(self) -> int:
        return self._num_steps

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self.epoch
        for step in range(self.first_step, self._num_steps):
            yield self._indices(epoch, step).tolist()

    def share(self, step: int) -> float:
        """Return this worker's number of samples in a step of an epoch, divided by the mean number over all workers."""
        counts = self._plan.counts(step)
        return counts[self._rank] * self._world_size / sum(counts)

    def _indices(self, epoch: int, step: int) -> Tensor:
        if self._is_shuffled:
            return self._plan.shard(epoch, step, self._rank)
        counts = self._plan.counts(step)
        first = step * self.batch_size * self._world_size + sum(counts[: self._rank])
        return torch.arange(first, first + counts[self._rank])


class _EveryNth(IterableDataset[Any]):
    """One worker's samples of an IterableDataset: if there are N workers, every N-th sample.

    If fewer than N samples remain at the end of the data set, they are dropped.
    """

    def __init__(self, stream: IterableDataset[Any], rank: int, world_size: int) -> None:
        self.stream, self.rank, self.world_size = stream, rank, world_size

    def __iter__(self) -> Iterator[Any]:
        # zip over N references to one iterator yields complete rounds of N samples.
        for samples in zip(*[iter(self.stream)] * self.world_size, strict=False):
            yield samples[self.rank]


def _is_shuffled(loader: DataLoader[Any]) -> bool:
    sampler: Any = loader.sampler
    if type(sampler) is SequentialSampler:
        return False
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source):
        return True
    raise UsageError(
        f"shard() orders samples itself, but this loader has a {type(sampler).__name__}; "
        "pass shuffle=True or False instead, or divide the data by paceline.rank()"
    )


def _check_lengths(num_samples: int, comm: Comm) -> None:
    if comm.world_size == 1:
        return
    with comm.uncounted():
        lengths = [int(other) for other in comm.all_gather(torch.tensor([num_samples], dtype=torch.float64))]
    odd = next((rank for rank, length in enumerate(lengths) if length != lengths[0]), None)
    if odd is not None:
        raise UsageError(
            f"worker 0 has {lengths[0]} samples and worker {odd} has {lengths[odd]}: pass the whole data set to "
            "shard() on every worker; shard() divides it"
        )
