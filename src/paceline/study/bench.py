"""The bench command: time collectives on every comm in one run, and report bandwidths as nccl-tests does.

A comm is a communication backend.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from paceline.comm import comms
from paceline.comm.worker_placement import AUTO, choose_comm
from paceline.errors import UsageError, unknown
from paceline.launch.base import Task, WorkerPool
from paceline.measure.environment import environment
from paceline.measure.stats import paired_ratio, summary
from paceline.parsing import first_repeated, words_in
from paceline.results.commands import Bench, CollectiveResult, CommSpeedup
from paceline.results.run import TimeSummary
from paceline.results.study import SCHEMA
from paceline.results.value import Json
from paceline.study.bench_trials import COPY, DTYPES, IN_PARTS, LARGEST, OPS, trial_job
from paceline.study.entries import reason_against_comm
from paceline.study.run_results import interval_of
from paceline.train.context import Event

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
REFERENCE = "torch"  # the comm with which the others are compared; if it is not measured, the first comm


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """The collectives, comms (communication backends) and tensor sizes to measure.

    The constructor raises UsageError if one of them is not valid.
    """

    ops: tuple[str, ...]
    comms: tuple[str, ...]
    sizes: tuple[int, ...]  # bytes
    dtype: str = "float32"
    workers: int = 4
    warmup: int = 5
    iterations: int = 20
    check: bool = True
    threads: int = 1
    num_nodes: int = 1

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("warmup", 0), ("iterations", 1), ("threads", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"--{name} {getattr(self, name)} is too few; use at least {least}")
        if self.dtype not in DTYPES:
            raise unknown("dtype", self.dtype, DTYPES)
        for op in self.ops:
            if op not in OPS:
                raise unknown("op", op, [*OPS, "all"])
        for kind, names in (("op", self.ops), ("comm", self.comms), ("size", self.sizes)):
            if not names:
                raise UsageError(f"no {kind} to measure; name at least one")
            repeated = first_repeated(names)
            if repeated is not None:
                raise UsageError(f"{kind} {repeated!r} is named twice; remove one")
        for size in self.sizes:
            if size % self.itemsize or not size:
                raise UsageError(
                    f"{size} bytes are not a whole number of {self.dtype} elements; use a multiple of {self.itemsize}"
                )
            for op in self.ops:
                if not self.numel(op, size):
                    raise UsageError(
                        f"{size} bytes cannot be cut into {self.workers} parts for {op}, one per worker; "
                        "use larger sizes"
                    )
        dtype = DTYPES[self.dtype]
        largest_sum = LARGEST * self.workers
        if self.check and dtype.is_floating_point and largest_sum > 2 / torch.finfo(dtype).eps:
            raise UsageError(f"{self.dtype} cannot hold sums over {self.workers} workers exactly; add --no-check")

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize

    @property
    def reference(self) -> str:
        """The comm (communication backend) relative to which the speed-ups of the others are reported."""
        return REFERENCE if REFERENCE in self.comms else self.comms[0]

    @property
    def num_rounds(self) -> int:
        return len(self.sizes) * len(self.ops) * (self.warmup + self.iterations)

    def numel(self, op: str, size: int) -> int:
        """Return the number of elements of a tensor of `size` bytes.

        For a collective that cuts the tensor into equal slices, one per worker, round the number down to a multiple of
        the number of workers.
        """
        numel = size // self.itemsize
        return numel - numel % self.workers if op in IN_PARTS else numel


def parse_bytes(text: str) -> int:
    """Parse a number of bytes such as 4096, 4K, 37M or 1G. K, M and G are powers of 1024, as in nccl-tests."""
    match = re.fullmatch(r"\s*(\d{1,18})\s*([KMG]?)\s*", text, re.IGNORECASE)
    if not match:
        raise UsageError(f"size {text!r} is not a number of bytes such as 4096, 4K, 37M or 1G")
    return int(match[1]) * UNITS[match[2].upper()]


def sizes_between(least: int, most: int, factor: int) -> tuple[int, ...]:
    """Return sizes that start at `least`, grow by `factor` from one to the next, and are at most `most`."""
    if least < 1:
        raise UsageError(f"--min-bytes {least} is too small; use at least 1")
    if least > most:
        raise UsageError(f"--min-bytes {least} is more than --max-bytes {most}; exchange them")
    if factor < 2:
        raise UsageError(f"--factor {factor} is too small; use at least 2")
    sizes = [least]
    while sizes[-1] * factor <= most:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def find_ops(text: str) -> tuple[str, ...]:
    return tuple(OPS) if text.strip() == "all" else words_in(text)


def find_comms(text: str | None, num_nodes: int = 1, *, num_workers: int = 1) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the comms (communication backends) to measure, and the reasons why other comms are left out.

    If `text` is None, return all comms that can be used here. Otherwise return the comms that `text` names, and no
    reasons. Raises UsageError if a named comm cannot be used here.
    """
    if text is None:
        between_processes = {name: cls for name, cls in comms.classes.items() if cls.between_processes}
        reasons = {name: reason_against_comm(name, num_nodes) for name in between_processes}
        usable = tuple(name for name, reason in reasons.items() if not reason)
        return usable, {name: reason for name, reason in reasons.items() if reason}
    given = words_in(text)
    chosen = choose_comm(num_workers=num_workers, num_nodes=num_nodes)
    names = tuple(chosen if name == AUTO else name for name in given if name != AUTO or chosen not in given)
    for name in names:
        reason = reason_against_comm(name, num_nodes)
        if reason:
            raise UsageError(f"comm {name!r} cannot be used here: {reason}; use another --comm")
    return names, {}


def bus_factor(op: str, world_size: int) -> float:
    """Return bus bandwidth / algorithm bandwidth: bytes that each worker must move per byte of the tensor.

    The operation gather-scatter computes the same result as an all-reduce, and gets the same factor, so that the
    bandwidths of both are comparable. In gather-scatter, rank 0 moves more bytes, which reduces the bandwidth.
    """
    share = (world_size - 1) / world_size
    factors = {"all_reduce": 2 * share, "ring": 2 * share, "gather-scatter": 2 * share}
    return {**factors, "reduce_scatter": share, "all_gather": share, "broadcast": 1.0}[op]


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Bandwidths of an operation, computed from the slowest worker's times.

    The copy limit is the bandwidth of plain memory copies, which are timed alternately with the operation.
    """

    time_s: TimeSummary
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    copy_limit_bytes_per_s: float
    percent_of_copy_limit: float


def bandwidth(
    op: str, num_bytes: int, world_size: int, times_s: Sequence[float], copy_times_s: Sequence[float]
) -> Bandwidth:
    """Return an operation's bandwidths for one tensor size.

    They are computed from the median of `times_s`, the times of the operation, and the median of `copy_times_s`, the
    times of a memory copy.
    """
    time_s = summary(times_s)
    algbw = num_bytes / time_s["p50"]
    busbw = algbw * bus_factor(op, world_size)
    copy_limit = num_bytes / summary(copy_times_s)["p50"]
    return Bandwidth(
        time_s=TimeSummary(**time_s),
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=busbw,
        copy_limit_bytes_per_s=copy_limit,
        percent_of_copy_limit=100 * busbw / copy_limit,
    )


def collective_results(
    plan: BenchRequest, op: str, num_bytes: int, workers: Sequence[Sequence[Json]]
) -> list[CollectiveResult]:
    """Return the table rows of one operation at one size.

    There is one row for each comm and each kind of memory that holds the result: `private` to a worker, `shared` by all
    workers, or `plain` (not allocated by the comm). `workers` has each worker's trials (timed implementations), as
    `trial_job` returns them for this operation and size.
    """
    slowest = [
        [max(times) for times in zip(*(trial["times_s"] for trial in trials), strict=True)]
        for trials in zip(*workers, strict=True)
    ]
    names = [(trial["op"], trial["comm"], trial["result"]) for trial in workers[0]]
    copy_times = slowest[[name[0] for name in names].index(COPY)]
    reference = names.index((op, plan.reference, "private"))
    rows = []
    for index, (name, comm, result) in enumerate(names):
        if name == COPY:
            continue
        wrong = [rank for rank, trials in enumerate(workers) if trials[index]["is_right"] is False]
        ratio = paired_ratio(slowest[reference], slowest[index])
        measured = bandwidth(op, num_bytes, plan.workers, slowest[index], copy_times)
        rows.append(
            CollectiveResult(
                op=op,
                comm=comm,
                result=result,
                world_size=plan.workers,
                bytes=num_bytes,
                dtype=plan.dtype,
                warmup=plan.warmup,
                iterations=plan.iterations,
                **vars(measured),
                speedup=CommSpeedup(over=plan.reference, value=ratio.value, interval95=interval_of(ratio)),
                correct=not wrong if plan.check else None,
                wrong_workers=wrong,
            )
        )
    return rows


def bench(
    plan: BenchRequest,
    launcher: WorkerPool,
    *,
    on_progress: Callable[[int, str], None],
    missing: dict[str, str] | None = None,
) -> Bench | None:
    """Measure every operation on every comm (communication backend) at every size.

    Return None in all processes but the main one, which alone receives the workers' times. `on_progress` is called with
    the number of completed rounds and the current operation. `missing` has the comms that cannot be used here, each
    with the reason.
    """
    started, facts = time.strftime("%Y-%m-%dT%H:%M:%S%z"), environment()
    rows: dict[str, list[CollectiveResult]] = {op: [] for op in plan.ops}
    rounds_per_size = plan.num_rounds // len(plan.sizes)
    for index, size in enumerate(plan.sizes):
        cases = [(op, plan.numel(op, size)) for op in plan.ops]
        arguments = {
            "comms": list(plan.comms),
            "cases": cases,
            "dtype": plan.dtype,
            "warmup": plan.warmup,
            "iterations": plan.iterations,
            "check": plan.check,
        }
        # The barriers before each timing use the same fast comm, no matter which comm is measured.
        barrier_comm = choose_comm(num_workers=plan.workers, num_nodes=plan.num_nodes)
        task = Task(trial_job, arguments, num_workers=plan.workers, comm=barrier_comm, threads=plan.threads)
        before = index * rounds_per_size

        def report_progress(event: Event, before: int = before) -> None:
            on_progress(before + event["rounds"], event["op"])

        workers = launcher.run(task, report_progress)
        on_progress(before + rounds_per_size, cases[-1][0])
        if not launcher.is_main:
            continue
        for case, (op, numel) in enumerate(cases):
            rows[op] += collective_results(plan, op, numel * plan.itemsize, [worker[case] for worker in workers])
    if not launcher.is_main:
        return None
    results = [row for op in plan.ops for row in rows[op]]
    return Bench(
        schema=SCHEMA,
        started=started,
        results=results,
        copy_limit_bytes_per_s=max(results, key=lambda row: row.bytes).copy_limit_bytes_per_s,
        reference=plan.reference,
        unavailable=missing or {},
        environment=facts,
    )
