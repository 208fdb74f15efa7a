"""Straggler detection: compare how long each worker works in a step with how long the others work.

Step times cannot show a straggler, since synchronised workers take equally long. A worker's own time is therefore the
time of its work phases (data, forward, backward, optimizer) without time blocked in the comm. Steps are grouped into
blocks. In each block a worker's own time is compared with the median of the others, so slow periods of the machine
cancel, and an outlier affects only one block. A worker's excess is the median of its differences over all blocks, with
a distribution-free confidence interval.

There are two tests. The first takes the median step of each block and finds workers that are slow in most steps,
regardless of outliers. The second takes the mean of each block and finds workers that are slow in some steps
throughout the run. Confidence intervals are corrected for the number of workers and for the two tests.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from paceline.measure.observer import WORK_PHASES
from paceline.measure.stats import interval95_of_median
from paceline.results import Straggler

LEAST_STEPS = 50
LEAST_EXCESS = 0.10  # of a straggler, as a share of the other workers' own time
BLOCKS = 20
LEAST_BLOCK = 3  # steps
# All phases count as slow if the relative excess of the other phases is at least this share of the slowest phase's
# relative excess.
EVEN = 1 / 3
ALL = "all"
NUM_TESTS = 2

OwnWork = Mapping[str, float]  # a worker's own time in one step: seconds by phase
Block = dict[str, float]  # a worker's own time in a typical step of a block: seconds by phase and in total


def find_stragglers(own: Mapping[int, Sequence[OwnWork]]) -> list[Straggler] | None:
    """Return the stragglers, in descending order of how much longer they work in a step than the other workers.

    `own` has for each rank its own time in every step: seconds by phase, without time blocked in the comm. All workers
    must have measured the same steps. Return None for a single worker, or for fewer than LEAST_STEPS steps.
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
    """Divide a worker's steps into consecutive blocks of nearly equal size, and summarise each block.

    A summary has the worker's own time by phase and in total. Each time is the mean or the median over the steps of the
    block, as computed by `typical`.
    """
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
    """Return the other workers' typical time in a phase, and for each block how much longer this worker takes.

    Times are in seconds. The typical time in a block is the median of the other workers' times. The returned typical
    time is the median over all blocks.
    """
    usual = [statistics.median(theirs[index][phase] for theirs in others) for index in range(len(own))]
    return statistics.median(usual), [block[phase] - theirs for block, theirs in zip(own, usual, strict=True)]


def _slow_phase(own: list[Block], others: list[list[Block]]) -> str:
    """Return the phase with the largest excess over the other workers, or ALL if other phases are similarly slow.

    A phase in which this worker is faster than the others does not offset a slow phase.
    """
    usual, excess = {}, {}
    for phase in WORK_PHASES:
        usual[phase], in_blocks = _excess(own, others, phase)
        excess[phase] = statistics.median(in_blocks)
    slowest = max(WORK_PHASES, key=lambda phase: excess[phase])
    rest_s = sum(usual.values()) - usual[slowest]
    rest_excess_s = sum(max(excess[phase], 0.0) for phase in WORK_PHASES if phase != slowest)
    # Products instead of quotients, since a phase may take no time on the other workers.
    if rest_s > 0 and rest_excess_s * usual[slowest] >= EVEN * excess[slowest] * rest_s:
        return ALL
    return slowest
