"""A few steps of all workers as lanes of a chart."""

from __future__ import annotations

from paceline.measure.reading import StepLines
from paceline.results import Lane, TimelineSpan
from paceline.results import Timeline as TimelineResult

NUM_STEPS = 3
LAST_DENSE = 999  # of later steps not every one is kept
MOST_SPANS = 600  # of one lane: the shortest are left out


def first_shown(first: int, last: int) -> int:
    """Where three steps from the middle of steps `first` to `last` begin, if possible where every step was kept."""
    first_of_three = min((first + last) // 2 - NUM_STEPS // 2, LAST_DENSE - NUM_STEPS + 1, last - NUM_STEPS + 1)
    return max(first_of_three, first, 0)


class Timeline:
    """Collects the spans of the steps that are shown."""

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
        """None where none of the steps was measured."""
        if not self._lanes:
            return None
        lanes = [Lane(rank=rank, spans=_thinned(spans)) for rank, spans in sorted(self._lanes.items())]
        return TimelineResult(first_step=self._first_step, lanes=lanes)


def _row(name: str, kind: str, begin_s: float, end_s: float, nbytes: int | None = None) -> TimelineSpan:
    return TimelineSpan(name=name, kind=kind, begin_s=begin_s, end_s=end_s, bytes=nbytes)


def _thinned(spans: list[TimelineSpan]) -> list[TimelineSpan]:
    longest = sorted(spans, key=lambda span: span.begin_s - span.end_s)[:MOST_SPANS]
    return sorted(longest, key=lambda span: (span.begin_s, -span.end_s))
