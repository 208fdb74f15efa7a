"""The worker side of the bench command: time collectives on all comms in turn, and a memory copy for comparison.

A comm is a communication backend.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from paceline.comm import Comm, Reduction
from paceline.results.value import Json
from paceline.strategies.gather_scatter import gather_scatter
from paceline.strategies.ring import BufferPool, ring_all_reduce
from paceline.train.context import Context

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
}
COPY = "copy"
# Number of elements after which test numbers repeat. It is a prime, so that a misplaced chunk of a tensor is noticed.
PERIOD = 251
LARGEST = 2  # the largest test number, so small that sums are exact in every dtype and in any order
REPORT_EVERY_S = 0.25  # not more often, because drawing the progress bar takes CPU time


class Trial(ABC):
    """One timed implementation of a collective on one comm (communication backend).

    The input is filled again before every repetition.
    """

    result: ClassVar[str] = "private"  # memory that holds the result: private, plain or shared; see docs/commands.md

    def __init__(self, comm: Comm, numel: int, dtype: torch.dtype) -> None:
        self.comm = comm
        self.numel = numel
        self.dtype = dtype
        self.input = self.make_input()

    def make_input(self) -> Tensor:
        return torch.zeros(self.numel, dtype=self.dtype)

    def fill(self) -> None:
        """Fill the input before timing, with numbers whose sums do not overflow."""
        self.input.fill_(1)

    def fill_to_check(self) -> None:
        """Fill the input with numbers that differ between positions and between workers, to reveal errors."""
        self.input.copy_(self.numbers_of(self.comm.rank, self.input.numel()))

    @abstractmethod
    def do(self) -> None:
        """Execute the operation that is timed."""

    @abstractmethod
    def is_right(self) -> bool:
        """Return whether `do` gave the correct result on this worker, after `fill_to_check` filled the input."""

    def numbers_of(self, rank: int, numel: int) -> Tensor:
        return self._tiled(_one_period(rank), numel)

    def sum_of_all(self) -> Tensor:
        total = torch.stack([_one_period(rank) for rank in range(self.comm.world_size)]).sum(0)
        return self._tiled(total, self.numel)

    def _tiled(self, period: Tensor, numel: int) -> Tensor:
        return period.to(self.dtype).repeat(-(-numel // PERIOD))[:numel]


class CopyTrial(Trial):
    """A copy between two buffers, on all workers at the same time. Its bandwidth is reported as the copy limit."""

    def make_input(self) -> Tensor:
        self.output = torch.zeros(self.numel, dtype=self.dtype)
        return super().make_input()

    def do(self) -> None:
        self.output.copy_(self.input)

    def is_right(self) -> bool:
        return torch.equal(self.output, self.input)


class AllReduceTrial(Trial):
    def do(self) -> None:
        self.comm.all_reduce(self.input)

    def is_right(self) -> bool:
        return torch.equal(self.input, self.sum_of_all())


class PlainAllReduce(AllReduceTrial):
    """All-reduce of a tensor in ordinary memory, on a comm that also provides faster memory for tensors."""

    result: ClassVar[str] = "plain"


class ReductionTrial(Trial):
    """All-reduce of a tensor in memory that the comm provides. Every worker gets a result of its own.

    The tensor is filled before timing starts, as backward would fill it with gradients.
    """

    is_shared: ClassVar[bool] = False

    def make_input(self) -> Tensor:
        self.reduction: Reduction = self.comm.reduction(
            self.numel, self.dtype, torch.device("cpu"), shared=self.is_shared
        )
        return self.reduction.own

    def do(self) -> None:
        self.reduction.start(0, self.numel).wait()

    def is_right(self) -> bool:
        return torch.equal(self.reduction.result, self.sum_of_all())


class SharedReduction(ReductionTrial):
    """All-reduce of a tensor in memory that the comm provides, with one result that all workers share."""

    result: ClassVar[str] = "shared"
    is_shared: ClassVar[bool] = True

    @property
    def has_separate_result(self) -> bool:
        return self.reduction.result.data_ptr() != self.reduction.own.data_ptr()


class RingTrial(AllReduceTrial):
    """Ring all-reduce, implemented with the comm's point-to-point messages."""

    def make_input(self) -> Tensor:
        self._pool = BufferPool()
        return super().make_input()

    def do(self) -> None:
        ring_all_reduce(self.input, self.comm, self._pool)


class GatherScatterTrial(AllReduceTrial):
    def do(self) -> None:
        gather_scatter(self.input, self.comm)


class ReduceScatter(Trial):
    def make_input(self) -> Tensor:
        self.output = torch.zeros(self.numel // self.comm.world_size, dtype=self.dtype)
        return super().make_input()

    def do(self) -> None:
        self.comm.reduce_scatter(self.output, self.input)

    def is_right(self) -> bool:
        return torch.equal(self.output, self.sum_of_all().view(self.comm.world_size, -1)[self.comm.rank])


class AllGather(Trial):
    """All-gather. The gathered result has `numel` elements, to which every worker contributes an equal share."""

    def make_input(self) -> Tensor:
        self.pieces: list[Tensor] = []
        return torch.zeros(self.numel // self.comm.world_size, dtype=self.dtype)

    def fill(self) -> None:
        self.pieces = []  # free the memory before timing starts
        super().fill()

    def do(self) -> None:
        self.pieces = self.comm.all_gather(self.input)

    def is_right(self) -> bool:
        expected = [self.numbers_of(rank, self.input.numel()) for rank in range(self.comm.world_size)]
        return len(self.pieces) == len(expected) and all(map(torch.equal, self.pieces, expected))


class Broadcast(Trial):
    def do(self) -> None:
        self.comm.broadcast(self.input, 0)

    def is_right(self) -> bool:
        return torch.equal(self.input, self.numbers_of(0, self.numel))


OPS: dict[str, type[Trial]] = {
    "all_reduce": AllReduceTrial,
    "reduce_scatter": ReduceScatter,
    "all_gather": AllGather,
    "broadcast": Broadcast,
    "gather-scatter": GatherScatterTrial,
    "ring": RingTrial,
}
IN_PARTS = ("reduce_scatter", "all_gather")  # collectives whose tensor consists of equal slices, one per worker


def make_trials(op: str, comm: Comm, numel: int, dtype: torch.dtype) -> list[Trial]:
    """Return the trials (timed implementations) of an operation on a comm (communication backend).

    An all-reduce has several trials if the comm provides memory for tensors: one or two use that memory, and another
    uses ordinary memory.
    """
    if op != "all_reduce" or type(comm).reduction is Comm.reduction:
        return [OPS[op](comm, numel, dtype)]
    shared = SharedReduction(comm, numel, dtype)
    found: list[Trial] = [shared] if shared.has_separate_result else []
    return [*found, ReductionTrial(comm, numel, dtype), PlainAllReduce(comm, numel, dtype)]


def trial_job(
    context: Context, *, comms: list[str], cases: list[tuple[str, int]], dtype: str, warmup: int, iterations: int,
    check: bool,
) -> list[list[Json]]:  # fmt: skip
    """Time all implementations of each case on this worker. A case is an operation and a number of elements.

    Return one list per case, with one dict per implementation and one dict for a memory copy. Each dict has the times
    in seconds, and `is_right`: whether a further, untimed execution was correct, or None if `check` is not set. Every
    round times each implementation and the copy once. The order is rotated by one place from round to round, so that
    the order affects all times alike. Before each timing, the workers wait at a barrier of the comm (communication
    backend) of `context`, until all workers have filled their input.
    """
    opened = {name: context.connect(name) for name in comms}
    found = []
    num_rounds = 0
    reported = 0.0
    for op, numel in cases:
        trials: list[tuple[str, Trial]] = [("", CopyTrial(context.comm, numel, DTYPES[dtype]))]
        for name, comm in opened.items():
            trials += [(name, trial) for trial in make_trials(op, comm, numel, DTYPES[dtype])]
        times: list[list[float]] = [[] for _ in trials]
        for round_ in range(warmup + iterations):
            for turn in range(len(trials)):
                index = (round_ + turn) % len(trials)
                elapsed = _time(trials[index][1], context.comm)
                if round_ >= warmup:
                    times[index].append(elapsed)
            num_rounds += 1
            if context.rank == 0 and time.monotonic() - reported > REPORT_EVERY_S:
                reported = time.monotonic()
                context.emit({"kind": "progress", "rounds": num_rounds, "op": op})
        found.append(
            [
                {
                    "op": op if name else COPY,
                    "comm": name,
                    "result": trial.result,
                    "times_s": times[index],
                    "is_right": _is_right(trial, context.comm) if check else None,
                }
                for index, (name, trial) in enumerate(trials)
            ]
        )
    context.comm.barrier()  # slower workers may still use the comms
    for comm in opened.values():
        comm.close()
    return found


def _time(trial: Trial, barrier_comm: Comm) -> float:
    trial.fill()
    barrier_comm.barrier()
    started = time.perf_counter()
    trial.do()
    return time.perf_counter() - started


def _is_right(trial: Trial, barrier_comm: Comm) -> bool:
    trial.fill_to_check()
    barrier_comm.barrier()
    trial.do()
    is_right = trial.is_right()
    barrier_comm.barrier()  # a shared result must not change until all workers have checked it
    return is_right


def _one_period(rank: int) -> Tensor:
    """Return PERIOD test numbers from 0 to LARGEST in an order that differs between ranks."""
    return torch.arange(1, PERIOD + 1) * (rank + 1) % PERIOD % (LARGEST + 1)
