"""Schedule the operations of simulated processing elements (PEs): in which cycle each one starts.

There are four execution models. In all of them, loading data takes no cycles, a PE needs no addition for the first
product of an output, and the first PE of each column adds the partial sums of the column's other PEs. Cycles are
counted from 0 at the start of a pass, which is the work of the PEs between two loads of filters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError, unknown

Cycles = NDArray[np.int64]

MAX_OPERATION_CYCLES = 1_000_000_000  # limit with which the cycles of a whole convolution fit into 64 bits
MODELS = {
    "serial": "one PE does everything, one operation at a time",
    "single-alu": "each PE does one operation at a time, a multiplication or an addition",
    "pipelined": "each PE has a multiplier and an adder side by side",
    "mac": "each PE multiplies and adds at once: an addition takes no time",
}


@dataclass(frozen=True, kw_only=True)
class Timing:
    """An execution model, and the number of cycles that a multiplication and an addition take."""

    model: str = "single-alu"
    multiply_cycles: int = 1
    add_cycles: int = 1

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise unknown("execution model", self.model, MODELS)
        for name in ("multiply_cycles", "add_cycles"):
            if not 1 <= getattr(self, name) <= MAX_OPERATION_CYCLES:
                raise UsageError(
                    f"--{name.replace('_', '-')} must be at least 1 and at most {MAX_OPERATION_CYCLES:,}, "
                    f"not {getattr(self, name)}"
                )

    @property
    def addition(self) -> int:
        """Number of cycles that an addition takes under the execution model."""
        return 0 if self.model == "mac" else self.add_cycles


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """Start cycles of all operations of a pass, which are the same in every column of PEs (processing elements).

    A pass is the work of the PEs between two loads of filters; its cycles are counted from 0. For each of F outputs,
    every PE computes K products, and the first PE of a column adds J partial sums: those of the other PEs and, except
    in the first fold (group of kernel rows), that of the previous fold.
    """

    multiply_start: Cycles  # F x K
    add_start: Cycles  # F x (K - 1)
    sum_start: Cycles  # F x J, only in the first PE of a column
    multiply_cycles: int
    add_cycles: int

    @cached_property
    def cycles(self) -> int:
        """Duration of the pass in cycles."""
        ends = [self.multiply_start.max() + self.multiply_cycles]
        ends += [starts.max() + self.add_cycles for starts in (self.add_start, self.sum_start) if starts.size]
        return int(max(ends))

    @property
    def worker_busy(self) -> NDArray[np.bool_]:
        """For each cycle of the pass, whether the PEs other than the first of each column are busy."""
        return self._busy(self._worker_spans)

    @property
    def adder_busy(self) -> NDArray[np.bool_]:
        """For each cycle of the pass: whether the first PE of a column is busy."""
        return self._busy(self._adder_spans)

    @cached_property
    def worker_cycles(self) -> int:
        return _covered(self._worker_spans)

    @cached_property
    def adder_cycles(self) -> int:
        return _covered(self._adder_spans)

    @property
    def _worker_spans(self) -> tuple[Cycles, Cycles]:
        """Start cycles and end cycles of the products and additions that every PE computes."""
        starts = np.concatenate([self.multiply_start.ravel(), self.add_start.ravel()])
        lengths = np.repeat([self.multiply_cycles, self.add_cycles], [self.multiply_start.size, self.add_start.size])
        return starts, starts + lengths

    @property
    def _adder_spans(self) -> tuple[Cycles, Cycles]:
        starts, ends = self._worker_spans
        sums = self.sum_start.ravel()
        return np.concatenate([starts, sums]), np.concatenate([ends, sums + self.add_cycles])

    def _busy(self, spans: tuple[Cycles, Cycles]) -> NDArray[np.bool_]:
        edges = np.zeros(self.cycles + 1, dtype=np.int64)
        for times, change in zip(spans, (1, -1), strict=True):
            np.add.at(edges, times, change)
        return np.asarray(np.cumsum(edges)[:-1] > 0)


def _covered(spans: tuple[Cycles, Cycles]) -> int:
    """Return in how many cycles at least one operation runs. `spans` has the operations' start and end cycles."""
    order = np.argsort(spans[0], kind="stable")
    starts, ends = spans[0][order], np.maximum.accumulate(spans[1][order])
    gaps = np.maximum(starts[1:] - ends[:-1], 0)
    return int(ends[-1] - starts[0] - gaps.sum())


def make_schedule(timing: Timing, *, num_outputs: int, num_taps: int, num_sums: int) -> Schedule:
    """Return the schedule of one pass.

    For each output, every PE computes `num_taps` products and adds them up. The first PE of a column also adds
    `num_sums` partial sums.
    """
    build = {"pipelined": _pipelined, "mac": _fused}.get(timing.model, _alternating)
    multiply, add, sums = build(timing, num_outputs, num_taps, num_sums)
    return Schedule(
        multiply_start=multiply,
        add_start=add,
        sum_start=sums,
        multiply_cycles=timing.multiply_cycles,
        add_cycles=timing.addition,
    )


def _alternating(timing: Timing, outputs: int, taps: int, sums: int) -> tuple[Cycles, Cycles, Cycles]:
    """Return the start cycles of products, additions and column sums if each PE does one operation at a time.

    All PEs first compute their partial sums of all outputs. Then the first PE of each column adds the partial sums of
    its column, output by output.
    """
    multiply, add = timing.multiply_cycles, timing.add_cycles
    length = taps * multiply + (taps - 1) * add
    begin = np.arange(outputs, dtype=np.int64)[:, None] * length
    later = np.arange(taps - 1, dtype=np.int64) * (multiply + add) + multiply
    multiply_start = begin + np.concatenate([[0], later])
    add_start = begin + later + multiply
    sum_start = outputs * length + np.arange(outputs * sums, dtype=np.int64).reshape(outputs, sums) * add
    return multiply_start, add_start, sum_start


def _fused(timing: Timing, outputs: int, taps: int, sums: int) -> tuple[Cycles, Cycles, Cycles]:
    """Return the start cycles of products, additions and column sums if additions take no time.

    A PE starts each product as soon as the previous one is complete.
    """
    multiply_start = np.arange(outputs * taps, dtype=np.int64).reshape(outputs, taps) * timing.multiply_cycles
    done = multiply_start + timing.multiply_cycles
    return multiply_start, done[:, 1:], np.repeat(done[:, -1:], sums, axis=1)


def _pipelined(timing: Timing, outputs: int, taps: int, sums: int) -> tuple[Cycles, Cycles, Cycles]:
    """Return the start cycles of products, additions and column sums if a PE's multiplier and adder work in parallel.

    At most one product waits for the adder. The first PE of a column adds the column's partial sums only in the gaps
    between the additions of its own products.
    """
    multiply, add = timing.multiply_cycles, timing.add_cycles
    multiply_start = np.zeros((outputs, taps), dtype=np.int64)
    add_start = np.zeros((outputs, taps - 1), dtype=np.int64)
    free_multiplier = free_adder = accepted = 0  # accepted: cycle in which the adder receives the last product
    for output in range(outputs):
        for tap in range(taps):
            start = max(free_multiplier, accepted - multiply)
            multiply_start[output, tap] = start
            free_multiplier = accepted = start + multiply
            if tap:
                accepted = max(free_multiplier, free_adder)
                add_start[output, tap - 1] = accepted
                free_adder = accepted + add
    done = (add_start[:, -1] + add) if taps > 1 else (multiply_start[:, -1] + multiply)
    return multiply_start, add_start, _in_gaps(add_start.ravel(), done, sums, add)


def _in_gaps(own_starts: Cycles, ready: Cycles, sums: int, length: int) -> Cycles:
    """Return the earliest cycles in which a PE can add its column's partial sums between its own additions.

    `own_starts` has the start cycles of the PE's own additions. `ready` has, for each output, the first cycle in which
    the partial sums can be added. The PE adds `sums` partial sums per output, and each addition takes `length` cycles.
    """
    starts = np.zeros((len(ready), sums), dtype=np.int64)
    free, index = 0, 0
    for output, since in enumerate(ready):
        for number in range(sums):
            start = max(free, int(since))
            while index < len(own_starts) and own_starts[index] < start + length:
                start = max(start, int(own_starts[index]) + length)
                index += 1
            starts[output, number] = start
            free = start + length
    return starts
