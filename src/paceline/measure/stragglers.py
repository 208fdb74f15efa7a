"""Straggler detection: compare each worker's own work with that of the others.

Step times cannot show a straggler, since synchronised workers take equally long. Own work is the time of the phases
without blocked time. Steps are grouped into blocks, and a worker is compared with the median of the others in each
block, so that slow periods of the machine cancel and an outlier affects one block only. The excess is the median over
blocks, with a distribution-free confidence interval.

Two tests are made. Medians of blocks find workers that are slow in most steps, whatever their outliers; means of blocks
find workers that are slow in some steps throughout the run. Intervals are corrected for all workers and both tests.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from paceline.measure.observer import WORK_PHASES
from paceline.measure.stats import interval95_of_median
from paceline.results import Straggler

LEAST_STEPS = 50
LEAST_EXCESS = 0.10  # of the others' own work
BLOCKS = 20
LEAST_BLOCK = 3  # steps
EVEN = 1 / 3  # all phases are slow if the relative excess of the rest is at least this share of the slowest phase's
ALL = "all"
NUM_TESTS = 2

OwnWork = Mapping[str, float]  # seconds by phase in one step
Block = dict[str, float]  # seconds by phase and in total, for a block of steps


def find_stragglers(own: Mapping[int, Sequence[OwnWork]]) -> list[Straggler] | None:
    """Return the stragglers, slowest first, from every worker's own work in the same steps.

    None with a single worker or fewer than LEAST_STEPS steps.
    """
    num_steps = min((len(steps) for steps in own.values()), default=0)
    if len(own) < 2 or num_steps < LEAST_STEPS:
        return None
    found: dict[int, Straggler] = {}
    for typical in (statistics.median, statistics.fmean):
        blocks = {rank: _blocks(steps[:num_steps], typical) for rank, steps in own.items()}
        judged = [_judge(rank, blocks, num_steps) for rank in blocks if rank not in found]
        found |= {one.rank: one for one in judged if one is not None}
    return sorted(found.values(), key=lambda one: -one.excess_s)


def _blocks(steps: Sequence[OwnWork], typical: Callable[[Iterable[float]], float]) -> list[Block]:
    """Return the typical own work by phase and in total, for consecutive blocks of nearly equal size."""
    count = min(BLOCKS, len(steps) // LEAST_BLOCK)
    bounds = [len(steps) * block // count for block in range(count + 1)]
    return [
        {
            **{phase: typical([step[phase] for step in steps[begin:end]]) for phase in WORK_PHASES},
            ALL: typical([sum(step.values()) for step in steps[begin:end]]),
        }
        for begin, end in pairwise(bounds)
    ]


def _judge(rank: int, blocks: Mapping[int, list[Block]], num_steps: int) -> Straggler | None:
    others = [theirs for other, theirs in blocks.items() if other != rank]
    usual_s, excess = _excess(blocks[rank], others, ALL)
    excess_s = statistics.median(excess)
    low, high = interval95_of_median(excess, num_together=NUM_TESTS * len(blocks))
    if usual_s <= 0 or excess_s <= LEAST_EXCESS * usual_s or low <= 0:
        return None
    phase = _slow_phase(blocks[rank], others)
    _, of_phase = _excess(blocks[rank], others, phase)
    bounds = interval95_of_median(of_phase, num_together=NUM_TESTS * len(blocks))
    if bounds[0] > 0:
        excess_s, (low, high) = statistics.median(of_phase), bounds
    else:
        phase = ALL  # the worker is slow, but no single phase is significantly slow
    return Straggler(
        rank=rank,
        phase=phase,
        excess_s=excess_s,
        excess_percent=100 * excess_s / usual_s,
        interval95_percent=(100 * low / usual_s, 100 * high / usual_s),
        steps=num_steps,
    )


def _excess(own: list[Block], others: list[list[Block]], phase: str) -> tuple[float, list[float]]:
    """Return the typical seconds of the others, and this worker's excess in every block."""
    usual = [statistics.median(theirs[index][phase] for theirs in others) for index in range(len(own))]
    return statistics.median(usual), [block[phase] - theirs for block, theirs in zip(own, usual, strict=True)]


def _slow_phase(own: list[Block], others: list[list[Block]]) -> str:
    """Return the phase with the largest excess, or ALL if the rest is slow to a similar degree.

    Phases in which this worker is faster do not offset the slow ones.
    """
    usual, excess = {}, {}
    for phase in WORK_PHASES:
        usual[phase], in_blocks = _excess(own, others, phase)
        excess[phase] = statistics.median(in_blocks)
    slowest = max(WORK_PHASES, key=lambda phase: excess[phase])
    rest_s = sum(usual.values()) - usual[slowest]
    rest_excess_s = sum(max(excess[phase], 0.0) for phase in WORK_PHASES if phase != slowest)
    # Cross-multiplied, since a phase may be empty on the others.
    if rest_s > 0 and rest_excess_s * usual[slowest] >= EVEN * excess[slowest] * rest_s:
        return ALL
    return slowest
