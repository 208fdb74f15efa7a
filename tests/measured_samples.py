"""Invented measurements in the form that runs store; one worker is a straggler."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from paceline.results import (
    CompareResult,
    Link,
    NetworkUse,
    Overhead,
    Resources,
    Row,
    RunResult,
    Split,
    Straggler,
    Target,
    Timeline,
    WorkerNetwork,
    WorkerResources,
    changed,
    convert,
)
from paceline.study.entries import ONE_WORKER
from paceline.study.run_results import combine
from report_samples import result, study_of

PHASES = ("data", "forward", "backward", "optimizer")
WORKERS = 4
SLOW = 2  # the worker that is slow in backward


@dataclass(frozen=True)
class Kind:
    """Step time (ms), communication time (ms) and hidden share of communication of an invented strategy."""

    step: float
    communication: float = 0.0
    hidden: float = 0.0
    links: tuple[tuple[int, int], ...] = ()
    guarantee: str = "EXACT"


RING = tuple((rank, (rank + 1) % WORKERS) for rank in range(WORKERS))
STAR = tuple((rank, 0) for rank in range(1, WORKERS)) + tuple((0, rank) for rank in range(1, WORKERS))
KINDS = {
    ONE_WORKER: Kind(38.0),
    "none": Kind(13.1, guarantee="NONE"),
    "gather-scatter": Kind(26.4, communication=11.5, links=STAR),
    "ring": Kind(17.9, communication=5.2, links=RING),
    "all-reduce": Kind(18.6, communication=5.6, links=RING),
    "ddp": Kind(15.9, communication=5.4, hidden=0.62, links=RING),
    "overlap": Kind(14.4, communication=5.0, hidden=0.93, links=RING),
}


def measured(name: str, kind: Kind, *, has_slow: bool = True, label: str = "", **changes: Any) -> RunResult:
    """A result with every measurement."""
    given = result(label or name, kind.step / 1e3, guarantee=kind.guarantee, **changes)
    step = given.iteration_s.mean
    rows = [{"rank": rank, **_parts(kind, step, rank == SLOW and has_slow)} for rank in range(given.workers)]
    per_link = 2 * 3 / 4 * 61706 * 4 * given.steps * (4 / max(len(kind.links), 4))
    sent = {rank: per_link * sum(a == rank for a, _ in kind.links) for rank in range(given.workers)}
    straggler = Straggler(
        rank=SLOW,
        phase="backward",
        excess_s=0.0019,
        excess_percent=31.0,
        interval95_percent=(28.0, 34.0),
        steps=200,
    )
    sent_over_time = [int(sum(sent.values()) * s / given.steps) for s in given.curve.step]
    network = NetworkUse(per_worker=[_network(rank, sent[rank]) for rank in range(given.workers)])
    return changed(
        given,
        strategy=name,
        per_worker=[changed(worker, sent_bytes=int(sent[worker.rank])) for worker in given.per_worker],
        curve=changed(given.curve, sent_bytes=sent_over_time),
        split=convert({"mean": _mean(rows), "per_worker": rows}, Split),
        stragglers=[straggler] if has_slow and kind.links else [],
        timeline=timeline(kind, step, given.workers),
        resources=Resources(per_worker=[resources(rank, step * given.steps) for rank in range(given.workers)]),
        links=[
            Link(source=a, target=b, bytes=int(per_link), predicted_bytes=int(per_link), medium="network")
            for a, b in kind.links
        ],
        network=network if kind.links else None,
        target=_target(given, sum(sent.values())),
    )


def measured_row(name: str, kind: Kind, **changes: Any) -> Row:
    """A row of one repeat."""
    return changed(combine([measured(name, kind, **changes)]), measuring=_overhead(kind))


def measured_study(*, has_slow: bool = True, kinds: dict[str, Kind] = KINDS, **changes: Any) -> CompareResult:
    rows = []
    for name, kind in kinds.items():
        base = kind.step
        repeats = [
            Kind(base * (1 + 0.006 * n), kind.communication, kind.hidden, kind.links, kind.guarantee) for n in range(3)
        ]
        rows.append([measured(name, repeat, has_slow=has_slow) for repeat in repeats])
    study = study_of(rows, **changes)
    with_overhead = [
        changed(row, measuring=_overhead(kind)) for row, kind in zip(study.results, kinds.values(), strict=True)
    ]
    return changed(study, results=with_overhead)


def _overhead(kind: Kind) -> Overhead:
    return Overhead(cost_percent=0.8 + kind.step / 100, interval95_percent=(-0.2, 1.9), repeats=5)


def _parts(kind: Kind, step: float, is_slow: bool) -> dict[str, Any]:
    """The split of a step; the slow worker computes longer and the others wait."""
    communication = kind.communication / kind.step * step
    overlap, exposed = communication * kind.hidden, communication * (1 - kind.hidden)
    data, rest = 0.02 * step, 0.01 * step
    waiting = 0.0 if is_slow or not kind.links else 0.09 * step
    compute = step - overlap - exposed - data - rest - waiting
    own = {"data": data, "forward": 0.3 * compute, "backward": 0.6 * compute + overlap, "optimizer": 0.1 * compute}
    return {
        "step_s": step,
        "compute_s": compute,
        "communication_s": exposed,
        "overlap_s": overlap,
        "waiting_s": waiting,
        "data_s": data,
        "rest_s": rest,
        "overlap_fraction": overlap / communication if communication else None,
        "bandwidth_bytes_per_s": 2.1e8 if communication else None,
        "phases_s": own,
        "caused_waiting_s": 0.0,
    }


def _mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of every figure over workers; None where it is missing."""
    found: dict[str, Any] = {}
    for key, value in rows[0].items():
        if key == "phases_s":
            found[key] = {phase: sum(row[key][phase] for row in rows) / len(rows) for phase in PHASES}
        elif key != "rank":
            found[key] = None if value is None else sum(row[key] for row in rows) / len(rows)
    return found


def timeline(kind: Kind, step: float, num_workers: int, num_buckets: int = 4) -> Timeline:
    """Three steps of successive phases with one operation per bucket; the worker is blocked at the end of backward."""
    lanes = []
    for rank in range(num_workers):
        spans: list[dict[str, Any]] = []
        for number in range(3):
            parts = _parts(kind, step, rank == SLOW)
            at = 1.0 + number * step
            for phase in PHASES:
                long = parts["phases_s"][phase] + (parts["communication_s"] + parts["waiting_s"]) * (
                    phase == "backward"
                )
                spans.append({"name": phase, "kind": "phase", "begin_s": at, "end_s": at + long, "bytes": None})
                if phase == "backward" and kind.links:
                    spans += _operations(parts, at + long, num_buckets)
                at += long
        lanes.append({"rank": rank, "spans": spans})
    return convert({"first_step": 150, "lanes": lanes}, Timeline)


def _operations(parts: dict[str, Any], end: float, num_buckets: int) -> list[dict[str, Any]]:
    still = parts["communication_s"] + parts["waiting_s"]
    each = (parts["overlap_s"] + still) / num_buckets
    begin = end - each * num_buckets
    found = [
        {
            "name": "all_reduce",
            "kind": "op",
            "begin_s": begin + each * number,
            "end_s": begin + each * (number + 0.92),
            "bytes": 61706,
        }
        for number in range(num_buckets)
    ]
    return [*found, {"name": "all_reduce", "kind": "blocked", "begin_s": end - still, "end_s": end, "bytes": None}]


def resources(rank: int, seconds: float, num_points: int = 60) -> WorkerResources:
    """Invented resource samples; worker 1 writes far more to the disk than the others."""
    noise = random.Random(rank)
    times = [seconds * i / (num_points - 1) for i in range(num_points)]
    grown = [i / (num_points - 1) for i in range(num_points)]
    return WorkerResources(
        rank=rank,
        time_s=times,
        cpu_percent=[92 + 6 * math.sin(i / 4 + rank) + noise.uniform(-4, 4) for i in range(num_points)],
        rss_bytes=[int(2.1e8 + 2e7 * rank + 6e7 * (1 - math.exp(-5 * g))) for g in grown],
        disk_read_bytes=[0 for _ in grown],
        disk_written_bytes=[int(5e7 * g) if rank == 1 else int(2e5 * g) for g in grown],
        network_sent_bytes=[int(9e7 * g) for g in grown],
        network_received_bytes=[int(9e7 * g) for g in grown],
        gpu_percent=None,
        gpu_memory_bytes=None,
        peak_rss_bytes=None,
    )


def _network(rank: int, sent: float) -> WorkerNetwork:
    return WorkerNetwork(
        rank=rank,
        kernel_sent_bytes=int(sent * 1.021),
        kernel_received_bytes=int(sent * 1.021),
        comm_sent_bytes=int(sent),
        comm_received_bytes=int(sent),
        predicted_sent_bytes=int(sent),
        memory_bytes=0,
        retransmitted_bytes=None,
        header_bytes=None,
        node_sent_bytes=None,
        node_received_bytes=None,
    )


def _target(given: RunResult, sent: float) -> Target:
    if given.guarantee == "NONE":
        return Target(accuracy=0.9, reached=False, best=0.871)
    share = 0.7
    return Target(
        accuracy=0.9,
        reached=True,
        step=int(given.steps * share),
        epoch=2,
        train_s=given.train_s * share,
        sent_bytes=int(sent * share),
    )
