"""Who is slow: work of one's own against that of the others, even though every worker's step takes equally long.

A worker's own work is what its phases last without what it was blocked. Steps are taken together in blocks, and a
worker is compared with the median of the others block by block, so that what slows the machine for a while slows
both sides, and a hiccup spoils one block alone. The typical excess is the median over blocks, and its interval comes
from the order of the blocks: nothing is assumed of how times scatter.

Blocks are looked at twice. Their median steps show who is slow in most steps, however long a worker now and then stands
without a core; their mean steps show who is slow in some steps all through the run. Intervals hold for all workers and
both looks together, so that many workers do not make it likely that one of them is named by chance.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from paceline.measure.split import PHASES
from paceline.measure.stats import interval95_of_median
from paceline.results import Straggler

LEAST_STEPS = 50
LEAST_EXCESS = 0.10  # of the others' own work
BLOCKS = 20
LEAST_BLOCK = 3  # steps
EVEN = 1 / 3  # phases are slow alike when the rest is at least this much as slow as the slowest one, in proportion
ALL = "all"

NUM_LOOKS = 2

OwnWork = Mapping[str, float]  # seconds by phase, of one step
Block = dict[str, float]  # the same of several steps, and in all


def find_stragglers(own: Mapping[int, Sequence[OwnWork]]) -> list[Straggler] | None:
    """The slow ones among workers, the slowest first, from every worker's own work in the same steps.

    None where that cannot be told: there is nobody to compare with, or there are too few steps.
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
    """Typical own work, by phase and in all, in blocks of steps that follow each other, as even as can be."""
    count = min(BLOCKS, len(steps) // LEAST_BLOCK)
    bounds = [len(steps) * block // count for block in range(count + 1)]
    return [
        {
            **{phase: typical([step[phase] for step in steps[begin:end]]) for phase in PHASES},
            ALL: typical([sum(step.values()) for step in steps[begin:end]]),
        }
        for begin, end in pairwise(bounds)
    ]


def _judge(rank: int, blocks: Mapping[int, list[Block]], num_steps: int) -> Straggler | None:
    others = [theirs for other, theirs in blocks.items() if other != rank]
    usual_s, excess = _excess(blocks[rank], others, ALL)
    excess_s = statistics.median(excess)
    low, high = interval95_of_median(excess, num_together=NUM_LOOKS * len(blocks))
    if usual_s <= 0 or excess_s <= LEAST_EXCESS * usual_s or low <= 0:
        return None
    phase = _slow_phase(blocks[rank], others)
    _, of_phase = _excess(blocks[rank], others, phase)
    bounds = interval95_of_median(of_phase, num_together=NUM_LOOKS * len(blocks))
    if bounds[0] > 0:
        excess_s, (low, high) = statistics.median(of_phase), bounds
    else:
        phase = ALL  # slow for certain, but no single phase is
    return Straggler(
        rank=rank,
        phase=phase,
        excess_s=excess_s,
        excess_percent=100 * excess_s / usual_s,
        interval95_percent=(100 * low / usual_s, 100 * high / usual_s),
        steps=num_steps,
    )


def _excess(own: list[Block], others: list[list[Block]], phase: str) -> tuple[float, list[float]]:
    """What the others need, and what this worker needs beyond that in every block."""
    usual = [statistics.median(theirs[index][phase] for theirs in others) for index in range(len(own))]
    return statistics.median(usual), [block[phase] - theirs for block, theirs in zip(own, usual, strict=True)]


def _slow_phase(own: list[Block], others: list[list[Block]]) -> str:
    """The phase with the largest excess; all of them where the rest is slow to a similar degree.

    A phase in which others are the slow ones does not make up for those in which this one is.
    """
    usual, excess = {}, {}
    for phase in PHASES:
        usual[phase], in_blocks = _excess(own, others, phase)
        excess[phase] = statistics.median(in_blocks)
    slowest = max(PHASES, key=lambda phase: excess[phase])
    rest_s = sum(usual.values()) - usual[slowest]
    rest_excess_s = sum(max(excess[phase], 0.0) for phase in PHASES if phase != slowest)
    # Cross-multiplied, since a phase may be empty on the others.
    if rest_s > 0 and rest_excess_s * usual[slowest] >= EVEN * excess[slowest] * rest_s:
        return ALL
    return slowest
