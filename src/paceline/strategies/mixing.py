"""Averaging as mixing matrices: row i holds the weights of all replicas in the average of worker i."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_TERMS = 100_000  # of the series in drift_bound; all known matrices converge long before
_NEGLIGIBLE = 1e-12


def running_means(num_workers: int, start: int = 0) -> Tensor:
    """Return the matrix of one trip round the ring: the worker at position k gets the mean of positions 0 to k."""
    positions = [(rank - start) % num_workers for rank in range(num_workers)]
    rows = [[1 / (mine + 1) if other <= mine else 0.0 for other in positions] for mine in positions]
    return torch.tensor(rows, dtype=torch.float64)


def halves(num_workers: int, shift: int) -> Tensor:
    """Return the matrix by which every worker averages with the worker `shift` places to its left."""
    own = torch.eye(num_workers, dtype=torch.float64)
    return (own + own.roll(-shift, dims=1)) / 2


def moved_on(num_workers: int) -> Tensor:
    """Return the permutation that moves position k to k + 1 and the last position to the start."""
    return torch.eye(num_workers, dtype=torch.float64).roll(-1, dims=1)


def drift_bound(period: Sequence[Tensor]) -> float:
    """Return the largest distance of a replica from the mean, as a multiple of the longest update of any worker.

    Replicas x follow x(t+1) = W(t) (x(t) + u(t)), where rows of W add up to 1 and u are the optimisers' updates. Let
    C = I - 11'/p subtract the mean. Then C x(t+1) is the sum over s of C W(t) ... W(t-s) C u(t-s), as C W C = C W.
    All updates of a step together are at most sqrt(p) U long where each is at most U; and of p vectors that add up to
    zero, none is longer than sqrt((p-1)/p) of all together. So the bound is sqrt(p-1) U times the sum over s of
    ||C W(t) ... W(t-s)||, for the worst t. It holds for any optimiser, because it assumes nothing about the updates,
    and for chunks with different matrices, because squared lengths add up over chunks.
    """
    num_workers = len(period[0])
    centre = torch.eye(num_workers, dtype=torch.float64) - 1 / num_workers
    worst = 0.0
    for last in range(len(period)):
        product, total = centre, 0.0
        for back in range(_TERMS):
            product = product @ period[(last - back) % len(period)]
            term = float(torch.linalg.matrix_norm(product, 2))
            total += term
            if term <= _NEGLIGIBLE * max(total, 1.0):
                break
        worst = max(worst, total)
    return math.sqrt(num_workers - 1) * worst
