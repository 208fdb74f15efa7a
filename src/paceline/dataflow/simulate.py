"""Run a convolution on the array: every value goes through PEs, scratch pads and the sum of its column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paceline.dataflow.array import PEArray
from paceline.dataflow.matrices import Matrix
from paceline.dataflow.operands import Operands
from paceline.dataflow.plan import Pass, Plan
from paceline.dataflow.timing import Schedule, Timing
from paceline.errors import UsageError

MAX_PRODUCTS = 20_000_000  # in one PE and pass, when each of which happens is kept: some hundred megabytes


@dataclass(frozen=True, eq=False)
class Record:
    """What happened in a pass; the lists are empty where nothing was recorded."""

    one: Pass
    schedule: Schedule
    pes: PEArray
    products: list[Matrix] = field(default_factory=list)  # per tap: strip, row, column, output
    partial_sums: list[Matrix] = field(default_factory=list)  # after that product was added
    column_sums: list[Matrix] = field(default_factory=list)  # before the first addition of the column, then after each
    carried: Matrix | None = None  # strip, column, output


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A convolution laid onto an array, ready to run."""

    operands: Operands
    plan: Plan

    @classmethod
    def of(cls, operands: Operands, timing: Timing, array: tuple[int, int] | None = None) -> Simulation:
        """Without an array there are as many PEs as the logical set has."""
        if array is not None and min(array) < 1:
            raise UsageError(f"an array of {array[0]} x {array[1]} has no PEs; give at least 1x1")
        shape = operands.shape
        whole = array or (shape.kernel_height, shape.output_height)
        plan = Plan(shape=shape, timing=timing, array=whole)
        products = plan.num_taps * shape.output_width
        if products > MAX_PRODUCTS:
            raise UsageError(
                f"a PE would make {products:,} products per output row, and {MAX_PRODUCTS:,} are the most; take a "
                "part of the input, fewer channels, or a smaller kernel"
            )
        return cls(operands=operands, plan=plan)

    @cached_property
    def output(self) -> Matrix:
        """Images, filters, rows, columns."""
        output = self._empty()
        for _ in self._run(output, is_recorded=False):
            pass
        return output

    def records(self) -> Iterator[Record]:
        """Pass by pass, with every product and sum."""
        yield from self._run(self._empty(), is_recorded=True)

    @cached_property
    def cycles(self) -> int:
        return sum(self.plan.schedule(one).cycles for one in self.plan.passes())

    @cached_property
    def busy_pes(self) -> NDArray[np.int64]:
        """How many PEs work in each cycle."""
        return np.concatenate([self._busy_in(one) for one in self.plan.passes()])

    @cached_property
    def utilisation(self) -> float:
        """The share of the logical PEs' cycles in which they work."""
        busy = 0
        for one in self.plan.passes():
            schedule = self.plan.schedule(one)
            busy += one.num_columns * (schedule.adder_cycles + self._others(one) * schedule.worker_cycles)
        return busy / (self.plan.num_logical_pes * self.cycles)

    @property
    def array_utilisation(self) -> float:
        """The same of all PEs of the array."""
        return self.utilisation * self.plan.num_logical_pes / (self.plan.array[0] * self.plan.array[1])

    def _busy_in(self, one: Pass) -> NDArray[np.int64]:
        schedule = self.plan.schedule(one)
        busy = schedule.adder_busy.astype(np.int64) + self._others(one) * schedule.worker_busy
        return np.asarray(one.num_columns * busy)

    def _others(self, one: Pass) -> int:
        """PEs of a column beside its first."""
        return 0 if self.plan.is_serial else len(one.kernel_rows) - 1

    def _empty(self) -> Matrix:
        shape = self.plan.shape
        sides = (shape.num_images, shape.num_filters, shape.output_height, shape.output_width)
        return np.zeros(sides, dtype=self.operands.images.dtype)

    def _run(self, output: Matrix, *, is_recorded: bool) -> Iterator[Record]:
        """Every pass; `output` also keeps the partial sums between folds."""
        for one in self.plan.passes():
            pes = PEArray(self.plan, one, self.operands.images, self.operands.filters)
            record = Record(one, self.plan.schedule(one), pes, carried=_gather(output, one) if one.has_carry else None)
            self._multiply(record, is_recorded=is_recorded)
            self._sum_columns(record, is_recorded=is_recorded)
            _scatter(pes.column_sums, output, one)
            yield record

    def _multiply(self, record: Record, *, is_recorded: bool) -> None:
        pes = record.pes
        for number, (lane, tap) in enumerate(pes.taps):
            pes.multiply(lane, tap)
            pes.accumulate(is_first=number == 0)
            if is_recorded:
                record.products.append(pes.product)
                record.partial_sums.append(pes.partial_sums)

    def _sum_columns(self, record: Record, *, is_recorded: bool) -> None:
        pes = record.pes
        pes.begin_column_sums()
        sums = [pes.column_sums]
        for row in range(1, pes.partial_sums.shape[1]):
            pes.receive(row)
            sums.append(pes.column_sums)
        if record.carried is not None:
            pes.add_carried(record.carried)
            sums.append(pes.column_sums)
        if is_recorded:
            record.column_sums.extend(sums)


def _gather(output: Matrix, one: Pass) -> Matrix:
    """The partial sums that the first PEs of a pass's columns kept; zeros where a short strip lacks a column."""
    width = max(strip.num_columns for strip in one.strips)
    kept = np.zeros((len(one.strips), width, output.shape[3]), dtype=output.dtype)
    for index, strip in enumerate(one.strips):
        rows = slice(strip.first_row, strip.first_row + strip.num_columns)
        kept[index, : strip.num_columns] = output[strip.image, strip.filter, rows]
    return kept


def _scatter(sums: Matrix, output: Matrix, one: Pass) -> None:
    for index, strip in enumerate(one.strips):
        rows = slice(strip.first_row, strip.first_row + strip.num_columns)
        output[strip.image, strip.filter, rows] = sums[index, : strip.num_columns]
