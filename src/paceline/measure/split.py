"""Split the time of a worker's step into compute, communication, overlap, waiting, data loading and rest.

Every moment of a step belongs to exactly one of these parts:

- waiting: the worker's thread is blocked in a comm operation that another worker has not called yet
- communication: the thread is blocked in a comm operation that all needed workers have called; or the thread copies or
  adds data for an operation; or the thread is in the phase in which the loop waits for the strategy to synchronise
- data: the thread loads data
- overlap: the thread computes while a transfer is in progress
- compute: the thread computes while no transfer is in progress
- rest: the time outside all phases
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from paceline.measure.observer import COMMUNICATION, WORK_PHASES
from paceline.measure.steps import Arrivals, CommOp, StepLines, num_steps_represented
from paceline.results import Interval, Split, SplitMean, WorkerSplit

PARTS = ("compute_s", "communication_s", "overlap_s", "waiting_s", "data_s", "rest_s")

# Function (op, peer, rank) -> (sent, received): bytes that worker `rank` sends and receives in an operation, per byte
# of the operation's tensor.
Factors = Callable[[str, int | None, int], tuple[float, float]]

Intervals = list[Interval]  # sorted and disjoint


def union(parts: Iterable[Interval]) -> Intervals:
    """Return the time covered by any of the intervals `parts`, as sorted, disjoint intervals."""
    found: Intervals = []
    for begin, end in sorted(part for part in parts if part[1] > part[0]):
        if found and begin <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return found


def intersection(ours: Intervals, theirs: Intervals) -> Intervals:
    """Return the time covered by both `ours` and `theirs`, as sorted, disjoint intervals."""
    found: Intervals = []
    i = j = 0
    while i < len(ours) and j < len(theirs):
        begin, end = max(ours[i][0], theirs[j][0]), min(ours[i][1], theirs[j][1])
        if end > begin:
            found.append((begin, end))
        if ours[i][1] < theirs[j][1]:
            i += 1
        else:
            j += 1
    return found


def difference(ours: Intervals, theirs: Intervals) -> Intervals:
    """Return the time covered by `ours` but not by `theirs`, as sorted, disjoint intervals."""
    found: Intervals = []
    j = 0
    for begin, end in ours:
        while j < len(theirs) and theirs[j][1] <= begin:
            j += 1
        k = j
        while k < len(theirs) and theirs[k][0] < end:
            if theirs[k][0] > begin:
                found.append((begin, theirs[k][0]))
            begin = max(begin, theirs[k][1])
            k += 1
        if end > begin:
            found.append((begin, end))
    return found


def length(parts: Iterable[Interval]) -> float:
    """Return the total duration of disjoint intervals."""
    return sum(end - begin for begin, end in parts)


class Wait(NamedTuple):
    """A period in which a worker waited for the worker `late_rank`."""

    begin_s: float
    end_s: float
    late_rank: int


@dataclass(frozen=True)
class StepSplit:
    """How one worker spent one step. Times are in seconds."""

    step_s: float
    parts: dict[str, float]  # by name in PARTS
    own_s: dict[str, float]  # time of each work phase, without time blocked in the comm
    waits: list[Wait]
    transfer_s: float  # time in which the step's operations moved bytes
    sent_bytes: float
    received_bytes: float
    num_operations: int  # comm operations that move bytes
    still_moving: list[Interval]  # intervals after the step's end in which its transfers continue


def split_step(
    rank: int, lines: StepLines, arrivals: Arrivals, factors: Factors, continuing: Iterable[Interval] = ()
) -> StepSplit:
    """Return the split of one step of one worker.

    `continuing` has the intervals in which transfers of the previous step continue in this step.
    """
    whole = [(lines.begin_s, lines.end_s)]

    def inside(parts: Iterable[Interval]) -> Intervals:
        return intersection(union(parts), whole)

    phases = {phase: inside((s.begin_s, s.end_s) for s in lines.spans if s.phase == phase) for phase in WORK_PHASES}
    covered = inside((s.begin_s, s.end_s) for s in lines.spans)
    synchronising = inside((s.begin_s, s.end_s) for s in lines.spans if s.phase == COMMUNICATION)
    blocked = inside((b.begin_s, b.end_s) for b in lines.blocked)
    waits = _waits(rank, lines, arrivals)
    waiting = intersection(inside((w.begin_s, w.end_s) for w in waits), blocked)
    own_ops = [op for op in lines.ops if lines.begin_s <= op.begin_s < lines.end_s]
    transfers = [arrivals.transfer(op, rank) for op in own_ops]
    moving = inside([*_overlappable(own_ops, transfers, phases["optimizer"]), *continuing])
    running = difference(covered, blocked)
    computing = difference(difference(running, phases["data"]), synchronising)
    overlap = intersection(computing, moving)
    parts = {
        "compute_s": length(computing) - length(overlap),
        "communication_s": length(union([*blocked, *synchronising])) - length(waiting),
        "overlap_s": length(overlap),
        "waiting_s": length(waiting),
        "data_s": length(intersection(running, phases["data"])),
        "rest_s": length(difference(difference(whole, covered), blocked)),
    }
    wire = [(op.nbytes, factors(op.key.op, op.key.peer, rank)) for op in own_ops]
    return StepSplit(
        step_s=lines.iteration_s,
        parts=parts,
        own_s={phase: length(difference(found, blocked)) for phase, found in phases.items()},
        waits=waits,
        transfer_s=length(union(transfers)),
        sent_bytes=sum(nbytes * sent for nbytes, (sent, _) in wire),
        received_bytes=sum(nbytes * received for nbytes, (_, received) in wire),
        num_operations=sum(op.nbytes > 0 for op in own_ops),
        still_moving=[(lines.end_s, end) for _, end in transfers if end > lines.end_s],
    )


def _overlappable(ops: list[CommOp], transfers: list[Interval], updating: Intervals) -> Intervals:
    """Return the parts of the transfers during which computation counts as overlap.

    `updating` has the optimiser phases. If a transfer began in an optimiser phase, its time in that phase is excluded,
    because a strategy that communicates in the optimiser step does not hide its communication behind forward or
    backward.
    """
    found: Intervals = []
    for op, moved in zip(ops, transfers, strict=True):
        begun_in = [part for part in updating if part[0] <= op.begin_s < part[1]]
        found += difference([moved], begun_in) if moved[1] > moved[0] else []
    return found


def _waits(rank: int, lines: StepLines, arrivals: Arrivals) -> list[Wait]:
    """Return the periods of a step in which the worker was blocked by a late worker.

    The late worker is the worker that called the operation last.
    """
    found = []
    for blocked in lines.blocked:
        if blocked.is_busy:
            continue
        arrival = arrivals.last(blocked.key, rank, blocked.end_s)
        if arrival is None or arrival.rank == rank:
            continue
        begin_s, end_s = max(blocked.begin_s, lines.begin_s), min(blocked.end_s, arrival.time_s, lines.end_s)
        if end_s > begin_s:
            found.append(Wait(begin_s, end_s, arrival.rank))
    return found


def caused_waiting(waits: Mapping[int, list[Wait]]) -> dict[int, float]:
    """Return, by rank, how many seconds other workers waited for that rank.

    `waits` has the waits of each rank. While a late rank itself waited for another rank, the time counts for that other
    rank.
    """
    in_order = {rank: sorted(own) for rank, own in waits.items()}
    ends = {rank: [wait.end_s for wait in own] for rank, own in in_order.items()}
    caused = dict.fromkeys(waits, 0.0)

    def charge(wait: Wait, blamed: tuple[int, ...]) -> None:
        late = wait.late_rank
        own_s = wait.end_s - wait.begin_s
        theirs = in_order.get(late, [])
        for other in theirs[bisect_right(ends.get(late, []), wait.begin_s) :]:  # a thread waits for one thing at a time
            if other.begin_s >= wait.end_s:
                break
            if other.late_rank not in blamed:  # only clock errors cause a cycle: stop there
                common = Wait(max(wait.begin_s, other.begin_s), min(wait.end_s, other.end_s), other.late_rank)
                own_s -= common.end_s - common.begin_s
                charge(common, (*blamed, other.late_rank))
        caused[late] = caused.get(late, 0.0) + own_s

    for rank, own_waits in waits.items():
        for wait in own_waits:
            charge(wait, (rank, wait.late_rank))
    return caused


class WorkerSum:
    """Sums of quantities such as `step_s` over the steps of one worker, by name of the quantity."""

    def __init__(self) -> None:
        self.sums: defaultdict[str, float] = defaultdict(float)

    def add(self, quantities: Mapping[str, float], weight: float = 1.0) -> None:
        for name, value in quantities.items():
            self.sums[name] += weight * value

    def mean(self) -> SplitMean:
        """Return the mean times per step, the overlap fraction and the bandwidth."""
        sums, steps = self.sums, self.sums["steps"]
        parts = {part: sums[part] / steps for part in PARTS}
        moved_s = parts["overlap_s"] + parts["communication_s"]
        moved_bytes = max(sums["sent_bytes"], sums["received_bytes"])  # both directions run simultaneously
        return SplitMean(
            step_s=sums["step_s"] / steps,
            **parts,
            overlap_fraction=parts["overlap_s"] / moved_s if sums["num_operations"] and moved_s else None,
            bandwidth_bytes_per_s=moved_bytes / sums["transfer_s"] if sums["transfer_s"] else None,
            phases_s={phase: sums[phase] / steps for phase in WORK_PHASES},
            caused_waiting_s=sums["caused_waiting_s"] / steps,
        )


class SplitSum:
    """Sums up the splits of all steps and workers of a run."""

    def __init__(self) -> None:
        self._workers: dict[int, WorkerSum] = {}

    def add(self, step: int, splits: Mapping[int, StepSplit]) -> None:
        """Add one step of all workers, weighted by the number of steps that it represents.

        In a long run, the spans of only some steps are recorded, and each of these represents several steps.
        """
        caused = caused_waiting({rank: split.waits for rank, split in splits.items()})
        for rank, split in splits.items():
            quantities = {
                "steps": 1.0,
                "step_s": split.step_s,
                "transfer_s": split.transfer_s,
                "sent_bytes": split.sent_bytes,
                "received_bytes": split.received_bytes,
                "num_operations": split.num_operations,
                "caused_waiting_s": caused[rank],
                **split.parts,
                **split.own_s,
            }
            self._workers.setdefault(rank, WorkerSum()).add(quantities, num_steps_represented(step))

    def result(self) -> Split | None:
        """Return averages per step, for each worker and over all workers, or None if no step was measured."""
        if not self._workers:
            return None
        total = WorkerSum()
        for worker in self._workers.values():
            total.add(worker.sums)
        rows = [WorkerSplit(rank=rank, **worker.mean()) for rank, worker in sorted(self._workers.items())]
        return Split(mean=total.mean(), per_worker=rows)
