"""Analysis of worker files in one pass: the split, the stragglers, and a timeline of a few steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from paceline.measure.arrivals import Arrivals
from paceline.measure.intervals import Interval
from paceline.measure.split import Factors, SplitSum, StepSplit, split_step
from paceline.measure.step_reader import StepLines, read_steps, together
from paceline.measure.stragglers import OwnWork, find_stragglers
from paceline.results import Lane, Split, Straggler, TimelineSpan, Value
from paceline.results import Timeline as TimelineResult
from paceline.worker_files import worker_files, worker_lines

NUM_STEPS = 3
LAST_DENSE = 999  # not every later step is kept
MOST_SPANS = 600  # per lane; the shortest are dropped


def first_shown(first: int, last: int) -> int:
    """Return the first of NUM_STEPS steps in the middle of `first` to `last`, if possible where every step is kept."""
    first_of_three = min((first + last) // 2 - NUM_STEPS // 2, LAST_DENSE - NUM_STEPS + 1, last - NUM_STEPS + 1)
    return max(first_of_three, first, 0)


class TimelineBuilder:
    """Collects the spans of NUM_STEPS steps for the timeline chart."""

    def __init__(self, first_step: int) -> None:
        self._first_step = first_step
        self._lanes: dict[int, list[TimelineSpan]] = {}

    def add(self, rank: int, lines: StepLines) -> None:
        if not self._first_step <= lines.step < self._first_step + NUM_STEPS:
            return
        lane = self._lanes.setdefault(rank, [])
        lane += [_row(span.phase, "phase", span.begin_s, span.end_s) for span in lines.spans]
        lane += [_row(op.key.op, "op", op.begin_s, op.end_s, op.nbytes) for op in lines.ops]
        lane += [_row(stop.key.op, "blocked", stop.begin_s, stop.end_s) for stop in lines.blocked]

    def result(self) -> TimelineResult | None:
        """Return the timeline; None if none of its steps was measured."""
        if not self._lanes:
            return None
        lanes = [Lane(rank=rank, spans=_thinned(spans)) for rank, spans in sorted(self._lanes.items())]
        return TimelineResult(first_step=self._first_step, lanes=lanes)


def _row(name: str, kind: str, begin_s: float, end_s: float, nbytes: int | None = None) -> TimelineSpan:
    return TimelineSpan(name=name, kind=kind, begin_s=begin_s, end_s=end_s, bytes=nbytes)


def _thinned(spans: list[TimelineSpan]) -> list[TimelineSpan]:
    longest = sorted(spans, key=lambda span: span.begin_s - span.end_s)[:MOST_SPANS]
    return sorted(longest, key=lambda span: (span.begin_s, -span.end_s))


Group = dict[int, StepLines]


class Analysis(Value, frozen=True, kw_only=True):
    """Results of the analysis; None where nothing was measured."""

    split: Split | None = None
    stragglers: list[Straggler] | None = None
    timeline: TimelineResult | None = None


def analyse_folder(folder: Path, *, first: int, last: int, factors: Factors) -> Analysis:
    """Analyse the worker files of a run's folder."""
    workers = {rank: read_steps(worker_lines(file)) for rank, file in worker_files(folder).items()}
    return analyse(workers, first=first, last=last, factors=factors)


def analyse(workers: Mapping[int, Iterable[StepLines]], *, first: int, last: int, factors: Factors) -> Analysis:
    """Analyse the measured steps from `first` to `last`."""
    total, timeline = SplitSum(), TimelineBuilder(first_shown(first, last))
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
    """Yield each step with the lines and splits of its workers."""
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
    """Yield a step once the arrivals of the next are added: a message may be sent in a later step."""
    held: deque[Group] = deque()
    for group in groups:
        arrivals.add(group)
        held.append(group)
        if len(held) > 1:
            yield held.popleft()
    yield from held
