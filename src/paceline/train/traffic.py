"""What a strategy should send over a whole run, from its own prediction for each step."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.codecs import TensorSpec
from paceline.comm.base import Counter
from paceline.strategies import Strategy

# A long run is worked out step by step to here, and then by a stretch that repeats: whatever a strategy does every so
# many steps, that number divides the stretch if it is at most 8, and hardly matters otherwise.
SINGLE_STEPS = 400
STRETCH = 840


def predicted_traffic(
    strategy: Strategy, tensors: Sequence[TensorSpec], *, rank: int, world_size: int, num_steps: int
) -> Counter:
    """The operations of one worker over the first so many steps."""
    total = Counter()

    def add(first: int, last: int, times: int = 1) -> None:
        for step in range(first, last):
            step_counter = Counter.of(strategy.traffic(tensors, rank, world_size, step))
            for key, nbytes in step_counter.nbytes.items():
                total.nbytes[key] = total.nbytes.get(key, 0) + times * nbytes
                total.calls[key] = total.calls.get(key, 0) + times * step_counter.calls[key]

    single = min(num_steps, SINGLE_STEPS)
    add(0, single)
    times, rest = divmod(num_steps - single, STRETCH)
    add(single, single + rest, times + 1)
    if times:
        add(single + rest, single + STRETCH, times)
    return total
