"""Convert the records of all workers to events of one trace, in which each worker is a process.

Arrows between the processes show messages. For a collective, they show which worker the other workers waited for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.measure.steps import StepRange
from paceline.measure.trace_format import (
    Arrows,
    Event,
    Slice,
    Track,
    counter,
    lanes,
    nested,
    process_names,
    thread_names,
)

Line = Mapping[str, Any]

PIDS_APART = 10_000  # between the ids of two workers, since viewers need thread ids unique over all processes
LEAST_WAIT_NS = 50_000  # shorter waits for the last worker of a collective get no arrow
MESSAGES = ("send", "recv")
# Names of counters in the viewer: levels are shown as they are, cumulative bytes as rates.
LEVELS = {
    "cpu_percent": "CPU (%)",
    "rss_bytes": "memory (bytes)",
    "gpu_percent": "GPU (%)",
    "gpu_memory_bytes": "GPU memory (bytes)",
}
RATES = {
    "disk_read_bytes": "disk read (bytes/s)",
    "disk_written_bytes": "disk written (bytes/s)",
    "network_sent_bytes": "network sent (bytes/s)",
    "network_received_bytes": "network received (bytes/s)",
}


@dataclass
class WorkerLines:
    """The lines of one worker's file for a range of steps, and all its resource samples."""

    rank: int
    head: Line = field(default_factory=dict)
    steps: list[Line] = field(default_factory=list)
    spans: list[Line] = field(default_factory=list)
    ops: list[Line] = field(default_factory=list)
    blocked: list[Line] = field(default_factory=list)
    samples: list[Line] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return pid_of(self.rank)

    @staticmethod
    def of(rank: int, lines: Iterable[Line], steps: StepRange) -> WorkerLines:
        """Return a WorkerLines with the lines of `steps`, the head line, and all resource samples."""
        worker = WorkerLines(rank)
        kinds = {"step": worker.steps, "span": worker.spans, "op": worker.ops, "blocked": worker.blocked}
        for line in lines:
            kind = line.get("kind")
            if kind == "head":
                worker.head = line
            elif kind == "sample":
                worker.samples.append(line)
            elif kind in kinds and "begin_s" in line and line["step"] in steps:
                kinds[kind].append(line)
        return worker

    @property
    def period_s(self) -> tuple[float, float] | None:
        """The first begin and the last end of all phases, operations and blocked times. None if there are none."""
        timed = [*self.spans, *self.ops, *self.blocked]
        if not timed:
            return None
        return min(line["begin_s"] for line in timed), max(line["end_s"] for line in timed)


@dataclass(frozen=True)
class DrawnOperation:
    """A comm operation, with the track and the slice that show it in the viewer."""

    rank: int
    line: Line
    track: Track
    piece: Slice


def pid_of(rank: int) -> int:
    return (rank + 1) * PIDS_APART


def merged_events(workers: Sequence[WorkerLines], arrows: Arrows) -> list[Event]:
    """Return the events of all workers' tracks, and of the arrows between these tracks."""
    events: list[Event] = []
    drawn: list[DrawnOperation] = []
    for worker in sorted(workers, key=lambda worker: worker.rank):
        operations, num_lanes = _draw_operations(worker)
        events += _names(worker, num_lanes)
        events += [piece.event(Track(worker.pid, worker.pid)) for piece in nested(_loop_slices(worker))]
        events += [operation.piece.event(operation.track) for operation in operations]
        events += _resource_counters(worker)
        drawn += operations
    return [*events, *_message_arrows(drawn, arrows), *_collective_arrows(drawn, arrows)]


def _names(worker: WorkerLines, num_lanes: int) -> Iterator[Event]:
    host = f" on {worker.head['host']}" if worker.head.get("host") else ""
    process = f", process {worker.head['pid']}" if worker.head.get("pid") else ""
    yield from process_names(worker.pid, f"worker {worker.rank}{host}{process}", worker.rank)
    yield from thread_names(Track(worker.pid, worker.pid), "loop", 0)
    for lane in range(num_lanes):
        name = "communication" if lane == 0 else f"communication {lane + 1}"
        yield from thread_names(_lane(worker, lane), name, lane + 1)


def _lane(worker: WorkerLines, lane: int) -> Track:
    return Track(worker.pid, worker.pid + 1 + lane)


def _loop_slices(worker: WorkerLines) -> Iterator[Slice]:
    """Yield the slices of a worker's loop: steps, phases, and times blocked in the comm."""
    for line in worker.steps:
        args = {key: line[key] for key in ("loss", "num_samples", "sent_bytes") if key in line}
        end_s = line["begin_s"] + line["iteration_s"]
        yield Slice.of(f"step {line['step']}", "step", line["begin_s"], end_s, args)
    for line in worker.spans:
        yield _slice(line, line["phase"], "phase", ("step",))
    for line in worker.blocked:
        yield _slice(line, f"blocked in {_title(line)}", "blocked", ("step", "number", "peer", "tag"))


def _slice(line: Line, name: str, category: str, keys: Sequence[str]) -> Slice:
    args = {key: line[key] for key in keys if line.get(key) is not None}
    return Slice.of(name, category, line["begin_s"], line["end_s"], args)


def _title(line: Line) -> str:
    """Return an operation's name and peer, such as `send to 2` or `broadcast from 0`.

    Without a peer, return only the name, such as `all_reduce`.
    """
    if line.get("peer") is None:
        return str(line["op"])
    word = "to" if line["op"] in ("send", "gather") else "from"
    return f"{line['op']} {word} {line['peer']}"


def _draw_operations(worker: WorkerLines) -> tuple[list[DrawnOperation], int]:
    """Assign a worker's comm operations to tracks; concurrent operations get different tracks.

    Return the operations and the number of tracks.
    """
    keys = ("step", "bytes", "number", "peer", "tag", "medium")
    pieces = [_slice(line, _title(line), "communication", keys) for line in worker.ops]
    chosen = lanes(pieces)
    drawn = [
        DrawnOperation(worker.rank, line, _lane(worker, lane), piece)
        for line, piece, lane in zip(worker.ops, pieces, chosen, strict=True)
    ]
    return drawn, max(chosen, default=-1) + 1


def _message_arrows(drawn: Sequence[DrawnOperation], arrows: Arrows) -> Iterator[Event]:
    """Yield an arrow from every send to the receive of its message."""
    sends = {_message_identity(one): one for one in drawn if one.line["op"] == "send"}
    for one in drawn:
        send = sends.get(_message_identity(one)) if one.line["op"] == "recv" else None
        if send is not None:
            source, target = (send.track, send.piece), (one.track, one.piece)
            yield from arrows.between_slices(
                "message", source, target, leaves_ns=send.piece.begin_ns, arrives_ns=one.piece.end_ns
            )


def _message_identity(one: DrawnOperation) -> tuple[int, int, int, int]:
    """Return (sender, receiver, tag, number), which is equal for a message's send and receive."""
    here, there = one.rank, one.line["peer"]
    ends = (here, there) if one.line["op"] == "send" else (there, here)
    return (*ends, one.line["tag"], one.line["number"])


def _collective_arrows(drawn: Sequence[DrawnOperation], arrows: Arrows) -> Iterator[Event]:
    """For each collective, yield an arrow to every worker that waited, from the worker that it waited for."""
    collectives: dict[tuple[str, int], list[DrawnOperation]] = defaultdict(list)
    for one in drawn:
        if one.line["op"] not in MESSAGES:
            collectives[one.line["op"], one.line["number"]].append(one)
    for members in collectives.values():
        last, waiting = _last_and_waiting(members)
        arrived_ns = last.piece.begin_ns
        for one in waiting:
            if arrived_ns - one.piece.begin_ns >= LEAST_WAIT_NS and one.piece.end_ns > arrived_ns:
                source, target = (last.track, last.piece), (one.track, one.piece)
                times = {"leaves_ns": arrived_ns, "arrives_ns": arrived_ns}
                yield from arrows.between_slices("last arrival", source, target, **times)


def _last_and_waiting(members: list[DrawnOperation]) -> tuple[DrawnOperation, list[DrawnOperation]]:
    """Return the operation of the worker that was the last to call a collective, and those of the waiting workers.

    In a broadcast or scatter, all workers wait for the root. The root's operation is therefore returned first, even if
    other workers called later. In a gather, only the root waits.
    """
    op, root = members[0].line["op"], members[0].line["peer"]
    roots = [one for one in members if one.rank == root]
    others = [one for one in members if one.rank != root]
    if op in ("broadcast", "scatter") and roots:
        return roots[0], others
    last = max(others if op == "gather" and others else members, key=lambda one: one.piece.begin_ns)
    return last, roots if op == "gather" else [one for one in members if one is not last]


def _resource_counters(worker: WorkerLines) -> Iterator[Event]:
    """Yield counter events from resource samples during, just before and just after the steps."""
    period_s = worker.period_s
    if period_s is None:
        return
    samples = sorted(worker.samples, key=lambda line: line["time_s"])
    before: Line | None = None
    for line in _samples_around(samples, *period_s):
        time_s = line["time_s"]
        for key, name in LEVELS.items():
            if line.get(key) is not None:
                yield counter(worker.pid, name, time_s, line[key])
        if before is not None and time_s > before["time_s"]:
            for key, name in RATES.items():
                if line.get(key) is not None and before.get(key) is not None:
                    # A viewer shows a counter's value until the next event, so the rate begins at the earlier sample.
                    rate = (line[key] - before[key]) / (time_s - before["time_s"])
                    yield counter(worker.pid, name, before["time_s"], rate)
        before = line


def _samples_around(samples: Sequence[Line], begin_s: float, end_s: float) -> list[Line]:
    """Return the samples from `begin_s` to `end_s`, the last one before `begin_s`, and the first one after `end_s`."""
    first = max((i for i, line in enumerate(samples) if line["time_s"] <= begin_s), default=0)
    last = min((i for i, line in enumerate(samples) if line["time_s"] >= end_s), default=len(samples) - 1)
    return list(samples[first : last + 1])
