"""Compare the workers' replicas during training, to stop a run whose replicas have silently become different.

Each worker reduces the bits of its parameters to one 64-bit number. An all-gather of these numbers is the only traffic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from paceline.comm import Comm, CommError
from paceline.errors import RunError, UsageError
from paceline.strategies import Guarantee, Strategy
from paceline.strategies.capabilities import is_synchronised

CHUNK = 1 << 16  # elements per 32-bit sum; their weights stay in the cache
WEIGHTS_SEED = 0x5EED
FACTOR, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1  # an odd factor, which mixes the sums of chunks
EQUAL_AFTER_STEPS = (Guarantee.EXACT, Guarantee.LOSSY, Guarantee.PERIODIC)


def refuse_differing(strategy: Strategy) -> None:
    """Raise UsageError if the strategy's replicas differ after every step by design."""
    if strategy.guarantee not in EQUAL_AFTER_STEPS:
        raise UsageError(
            f"replicas cannot be checked under strategy {strategy.name}, whose replicas differ by design (guarantee "
            f"{strategy.guarantee.value}); leave out check_replicas (--check-replicas), or use an exact strategy"
        )


class ReplicaCheck:
    """Compares the replicas of all workers every `every` steps.

    Under a strategy that synchronises only after some steps, the comparison waits for the next such step.
    """

    def __init__(self, every: int, strategy: Strategy, comm: Comm) -> None:
        refuse_differing(strategy)
        self._every, self._strategy, self._comm = every, strategy, comm
        self._hash = BitHash()
        self._next_step = every - 1

    def after_step(self, step: int, parameters: Iterable[Tensor]) -> None:
        """Compare the replicas, if this step (counted from 0) is due. Raise RunError on all workers if they differ.

        On a worker that is equal to most others, the error is a CommError, so that the one that differs is reported.
        """
        if self._comm.world_size == 1 or step < self._next_step or not is_synchronised(self._strategy, step):
            return
        self._next_step = step + self._every
        own = torch.tensor([self._hash(parameters)], dtype=torch.int64)
        with self._comm.uncounted():
            hashes = [int(one) for one in self._comm.all_gather(own)]
        odd = first_that_differs(hashes)
        if odd < 0:
            return
        others = ", ".join(str(rank) for rank, value in enumerate(hashes) if value != hashes[odd])
        error = RunError if self._comm.rank == odd else CommError
        raise error(
            f"replicas differ after step {step}: the parameters of worker {odd} are not those of worker {others}; "
            "check its memory and your own code"
        )


def first_that_differs(hashes: Sequence[int]) -> int:
    """Return the first rank whose hash differs from the most frequent one; -1 if all are equal.

    If several hashes are the most frequent, the one of the lowest rank counts.
    """
    [(usual, _)] = Counter(hashes).most_common(1)
    return next((rank for rank, value in enumerate(hashes) if value != usual), -1)


class BitHash:
    """Reduces the bits of tensors to one number. A difference in a single element always changes the number.

    Each chunk of 32-bit words becomes the sum of word times weight, modulo 2^32. The weights are odd, and therefore
    invertible. Different chunks have equal sums by chance with a probability of 2^-32.
    """

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(WEIGHTS_SEED)
        self._weights = torch.randint(-(1 << 31), (1 << 31) - 1, (CHUNK,), dtype=torch.int32, generator=random) | 1

    def __call__(self, tensors: Iterable[Tensor]) -> int:
        """Return the hash as a signed 64-bit number."""
        with torch.no_grad():
            sums = [part for tensor in tensors for part in self._sums(_words_of(tensor))]
        mixed = 0
        for value in torch.stack(sums).tolist() if sums else []:
            mixed = (mixed * FACTOR + value) & MASK
        return mixed - (1 << 64) if mixed >> 63 else mixed

    def _sums(self, words: Tensor) -> Iterable[Tensor]:
        if words.is_cuda:  # dot of integers exists on the CPU only
            weights = self._weights = self._weights.to(words.device)
            return [(part * weights[: len(part)]).sum(dtype=torch.int32) for part in words.split(CHUNK)]
        return [torch.dot(part, self._weights[: len(part)]) for part in words.split(CHUNK)]


def _words_of(tensor: Tensor) -> Tensor:
    flat = tensor.detach().contiguous().view(-1)
    if flat.element_size() >= 4:
        return flat.view(torch.int32)
    return flat.view(torch.int16 if flat.element_size() == 2 else torch.uint8).to(torch.int32)
