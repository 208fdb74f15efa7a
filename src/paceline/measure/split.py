"""Split of a step's time into compute, communication, overlap, waiting, data and rest.

Every moment of a step belongs to exactly one part. While the worker's thread is blocked in an operation, it is waiting
until the last worker that the operation depends on arrives, and communicating afterwards. It is also communicating
while it moves bytes itself and while the loop waits for the strategy to synchronise. Otherwise it loads data or
computes; compute time in which bytes move is overlap. Time outside all phases is the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.measure.arrivals import Arrivals
from paceline.measure.intervals import Interval, Intervals, difference, intersection, length, union
from paceline.measure.observer import COMMUNICATION
from paceline.measure.step_reader import CommOp, StepLines, stands_for
from paceline.results import Split, SplitMean, WorkerSplit

PHASES = ("data", "forward", "backward", "optimizer")
PARTS = ("compute_s", "communication_s", "overlap_s", "waiting_s", "data_s", "rest_s")

# Bytes sent and received per byte of a tensor: (op, peer, rank) -> (sent, received), as the comm moves them.
Factors = Callable[[str, int | None, int], tuple[float, float]]


class Wait(NamedTuple):
    """A period of waiting for another worker."""

    begin_s: float
    end_s: float
    late_rank: int


@dataclass(frozen=True)
class StepSplit:
    """One step of one worker, in seconds."""

    step_s: float
    parts: dict[str, float]
    own_s: dict[str, float]  # own work by phase, without blocked time
    waits: list[Wait]
    transfer_s: float  # in which its operations moved bytes
    sent_bytes: float
    received_bytes: float
    num_operations: int  # operations with bytes
    still_moving: list[Interval]  # transfers that continue after the step


def split_step(
    rank: int, lines: StepLines, arrivals: Arrivals, factors: Factors, from_before: Iterable[Interval] = ()
) -> StepSplit:
    """Split one step of one worker; `from_before` are transfers that continue from the step before."""
    whole = [(lines.begin_s, lines.end_s)]

    def inside(parts: Iterable[Interval]) -> Intervals:
        return intersection(union(parts), whole)

    phases = {phase: inside((s.begin_s, s.end_s) for s in lines.spans if s.phase == phase) for phase in PHASES}
    covered = inside((s.begin_s, s.end_s) for s in lines.spans)
    synchronising = inside((s.begin_s, s.end_s) for s in lines.spans if s.phase == COMMUNICATION)
    blocked = inside((b.begin_s, b.end_s) for b in lines.blocked)
    waits = _waits(rank, lines, arrivals)
    waiting = intersection(inside((w.begin_s, w.end_s) for w in waits), blocked)
    own_ops = [op for op in lines.ops if lines.begin_s <= op.begin_s < lines.end_s]
    transfers = [arrivals.transfer(op, rank) for op in own_ops]
    moving = inside([*_hideable(own_ops, transfers, phases["optimizer"]), *from_before])
    busy = difference(covered, blocked)
    computing = difference(difference(busy, phases["data"]), synchronising)
    overlap = intersection(computing, moving)
    parts = {
        "compute_s": length(computing) - length(overlap),
        "communication_s": length(union([*blocked, *synchronising])) - length(waiting),
        "overlap_s": length(overlap),
        "waiting_s": length(waiting),
        "data_s": length(intersection(busy, phases["data"])),
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


def _hideable(ops: list[CommOp], transfers: list[Interval], updating: Intervals) -> Intervals:
    """Return the transfers that compute can overlap: each without the optimiser phase in which it began.

    A strategy that communicates in its optimiser step has no forward or backward to overlap with; work of its thread
    between two operations does not count as overlap.
    """
    found: Intervals = []
    for op, moved in zip(ops, transfers, strict=True):
        begun_in = [part for part in updating if part[0] <= op.begin_s < part[1]]
        found += difference([moved], begun_in) if moved[1] > moved[0] else []
    return found


def _waits(rank: int, lines: StepLines, arrivals: Arrivals) -> list[Wait]:
    """Return the blocked time before the last arrival of each operation, clipped to the step."""
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
    """Return the seconds that others waited for each rank; a rank that was itself waiting passes its share on."""
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


@dataclass
class WorkerSum:
    """Weighted sums over the steps of one worker; a kept step also counts for the steps not kept."""

    steps: float = 0.0
    step_s: float = 0.0
    transfer_s: float = 0.0
    sent_bytes: float = 0.0
    received_bytes: float = 0.0
    num_operations: float = 0.0
    caused_waiting_s: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    own_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def add(self, split: StepSplit, caused_s: float, step: int) -> None:
        weight = stands_for(step)
        self.steps += weight
        self.step_s += weight * split.step_s
        self.transfer_s += weight * split.transfer_s
        self.sent_bytes += weight * split.sent_bytes
        self.received_bytes += weight * split.received_bytes
        self.num_operations += weight * split.num_operations
        self.caused_waiting_s += weight * caused_s
        for part in PARTS:
            self.parts[part] += weight * split.parts[part]
        for phase in PHASES:
            self.own_s[phase] += weight * split.own_s[phase]

    def mean(self) -> SplitMean:
        """Return mean seconds per step and the values derived from them."""
        parts = {part: value / self.steps for part, value in self.parts.items()}
        moved_s = parts["overlap_s"] + parts["communication_s"]
        moved_bytes = max(self.sent_bytes, self.received_bytes)  # both directions run at once
        return SplitMean(
            step_s=self.step_s / self.steps,
            **parts,
            overlap_fraction=parts["overlap_s"] / moved_s if self.num_operations and moved_s else None,
            bandwidth_bytes_per_s=moved_bytes / self.transfer_s if self.transfer_s else None,
            phases_s={phase: value / self.steps for phase, value in self.own_s.items()},
            caused_waiting_s=self.caused_waiting_s / self.steps,
        )


class SplitSum:
    """The split of a run, summed step by step."""

    def __init__(self) -> None:
        self._workers: dict[int, WorkerSum] = {}

    def add(self, step: int, splits: Mapping[int, StepSplit]) -> None:
        caused = caused_waiting({rank: split.waits for rank, split in splits.items()})
        for rank, split in splits.items():
            self._workers.setdefault(rank, WorkerSum()).add(split, caused[rank], step)

    def result(self) -> Split | None:
        """Return means over steps, per worker and over all workers; None without measured steps."""
        if not self._workers:
            return None
        rows = [WorkerSplit(rank=rank, **total.mean()) for rank, total in sorted(self._workers.items())]
        return Split(mean=_mean_of_workers(list(self._workers.values())), per_worker=rows)


def _mean_of_workers(workers: list[WorkerSum]) -> SplitMean:
    total = WorkerSum()
    for worker in workers:
        names = ("steps", "step_s", "transfer_s", "sent_bytes", "received_bytes", "num_operations", "caused_waiting_s")
        for name in names:
            setattr(total, name, getattr(total, name) + getattr(worker, name))
        for sums, more in ((total.parts, worker.parts), (total.own_s, worker.own_s)):
            for key, value in more.items():
                sums[key] += value
    return total.mean()
