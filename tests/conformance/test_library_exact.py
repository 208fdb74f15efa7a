"""Every exact strategy in a user's loop: several workers give the result of one worker with all samples."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

import library_uses
from helpers import exact_without_servers, on_pool
from library_uses import USES, History, in_session
from paceline.launch.local import LocalPool
from paceline.library.world import World

# float64 rounds at 1e-16; six steps of training amplify that by much less than seven orders of magnitude.
TOLERANCE = 1e-9


@lru_cache
def alone(use: str) -> History:
    return in_session(World(), USES[use], "all-reduce")


@pytest.mark.each_choice
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("strategy", exact_without_servers())
@pytest.mark.parametrize("world_size", [2, 3])
def test_equals_one_worker_with_every_sample(pool: LocalPool, use: str, strategy: str, world_size: int) -> None:
    expected = torch.tensor(alone(use), dtype=torch.float64)
    workers = on_pool(pool, world_size, library_uses.run_use, use=use, strategy=strategy)
    for rank, history in enumerate(workers):
        assert history == workers[0], f"worker {rank} differs in bits"
        found = torch.tensor(history, dtype=torch.float64)
        assert found.shape == expected.shape
        error = (found - expected).norm(dim=1) / expected.norm(dim=1)
        assert error.max() <= TOLERANCE, f"worker {rank}: {error.tolist()}"


@pytest.mark.parametrize("use", USES)
def test_a_use_trains(use: str) -> None:
    history = alone(use)
    assert history[-1] != history[0]
    assert len(history) >= 4
