"""The PEs of one pass with what they hold, as whole arrays: every PE does the same step on its own values."""

from __future__ import annotations

import numpy as np

from paceline.dataflow.matrices import Matrix
from paceline.dataflow.plan import Pass, Plan


class PEArray:
    """PEs of a pass: axes are strip, row, column. Each holds a filter row, an input row and its partial sums.

    A lane is one row of weights in a PE: a channel's, or under `serial` one kernel row of a channel. A tap is one
    weight of a lane.
    """

    def __init__(self, plan: Plan, one: Pass, images: Matrix, filters: Matrix) -> None:
        self._stride = plan.shape.stride[1]
        self._num_outputs = plan.shape.output_width
        load = _load_whole_kernel if plan.is_serial else _load_rows
        # strip, row, lane, tap; and strip, row, column, lane, pixel. Columns that a short strip lacks hold zeros.
        self.filters, self.inputs = load(plan, one, images, filters)
        self.partial_sums: Matrix = np.zeros((*self.inputs.shape[:3], self._num_outputs), dtype=images.dtype)
        self.product: Matrix = self.partial_sums
        self.column_sums: Matrix = self.partial_sums[:, 0]  # strip, column, output: in the first PE of each column

    @property
    def taps(self) -> list[tuple[int, int]]:
        """Every lane and weight in the order in which a PE multiplies them."""
        lanes, width = self.filters.shape[2:]
        return [(lane, tap) for lane in range(lanes) for tap in range(width)]

    def window(self, lane: int, tap: int) -> Matrix:
        """The input that meets a weight, for all outputs of each PE."""
        end = tap + (self._num_outputs - 1) * self._stride + 1
        return np.asarray(self.inputs[:, :, :, lane, tap : end : self._stride])

    def multiply(self, lane: int, tap: int) -> None:
        weight = self.filters[:, :, None, lane, tap, None]
        self.product = weight * self.window(lane, tap)

    def accumulate(self, *, is_first: bool) -> None:
        """The first product starts the partial sum, each further one is added."""
        if is_first:
            self.partial_sums = self.product
        else:
            self.partial_sums = self.partial_sums + self.product

    def begin_column_sums(self) -> None:
        """The first PE of each column starts from its own partial sums."""
        self.column_sums = np.asarray(self.partial_sums[:, 0])

    def receive(self, row: int) -> None:
        """The first PE of each column adds what the PE of that row sends it."""
        self.column_sums = self.column_sums + self.partial_sums[:, row]

    def add_carried(self, carried: Matrix) -> None:
        """The first PE of each column adds what it kept from an earlier fold."""
        self.column_sums = self.column_sums + carried


def _load_rows(plan: Plan, one: Pass, images: Matrix, filters: Matrix) -> tuple[Matrix, Matrix]:
    """PE (r, e) gets kernel row r and input row e x stride + r, of every channel."""
    rows = np.array(one.kernel_rows)
    weights = filters[[strip.filter for strip in one.strips]][:, :, rows]
    columns = np.arange(max(strip.num_columns for strip in one.strips))
    needed = np.array([strip.first_row for strip in one.strips])[:, None] + columns
    pixels = needed[:, None, :] * plan.shape.stride[0] + rows[None, :, None]
    pixels = np.minimum(pixels, images.shape[2] - 1)  # of columns that a short strip lacks
    image = np.array([strip.image for strip in one.strips])[:, None, None]
    return weights.transpose(0, 2, 1, 3), np.ascontiguousarray(images.transpose(0, 2, 1, 3)[image, pixels])


def _load_whole_kernel(plan: Plan, one: Pass, images: Matrix, filters: Matrix) -> tuple[Matrix, Matrix]:
    """The one PE gets the kernel and as many input rows as one output row needs."""
    strip = one.strips[0]
    start = strip.first_row * plan.shape.stride[0]
    pixels = images[strip.image, :, start : start + plan.shape.kernel_height]
    lanes = plan.shape.num_channels * plan.shape.kernel_height
    weights = filters[strip.filter].reshape(1, 1, lanes, plan.shape.kernel_width)
    return weights, np.ascontiguousarray(pixels).reshape(1, 1, 1, lanes, images.shape[3])
