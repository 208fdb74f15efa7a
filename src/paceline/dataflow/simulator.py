"""Simulate a convolution on an array of processing elements (PEs), with numpy arrays over all PEs.

The simulation runs in passes. A pass is the work of the array between two loads of filters. The module `placement`
explains logical sets, strips and folds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paceline.dataflow.matrices import Matrix, Operands
from paceline.dataflow.placement import Pass, Placement
from paceline.dataflow.timing import Schedule, Timing
from paceline.errors import UsageError


class PEArray:
    """Data of all PEs (processing elements) in a pass, in numpy arrays over all PEs.

    A PE holds rows of weights (lanes), the input rows that the weights are multiplied with, and its partial sums. A PE
    has one lane per channel, or one per channel and kernel row under the execution model `serial`. A tap is the
    position of a weight in its lane.
    """

    def __init__(self, plan: Placement, one: Pass, images: Matrix, filters: Matrix) -> None:
        self._stride = plan.shape.stride[1]
        self._num_outputs = plan.shape.output_width
        load = _load_whole_kernel if plan.is_serial else _load_rows
        # Axes of `filters`: strip, row, lane, tap. Axes of `inputs`: strip, row, column, lane, pixel. All strips get as
        # many columns as the widest; the additional columns hold arbitrary pixels, whose results are unused.
        self.filters, self.inputs = load(plan, one, images, filters)
        self.partial_sums: Matrix = np.zeros((*self.inputs.shape[:3], self._num_outputs), dtype=images.dtype)
        self.column_sums: Matrix = self.partial_sums[:, 0]  # strip, column, output: in the first PE of each column

    @property
    def taps(self) -> list[tuple[int, int]]:
        """Lane (row of weights) and tap (position in this row) of every weight of a PE, in order of multiplication."""
        lanes, width = self.filters.shape[2:]
        return [(lane, tap) for lane in range(lanes) for tap in range(width)]

    def window(self, lane: int, tap: int) -> Matrix:
        """Return, for each PE and output, the input that the weight at position `tap` of row `lane` multiplies."""
        end = tap + (self._num_outputs - 1) * self._stride + 1
        return np.asarray(self.inputs[:, :, :, lane, tap : end : self._stride])

    def multiply(self, lane: int, tap: int) -> Matrix:
        """Return, for each PE and output, the weight at position `tap` of row `lane` times the input from `window`."""
        return np.asarray(self.filters[:, :, None, lane, tap, None] * self.window(lane, tap))


def _load_rows(plan: Placement, one: Pass, images: Matrix, filters: Matrix) -> tuple[Matrix, Matrix]:
    """Return the weights of all PEs and the inputs of all PEs.

    The PE in row r and column e of a set gets kernel row r and input row e x stride + r of every channel.
    """
    rows = np.array(one.kernel_rows)
    weights = filters[[strip.filter for strip in one.strips]][:, :, rows]
    columns = np.arange(max(strip.num_columns for strip in one.strips))
    needed = np.array([strip.first_row for strip in one.strips])[:, None] + columns
    pixels = needed[:, None, :] * plan.shape.stride[0] + rows[None, :, None]
    pixels = np.minimum(pixels, images.shape[2] - 1)  # additional columns of narrower strips may exceed the image
    image = np.array([strip.image for strip in one.strips])[:, None, None]
    return weights.transpose(0, 2, 1, 3), np.ascontiguousarray(images.transpose(0, 2, 1, 3)[image, pixels])


def _load_whole_kernel(plan: Placement, one: Pass, images: Matrix, filters: Matrix) -> tuple[Matrix, Matrix]:
    """Return the weights of the only PE (a whole kernel), and its inputs for one output row."""
    strip = one.strips[0]
    start = strip.first_row * plan.shape.stride[0]
    pixels = images[strip.image, :, start : start + plan.shape.kernel_height]
    lanes = plan.shape.num_channels * plan.shape.kernel_height
    weights = filters[strip.filter].reshape(1, 1, lanes, plan.shape.kernel_width)
    return weights, np.ascontiguousarray(pixels).reshape(1, 1, 1, lanes, images.shape[3])


MAX_PRODUCTS = 20_000_000  # per PE and pass: their start cycles take a few hundred megabytes


@dataclass(frozen=True, eq=False)
class Record:
    """Values computed in a pass. `Simulation.records` fills the lists; in other uses, they stay empty."""

    one: Pass
    schedule: Schedule
    pes: PEArray
    products: list[Matrix] = field(default_factory=list)  # per tap: strip, row, column, output
    partial_sums: list[Matrix] = field(default_factory=list)  # after each product was added
    column_sums: list[Matrix] = field(default_factory=list)  # before the first addition of the column, then after each
    carried: Matrix | None = None  # sums of earlier folds: strip, column, output; None in the first fold


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A convolution placed on an array of PEs, ready to run."""

    operands: Operands
    plan: Placement

    @classmethod
    def of(cls, operands: Operands, timing: Timing, array: tuple[int, int] | None = None) -> Simulation:
        """Place a convolution on an array of PEs (processing elements), and return the simulation.

        `array` is the number of rows and columns of PEs. The default is the size of a logical set: one row of PEs per
        kernel row, and one column per output row.
        """
        if array is not None and min(array) < 1:
            raise UsageError(f"an array of {array[0]} x {array[1]} has no PEs; give at least 1x1")
        shape = operands.shape
        whole = array or (shape.kernel_height, shape.output_height)
        plan = Placement(shape=shape, timing=timing, array=whole)
        products = plan.num_taps * shape.output_width
        if products > MAX_PRODUCTS:
            raise UsageError(
                f"a PE would compute {products:,} products per output row, but the limit is {MAX_PRODUCTS:,}; use a "
                "part of the input, fewer channels, or a smaller kernel"
            )
        return cls(operands=operands, plan=plan)

    @cached_property
    def output(self) -> Matrix:
        """The output of the convolution, with the axes images, filters, rows, columns."""
        output = self._empty()
        for _ in self._run(output, is_recorded=False):
            pass
        return output

    def records(self) -> Iterator[Record]:
        """Yield the record of every pass, with all products and sums."""
        yield from self._run(self._empty(), is_recorded=True)

    @cached_property
    def cycles(self) -> int:
        return sum(self.plan.schedule(one).cycles for one in self.plan.passes())

    @cached_property
    def busy_pes(self) -> NDArray[np.int64]:
        """Number of busy PEs in each cycle."""
        return np.concatenate([self._busy_in(one) for one in self.plan.passes()])

    @cached_property
    def utilisation(self) -> float:
        """Busy cycles summed over all PEs, divided by `cycles` times the number of PEs of the logical sets; 0 to 1."""
        busy = 0
        for one in self.plan.passes():
            schedule = self.plan.schedule(one)
            busy += one.num_columns * (schedule.adder_cycles + self._num_other_pes(one) * schedule.worker_cycles)
        return busy / (self.plan.num_logical_pes * self.cycles)

    @property
    def array_utilisation(self) -> float:
        """Busy cycles summed over all PEs, divided by `cycles` times the number of PEs of the array; 0 to 1."""
        return self.utilisation * self.plan.num_logical_pes / (self.plan.array[0] * self.plan.array[1])

    def _busy_in(self, one: Pass) -> NDArray[np.int64]:
        schedule = self.plan.schedule(one)
        busy = schedule.adder_busy.astype(np.int64) + self._num_other_pes(one) * schedule.worker_busy
        return np.asarray(one.num_columns * busy)

    def _num_other_pes(self, one: Pass) -> int:
        """Return the number of PEs in a column during a pass, without the first PE of the column."""
        return 0 if self.plan.is_serial else len(one.kernel_rows) - 1

    def _empty(self) -> Matrix:
        shape = self.plan.shape
        sides = (shape.num_images, shape.num_filters, shape.output_height, shape.output_width)
        return np.zeros(sides, dtype=self.operands.images.dtype)

    def _run(self, output: Matrix, *, is_recorded: bool) -> Iterator[Record]:
        """Run every pass, and yield its record after writing its results to `output`.

        Between folds (groups of kernel rows), `output` holds partial sums. If `is_recorded` is true, the records
        contain all products and sums.
        """
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
            product = pes.multiply(lane, tap)
            pes.partial_sums = pes.partial_sums + product if number else product
            if is_recorded:
                record.products.append(product)
                record.partial_sums.append(pes.partial_sums)

    def _sum_columns(self, record: Record, *, is_recorded: bool) -> None:
        """Add up, in the first PE of each column, the partial sums of all rows and those of previous folds."""
        pes = record.pes
        first, *others = (pes.partial_sums[:, row] for row in range(pes.partial_sums.shape[1]))
        if record.carried is not None:
            others.append(record.carried)
        sums = list(itertools.accumulate(others, initial=np.asarray(first)))
        pes.column_sums = sums[-1]
        if is_recorded:
            record.column_sums.extend(sums)


def _gather(output: Matrix, one: Pass) -> Matrix:
    """Return the partial sums that previous folds (groups of kernel rows) wrote to `output` for the strips of a pass.

    All strips get as many columns as the widest strip; the additional columns are zero.
    """
    width = max(strip.num_columns for strip in one.strips)
    sums = np.zeros((len(one.strips), width, output.shape[3]), dtype=output.dtype)
    for index, strip in enumerate(one.strips):
        rows = slice(strip.first_row, strip.first_row + strip.num_columns)
        sums[index, : strip.num_columns] = output[strip.image, strip.filter, rows]
    return sums


def _scatter(sums: Matrix, output: Matrix, one: Pass) -> None:
    for index, strip in enumerate(one.strips):
        rows = slice(strip.first_row, strip.first_row + strip.num_columns)
        output[strip.image, strip.filter, rows] = sums[index, : strip.num_columns]
