"""What measuring costs: steps with and without it, in turns within one run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from paceline.measure.observer import is_measured
from paceline.measure.stats import paired_ratio

MOST_STEPS = 240
LEAST_STEPS = 48


def steps_per_block(num_steps: int) -> int:
    """Short blocks, so that what disturbs the machine disturbs both; some twenty pairs where there are steps enough."""
    return min(max(num_steps // 48, 1), 5)


def measuring_cost(iteration_s: Sequence[Sequence[float]], steps_per_block: int) -> dict[str, Any] | None:
    """From every worker's step times: how much longer a measured step takes, from neighbouring blocks.

    The first four blocks are warm-up. None where nothing is left.
    """
    num_steps = min(len(times) for times in iteration_s)
    steps = [statistics.fmean(times[step] for times in iteration_s) for step in range(num_steps)]
    blocks = [
        (is_measured(first, steps_per_block), statistics.median(steps[first : first + steps_per_block]))
        for first in range(4 * steps_per_block, num_steps - steps_per_block + 1, steps_per_block)
    ]
    pairs = [sorted(blocks[index : index + 2], reverse=True) for index in range(0, len(blocks) - 1, 2)]
    if not pairs:
        return None
    ratio = paired_ratio([with_it[1] for with_it, _ in pairs], [without[1] for _, without in pairs])
    return {
        "cost_percent": 100 * (ratio.value - 1),
        "interval95_percent": None
        if ratio.low is None or ratio.high is None
        else [100 * (ratio.low - 1), 100 * (ratio.high - 1)],
        "repeats": len(pairs),
    }
