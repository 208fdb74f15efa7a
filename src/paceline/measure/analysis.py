"""Find out from a run's records where the time of a step goes and which worker is slow.

The records are the worker files, `workers/RANK.jsonl` in the run's folder. The results are the split of the step time
into compute, communication and so on, the stragglers, and a timeline of a few steps for a chart. Each file is read
once.
"""

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
MOST_SPANS = 600  # limit per worker in the timeline; the longest spans are kept


def first_timeline_step(first: int, last: int) -> int:
    """Return the step at which the timeline begins.

    The timeline lies in the middle of the steps `first` to `last`, both included. If possible, it ends before step
    FULL_STEPS, because from that step on, only some steps have recorded spans.
    """
    middle = (first + last) // 2 - TIMELINE_STEPS // 2
    return max(min(middle, FULL_STEPS - TIMELINE_STEPS, last - TIMELINE_STEPS + 1), first, 0)


class TimelineBuilder:
    """Collects phases, comm operations and blocked times for the timeline chart."""

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
        """Return the timeline, or None if `add` has received no step of the timeline."""
        if not self._lanes:
            return None
        lanes = [Lane(rank=rank, spans=_longest(spans)) for rank, spans in sorted(self._lanes.items())]
        return Timeline(first_step=self._first_step, lanes=lanes)


def _timeline_span(name: str, kind: str, begin_s: float, end_s: float, nbytes: int | None = None) -> TimelineSpan:
    return TimelineSpan(name=name, kind=kind, begin_s=begin_s, end_s=end_s, bytes=nbytes)


def _longest(spans: list[TimelineSpan]) -> list[TimelineSpan]:
    """Return the MOST_SPANS longest spans, sorted by begin time."""
    longest = sorted(spans, key=lambda span: span.begin_s - span.end_s)[:MOST_SPANS]
    return sorted(longest, key=lambda span: (span.begin_s, -span.end_s))


class Analysis(Value, frozen=True, kw_only=True):
    """Split of the step time, stragglers and timeline of a run.

    `split` is None if no step was measured. `stragglers` is None for a single worker or for too few steps. `timeline`
    is None if none of the timeline's steps was measured.
    """

    split: Split | None = None
    stragglers: list[Straggler] | None = None
    timeline: Timeline | None = None


def analyse_folder(folder: Path, *, first: int, last: int, factors: Factors) -> Analysis:
    """Return the analysis of the steps from `first` to `last`, both included, of the run stored in `folder`.

    `factors` converts the size of a tensor to bytes sent and received (see `split.Factors`).
    """
    workers = {rank: read_steps(worker_lines(file)) for rank, file in worker_files(folder).items()}
    return analyse(workers, first=first, last=last, factors=factors)


def analyse(workers: Mapping[int, Iterable[StepLines]], *, first: int, last: int, factors: Factors) -> Analysis:
    """Return the analysis of the measured steps from `first` to `last`, both included.

    `workers` has the recorded steps of each rank in order. For `factors`, see `split.Factors`.
    """
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
    """Yield two dicts by rank for each step: the workers' records, and the splits of the workers' step time."""
    arrivals = Arrivals()
    # By rank: the previous step, and the intervals in which that step's transfers continue after its end.
    moving: dict[int, tuple[int, list[Interval]]] = {}
    for group in _delayed(group_by_step(workers), arrivals):
        splits = {}
        for rank, lines in group.items():
            step_before, continuing = moving.get(rank, (-1, []))
            is_next = step_before == lines.step - 1
            splits[rank] = split_step(rank, lines, arrivals, factors, continuing if is_next else ())
            moving[rank] = (lines.step, splits[rank].still_moving)
        yield group, splits


def _delayed(groups: Iterator[dict[int, StepLines]], arrivals: Arrivals) -> Iterator[dict[int, StepLines]]:
    """Yield each step of `groups` after adding the operations of this step and of the next step to `arrivals`.

    The analysis of a step needs the operations of the next step: a worker may wait for a message that its peer sends
    only in the peer's next step.
    """
    pending: deque[dict[int, StepLines]] = deque()
    for group in groups:
        arrivals.add(group)
        pending.append(group)
        if len(pending) > 1:
            yield pending.popleft()
    yield from pending
