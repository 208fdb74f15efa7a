"""Everything that follows from the lines of all workers, in one pass over their files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from paceline.measure.arrivals import Arrivals
from paceline.measure.intervals import Interval
from paceline.measure.reading import StepLines, read_steps, together
from paceline.measure.split import Factors, SplitSum, StepSplit, split_step
from paceline.measure.stragglers import OwnWork, find_stragglers
from paceline.measure.timeline import Timeline, first_shown
from paceline.results import Split, Straggler, Value
from paceline.results import Timeline as TimelineResult
from paceline.worker_files import worker_files, worker_lines

Group = dict[int, StepLines]


class Analysis(Value, frozen=True, kw_only=True):
    """The findings in the files of all workers; None where nothing was measured."""

    split: Split | None = None
    stragglers: list[Straggler] | None = None
    timeline: TimelineResult | None = None


def analyse_folder(folder: Path, *, first: int, last: int, factors: Factors) -> Analysis:
    """The split, the stragglers and the timeline of a run whose workers wrote into this folder."""
    workers = {rank: read_steps(worker_lines(file)) for rank, file in worker_files(folder).items()}
    return analyse(workers, first=first, last=last, factors=factors)


def analyse(workers: Mapping[int, Iterable[StepLines]], *, first: int, last: int, factors: Factors) -> Analysis:
    """The same from measured steps; those from `first` to `last` count."""
    total, timeline = SplitSum(), Timeline(first_shown(first, last))
    own: dict[int, list[OwnWork]] = {rank: [] for rank in workers}
    for step, group, splits in _splits(workers, factors):
        if not first <= step <= last:
            continue
        for rank, lines in group.items():
            timeline.add(rank, lines)
        total.add(step, splits)
        if len(splits) == len(workers):
            for rank, split in splits.items():
                own[rank].append(split.own_s)
    found = total.result()
    if found is None:
        return Analysis()
    return Analysis(split=found, stragglers=find_stragglers(own), timeline=timeline.result())


def _splits(
    workers: Mapping[int, Iterable[StepLines]], factors: Factors
) -> Iterator[tuple[int, Group, dict[int, StepSplit]]]:
    """Step after step, what every worker wrote of it and how it divides."""
    arrivals = Arrivals()
    moving: dict[int, tuple[int, list[Interval]]] = {}
    for group in _one_behind(together(workers), arrivals):
        splits = {}
        for rank, lines in group.items():
            before, parts = moving.get(rank, (-1, []))
            splits[rank] = split_step(rank, lines, arrivals, factors, parts if before == lines.step - 1 else ())
            moving[rank] = (lines.step, splits[rank].still_moving)
        yield next(iter(group.values())).step, group, splits


def _one_behind(groups: Iterator[Group], arrivals: Arrivals) -> Iterator[Group]:
    """Hand on a step when the arrivals of the next are known too: a message may be sent in a later step."""
    held: deque[Group] = deque()
    for group in groups:
        arrivals.add(group)
        held.append(group)
        if len(held) > 1:
            yield held.popleft()
    yield from held
