"""Analysis of worker files in one pass: the split of the step time, the stragglers, and a timeline of a few steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from paceline.measure.split import Factors, SplitSum, StepSplit, split_step
from paceline.measure.steps import FULL_STEPS, Arrivals, StepLines, group_by_step, read_steps
from paceline.measure.stragglers import OwnWork, find_stragglers
from paceline.results import Interval, Lane, Split, Straggler, Timeline, TimelineSpan, Value
from paceline.worker_files import worker_files, worker_lines

TIMELINE_STEPS = 3
MOST_SPANS = 600  # per worker in the timeline; the shortest are dropped


def first_timeline_step(first: int, last: int) -> int:
    """Return the step at which the timeline begins.

    The timeline lies in the middle of the steps `first` to `last`. If possible, it ends before FULL_STEPS, because the
    spans of some later steps are not recorded.
    """
    middle = (first + last) // 2 - TIMELINE_STEPS // 2
    return max(min(middle, FULL_STEPS - TIMELINE_STEPS, last - TIMELINE_STEPS + 1), first, 0)


class TimelineBuilder:
    """Collects the spans of TIMELINE_STEPS steps for the timeline chart."""

    def __init__(self, first_step: int) -> None:
        self._first_step = first_step
        self._lanes: dict[int, list[TimelineSpan]] = {}

    def add(self, rank: int, lines: StepLines) -> None:
        if not self._first_step <= lines.step < self._first_step + TIMELINE_STEPS:
            return
        lane = self._lanes.setdefault(rank, [])
        lane += [_timeline_span(span.phase, "phase", span.begin_s, span.end_s) for span in lines.spans]
        lane += [_timeline_span(op.key.op, "op", op.begin_s, op.end_s, op.nbytes) for op in lines.ops]
        lane += [_timeline_span(block.key.op, "blocked", block.begin_s, block.end_s) for block in lines.blocked]

    def result(self) -> Timeline | None:
        """Return the timeline, or None if none of its steps was measured."""
        if not self._lanes:
            return None
        lanes = [Lane(rank=rank, spans=_longest(spans)) for rank, spans in sorted(self._lanes.items())]
        return Timeline(first_step=self._first_step, lanes=lanes)


def _timeline_span(name: str, kind: str, begin_s: float, end_s: float, nbytes: int | None = None) -> TimelineSpan:
    return TimelineSpan(name=name, kind=kind, begin_s=begin_s, end_s=end_s, bytes=nbytes)


def _longest(spans: list[TimelineSpan]) -> list[TimelineSpan]:
    """Return the MOST_SPANS longest spans, sorted by their begin."""
    longest = sorted(spans, key=lambda span: span.begin_s - span.end_s)[:MOST_SPANS]
    return sorted(longest, key=lambda span: (span.begin_s, -span.end_s))


class Analysis(Value, frozen=True, kw_only=True):
    """Results of the analysis. A field is None if too little was measured for it."""

    split: Split | None = None
    stragglers: list[Straggler] | None = None
    timeline: Timeline | None = None


def analyse_folder(folder: Path, *, first: int, last: int, factors: Factors) -> Analysis:
    """Analyse the worker files of a run's folder."""
    workers = {rank: read_steps(worker_lines(file)) for rank, file in worker_files(folder).items()}
    return analyse(workers, first=first, last=last, factors=factors)


def analyse(workers: Mapping[int, Iterable[StepLines]], *, first: int, last: int, factors: Factors) -> Analysis:
    """Analyse the measured steps from `first` to `last`, both included."""
    total, timeline = SplitSum(), TimelineBuilder(first_timeline_step(first, last))
    own: dict[int, list[OwnWork]] = {rank: [] for rank in workers}
    for group, splits in _splits(workers, factors):
        step = next(iter(group.values())).step
        if not first <= step <= last:
            continue
        for rank, lines in group.items():
            timeline.add(rank, lines)
        total.add(step, splits)
        if len(splits) == len(workers):
            for rank, split in splits.items():
                own[rank].append(split.own_s)
    mean = total.result()
    if mean is None:
        return Analysis()
    return Analysis(split=mean, stragglers=find_stragglers(own), timeline=timeline.result())


def _splits(
    workers: Mapping[int, Iterable[StepLines]], factors: Factors
) -> Iterator[tuple[dict[int, StepLines], dict[int, StepSplit]]]:
    """Yield for each step, by rank, what the workers recorded in it and the split of their step time."""
    arrivals = Arrivals()
    moving: dict[int, tuple[int, list[Interval]]] = {}  # by rank: a step, and its transfers that continue after it
    for group in _delayed(group_by_step(workers), arrivals):
        splits = {}
        for rank, lines in group.items():
            step_before, continuing = moving.get(rank, (-1, []))
            is_next = step_before == lines.step - 1
            splits[rank] = split_step(rank, lines, arrivals, factors, continuing if is_next else ())
            moving[rank] = (lines.step, splits[rank].still_moving)
        yield group, splits


def _delayed(groups: Iterator[dict[int, StepLines]], arrivals: Arrivals) -> Iterator[dict[int, StepLines]]:
    """Add each step's operations to `arrivals`, and yield the step once the next one is added too.

    A worker may wait for a message that its peer sends only in the peer's next step.
    """
    pending: deque[dict[int, StepLines]] = deque()
    for group in groups:
        arrivals.add(group)
        pending.append(group)
        if len(pending) > 1:
            yield pending.popleft()
    yield from pending
