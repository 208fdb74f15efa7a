"""What benchmarks run inside workers; a module of its own, because functions travel to workers by name."""

from __future__ import annotations

import time
from typing import Any

import torch

from paceline.strategies.ring import Spare, ring_all_reduce
from paceline.train.context import Context


def time_all_reduces(context: Context, num_elements: int, repeats: int, warmup: int) -> dict[str, list[float]]:
    """Our ring and the library's all-reduce on the same vector, in turn; seconds per call."""
    comm, spare = context.comm, Spare()
    ways: dict[str, Any] = {"ring": lambda vector: ring_all_reduce(vector, comm, spare), "library": comm.all_reduce}
    times: dict[str, list[float]] = {name: [] for name in ways}
    vector = torch.ones(num_elements)
    for repeat in range(warmup + repeats):
        # Who goes first changes: what a neighbour on the machine does then hits both alike.
        for name in ways if repeat % 2 else reversed(ways):
            vector.fill_(float(context.rank + 1))
            comm.barrier()
            started = time.perf_counter()
            ways[name](vector)
            elapsed = time.perf_counter() - started
            expected = context.world_size * (context.world_size + 1) / 2
            assert bool((vector == expected).all()), f"{name} is wrong"
            if repeat >= warmup:
                times[name].append(elapsed)
    return times
