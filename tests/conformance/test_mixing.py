"""Influence of each worker over time and bounds of the drift, from mixing matrices computed with unit vectors."""

from __future__ import annotations

import pytest
import torch

from helpers import build
from paceline.strategies.weights import bound_drift, pairwise_means, running_means
from replica_oracle import StepwiseMixing


def matrices(num_workers: int, chunk: int, *, rotate: bool) -> list[torch.Tensor]:
    """Return the mixing matrices of a chunk over one period, computed by mixing unit vectors in the oracle."""
    mixing_oracle = StepwiseMixing(num_workers, rotate=rotate)
    length = num_workers  # one number per chunk
    found = []
    for step in range(num_workers):
        matrix = torch.zeros(num_workers, num_workers, dtype=torch.float64)
        for source in range(num_workers):
            replicas = [[float(rank == source)] * length for rank in range(num_workers)]
            mixed = mixing_oracle.mix(step, replicas)
            matrix[:, source] = torch.tensor([row[chunk] for row in mixed], dtype=torch.float64)
        found.append(matrix)
    return found


@pytest.mark.parametrize("num_workers", [2, 3, 4, 5])
def test_with_rotation_all_workers_have_the_same_influence(num_workers: int) -> None:
    for chunk in range(num_workers):
        rotated = torch.stack(matrices(num_workers, chunk, rotate=True)).mean(0).sum(0)
        assert torch.allclose(rotated, torch.ones_like(rotated), rtol=0, atol=1e-14)
        fixed = torch.stack(matrices(num_workers, chunk, rotate=False)).mean(0).sum(0)
        # A harmonic series: the worker at position k is part of the means of all later positions.
        expected = [sum(1 / (j + 1) for j in range(k, num_workers)) for k in range(num_workers)]
        assert [fixed[(chunk + k) % num_workers].item() for k in range(num_workers)] == pytest.approx(expected)


@pytest.mark.parametrize("num_workers", [2, 3, 4, 5])
def test_influence_of_an_update_in_the_long_run(num_workers: int) -> None:
    # An update of a worker reaches every replica with a weight. Summed over the steps of a period, the weights of all
    # workers are equal with rotation; with a fixed start only those of the first worker remain.
    for rotate in (True, False):
        period = matrices(num_workers, 0, rotate=rotate)
        total = torch.zeros(num_workers, dtype=torch.float64)
        for begin in range(num_workers):
            product = torch.eye(num_workers, dtype=torch.float64)
            for step in range(begin, begin + 400 * num_workers):
                product = period[step % num_workers] @ product
            total += product[0]
        share = total / num_workers
        first = torch.eye(num_workers, dtype=torch.float64)[0]
        expected = torch.full_like(share, 1 / num_workers) if rotate else first
        assert torch.allclose(share, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_workers", [2, 3, 4, 5])
def test_the_matrices_of_the_bound_are_those_of_the_oracle(num_workers: int) -> None:
    for rotate in (True, False):
        words = f"stepwise:rotate={str(rotate).lower()}"
        for chunk in range(num_workers):
            period = matrices(num_workers, chunk, rotate=rotate)
            assert bound_drift(period) == pytest.approx(build(words).drift_bound(num_workers))
            starts = [(chunk - step if rotate else chunk) % num_workers for step in range(num_workers)]
            assert all(
                torch.allclose(found, running_means(num_workers, start))
                for found, start in zip(period, starts, strict=True)
            )
    rows = torch.stack([pairwise_means(num_workers, shift) for shift in (1, 2)])
    assert torch.equal(rows.sum(1), torch.ones(2, num_workers, dtype=torch.float64))
    assert torch.equal(rows.sum(2), torch.ones(2, num_workers, dtype=torch.float64))


def test_the_bound_by_hand() -> None:
    # Two workers: a trip halves the difference, so drift is at most 1/2 + 1/4 + ... of the difference of two updates,
    # 2 U, and a replica is half of that from the mean.
    assert build("stepwise").drift_bound(2) == pytest.approx(1.0)
    assert build("stepwise:correct=delayed").drift_bound(2) == pytest.approx(0.5)
    assert build("gossip").drift_bound(2) == pytest.approx(0.0, abs=1e-12)
    assert all(build(text).drift_bound(1) == 0 for text in ("stepwise", "stepwise:correct=delayed", "gossip"))
