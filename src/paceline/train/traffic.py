"""What a strategy should send over a whole run, from its own prediction for each step."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.codecs import TensorSpec
from paceline.comm.base import Counter
from paceline.strategies import Strategy


def predicted_traffic(
    strategy: Strategy, tensors: Sequence[TensorSpec], *, rank: int, world_size: int, num_steps: int
) -> Counter:
    """The operations of one worker over the first so many steps; only those of one period are worked out."""
    total = Counter()
    period = strategy.traffic_period(world_size)
    whole, rest = divmod(num_steps, period)
    for step in range(min(period, num_steps)):
        times = whole + (step < rest)
        counter = Counter.of(strategy.traffic(tensors, rank, world_size, step))
        for key, nbytes in counter.nbytes.items():
            total.nbytes[key] = total.nbytes.get(key, 0) + times * nbytes
            total.calls[key] = total.calls.get(key, 0) + times * counter.calls[key]
    return total
