"""Assign the rows of a convolution to an array of processing elements (PEs), for its simulation.

A logical set of PEs computes one image with one filter. It has R rows of PEs (one per kernel row) and E columns (one
per output row). If the set has more columns than the array, it is split into strips of output rows. If it has more rows
than the array, the kernel rows are divided into folds, which are computed one after another; partial sums stay in the
first PE of their column until the next fold. As many strips as fit into the array are computed side by side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from paceline.dataflow.shape import Shape
from paceline.dataflow.timing import Schedule, Timing, make_schedule


@dataclass(frozen=True)
class Strip:
    """A logical set of PEs (processing elements), or a part of a set, at a position in the array.

    A logical set computes one image with one filter. A part of a set computes some of the output rows.
    """

    image: int
    filter: int
    first_row: int  # of the output
    num_columns: int  # of PEs: one per output row
    array_row: int  # of the strip's first PE
    array_column: int


@dataclass(frozen=True)
class Pass:
    """The work of the array of PEs (processing elements) between two loads of filters.

    A pass computes one or more strips of output rows side by side, all with the same kernel rows.
    """

    index: int
    start_cycle: int
    strips: tuple[Strip, ...]
    kernel_rows: range
    has_carry: bool  # whether partial sums of an earlier fold (group of kernel rows) are added
    is_final: bool  # whether this is the last fold, after which outputs are complete

    @property
    def num_columns(self) -> int:
        return sum(strip.num_columns for strip in self.strips)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Division of a convolution into strips of output rows and folds of kernel rows, for an array of PEs.

    A PE is a processing element. `array` is the number of rows and columns of PEs.
    """

    shape: Shape
    timing: Timing
    array: tuple[int, int]

    @property
    def is_serial(self) -> bool:
        """Whether a single PE holds the whole kernel and computes all output rows."""
        return self.timing.model == "serial"

    @property
    def set_rows(self) -> int:
        """Number of rows of PEs that a logical set of PEs occupies in a pass."""
        return 1 if self.is_serial else min(self.shape.kernel_height, self.array[0])

    @property
    def strip_columns(self) -> int:
        return 1 if self.is_serial else min(self.shape.output_height, self.array[1])

    @property
    def num_folds(self) -> int:
        return 1 if self.is_serial else math.ceil(self.shape.kernel_height / self.set_rows)

    @property
    def slots(self) -> tuple[int, int]:
        """Number of strips that fit into the array at once, vertically and horizontally."""
        if self.is_serial:
            return 1, 1
        return self.array[0] // self.set_rows, self.array[1] // self.strip_columns

    @cached_property
    def num_strips(self) -> int:
        sets = self.shape.num_images * self.shape.num_filters
        return sets * math.ceil(self.shape.output_height / self.strip_columns)

    @property
    def num_side_by_side(self) -> int:
        """Number of strips that are computed side by side."""
        return min(self.slots[0] * self.slots[1], self.num_strips)

    @property
    def num_passes(self) -> int:
        return math.ceil(self.num_strips / self.num_side_by_side) * self.num_folds

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """For each PE that at least one pass uses: its row and its column in the array."""
        widest: dict[tuple[int, int], int] = {}
        for strip in itertools.chain.from_iterable(self._batches()):
            corner = (strip.array_row, strip.array_column)
            widest[corner] = max(widest.get(corner, 0), strip.num_columns)
        return sorted(
            (corner[0] + row, corner[1] + column)
            for corner, width in widest.items()
            for row, column in itertools.product(range(self.set_rows), range(width))
        )

    @property
    def num_sets_side_by_side(self) -> int:
        """Number of logical sets that are computed side by side, rounded up; a set consists of one or more strips."""
        per_set = math.ceil(self.shape.output_height / self.strip_columns)
        return math.ceil(self.num_side_by_side / per_set)

    @property
    def num_logical_pes(self) -> int:
        """Number of PEs of a logical set (kernel rows x output rows), times the number of sets side by side."""
        return self.shape.kernel_height * self.shape.output_height * self.num_sets_side_by_side

    @property
    def num_taps(self) -> int:
        """Number of products that a PE computes for one output."""
        rows = self.shape.kernel_height if self.is_serial else 1
        return self.shape.num_channels * rows * self.shape.kernel_width

    def schedule(self, one: Pass) -> Schedule:
        num_rows = 1 if self.is_serial else len(one.kernel_rows)
        return self._schedules[num_rows - 1 + one.has_carry]

    @cached_property
    def _schedules(self) -> dict[int, Schedule]:
        """Schedules of passes, by the number of partial sums that the first PE of a column adds for each output.

        There are at most three: one for the first fold (group of kernel rows), one for the last, and one for the
        others.
        """
        height = 1 if self.is_serial else self.shape.kernel_height
        rows = [min(self.set_rows, height - start) for start in range(0, height, self.set_rows)]
        sums = {count - 1 + (index > 0) for index, count in enumerate(rows)}
        sizes = {"num_outputs": self.shape.output_width, "num_taps": self.num_taps}
        return {number: make_schedule(self.timing, num_sums=number, **sizes) for number in sums}

    def passes(self) -> Iterator[Pass]:
        """Yield every pass in order. Passes do not overlap in time."""
        cycle = 0
        numbers = itertools.count()
        for strips in self._batches():
            for fold in range(self.num_folds):
                height = self.shape.kernel_height
                rows = self.set_rows if not self.is_serial else height
                kernel_rows = range(fold * rows, min((fold + 1) * rows, height))
                is_final = fold == self.num_folds - 1
                one = Pass(next(numbers), cycle, strips, kernel_rows, fold > 0, is_final)
                yield one
                cycle += self.schedule(one).cycles

    def _batches(self) -> Iterator[tuple[Strip, ...]]:
        """Yield tuples of the strips that are computed side by side."""
        work = itertools.product(
            range(self.shape.num_images),
            range(self.shape.num_filters),
            range(0, self.shape.output_height, self.strip_columns),
        )
        while some := list(itertools.islice(work, self.num_side_by_side)):
            yield tuple(
                Strip(
                    image=image,
                    filter=number,
                    first_row=first,
                    num_columns=min(self.strip_columns, self.shape.output_height - first),
                    array_row=slot // self.slots[1] * self.set_rows,
                    array_column=slot % self.slots[1] * self.strip_columns,
                )
                for slot, (image, number, first) in enumerate(some)
            )
