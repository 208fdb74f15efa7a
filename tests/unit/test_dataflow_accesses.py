"""Counts in closed form against walks through every pass, pixel by pixel."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dataflow_reference import arrays, axes, convolutions, shaped, timings
from paceline.dataflow.chips import load_chip
from paceline.dataflow.matrices import make_operands, read_matrix
from paceline.dataflow.row_stationary import Mapping, accesses, cycles, total_cycles
from paceline.dataflow.shape import ConvAxis, Shape
from paceline.dataflow.simulation_results import conv_accesses
from paceline.dataflow.simulator import Simulation
from paceline.dataflow.timing import Timing
from properties import examples

EYERISS = load_chip("eyeriss")


def cut(whole: Sequence[int], part: int) -> list[Sequence[int]]:
    return [whole[start : start + part] for start in range(0, len(whole), part)]


def spread(items: Sequence[int], most: int) -> list[int]:
    """How many each set gets: as even as can be, none without any."""
    return [len(part) for part in np.array_split(np.array(items), min(most, len(items)))]


def pixels(axis: ConvAxis, outputs: Sequence[int]) -> set[int]:
    """Places along an axis that some outputs read, counted from the first of the padding."""
    return {output * axis.stride + offset for output in outputs for offset in range(axis.kernel)}


def real(axis: ConvAxis, places: set[int]) -> int:
    return sum(axis.padding <= place < axis.padding + axis.size for place in places)


@examples(300)
@given(axes())
def test_pixels_of_strips(axis: ConvAxis) -> None:
    parts = np.arange(1, axis.outputs + 1)
    strips = [[pixels(axis, strip) for strip in cut(range(axis.outputs), part)] for part in parts.tolist()]
    assert axis.read_in_strips(parts).tolist() == [sum(map(len, some)) for some in strips]
    assert axis.real_in_strips(parts).tolist() == [sum(real(axis, one) for one in some) for some in strips]
    assert axis.real == real(axis, strips[-1][0])
    assert axis.read(axis.outputs) == len(strips[-1][0])


@examples(300)
@given(axes())
def test_blocks_of_pixels_in_strips(axis: ConvAxis) -> None:
    """How many there are, and how many outputs of their own strip each of them goes into."""
    for part, size in itertools.product(range(1, axis.outputs + 1), range(1, axis.size + 1)):
        count = touched = 0
        for strip in cut(range(axis.outputs), part):
            met = sorted(place for place in pixels(axis, strip) if axis.padding <= place < axis.padding + axis.size)
            blocks = cut(met, size)
            count += len(blocks)
            touched += sum(bool(pixels(axis, [output]) & set(block)) for block in blocks for output in strip)
        assert axis.blocks_in_strips(size, part) == count
        assert axis.outputs_of_blocks(size, part) == touched


def test_padding_that_no_output_reads() -> None:
    """32 rows under 3 with stride 2 and padding 1: the row of zeros at the end is never met, all 32 real rows are."""
    assert ConvAxis(size=32, kernel=3, stride=2, padding=1).real_in_strips(16) == 32
    assert ConvAxis(size=9, kernel=1, stride=2, padding=0).real_in_strips(5) == 5


@st.composite
def mapped(draw: st.DrawFn) -> tuple[Shape, Mapping]:
    """Small layers with any mapping of theirs."""
    counts = {"num_images": 3, "num_filters": 6, "num_channels": 6}
    shape = shaped(draw(axes()), draw(axes()), **{name: draw(st.integers(1, most)) for name, most in counts.items()})
    p, t, passes = (draw(st.integers(1, 3)) for _ in range(3))
    mapping = Mapping(
        m=min(p * t * passes, shape.num_filters),
        n=draw(st.integers(1, shape.num_images)),
        e=draw(st.integers(1, shape.output_height)),
        p=p,
        q=draw(st.integers(1, 3)),
        r=draw(st.integers(1, 3)),
        t=t,
    )
    return shape, mapping


class Walk:
    """A layer under a mapping, pass by pass; what is on the chip already is not fetched again."""

    def __init__(self, shape: Shape, mapping: Mapping) -> None:
        self.shape, self.mapping = shape, mapping
        self.columns = pixels(shape.columns, range(shape.output_width))
        self.count: Counter[str] = Counter()
        self.in_buffer: Any = None  # whose inputs
        self.in_pes: Any = None  # whose weights
        for images, rows in itertools.product(
            cut(range(shape.num_images), mapping.n), cut(range(shape.output_height), mapping.e)
        ):
            for group, channels in itertools.product(
                cut(range(shape.num_filters), mapping.m), cut(range(shape.num_channels), mapping.q * mapping.r)
            ):
                for filters in cut(group, mapping.p * mapping.t):
                    self.do_pass(images, rows, filters, channels)

    def do_pass(self, images: Any, rows: Any, filters: Any, channels: Any) -> None:
        shape, count, num_images = self.shape, self.count, len(images)
        places = pixels(shape.rows, rows)
        if self.in_buffer != (images, rows, channels):
            read = real(shape.rows, places) * real(shape.columns, self.columns)
            count["dram input"] += num_images * len(channels) * read
        weights = len(filters) * len(channels) * shape.kernel_height * shape.kernel_width
        if self.in_pes != (filters, channels):
            count["dram filter"] += weights
            count["filter moves"] += weights * len(rows)
        self.in_buffer, self.in_pes = (images, rows, channels), (filters, channels)
        count["buffer input"] += num_images * len(channels) * len(places) * len(self.columns)
        count["window"] += len(channels) * len(places) * shape.kernel_width
        outputs = num_images * len(filters) * len(rows) * shape.output_width
        own, depths = spread(filters, self.mapping.t), spread(channels, self.mapping.r)
        pes = shape.kernel_height * len(rows)  # of a set
        count["input moves"] += len(own) * pes * num_images * len(channels) * len(self.columns)
        is_first, is_last = channels[0] == 0, channels[-1] == shape.num_channels - 1
        count["sums out"] += outputs
        count["sums back"] += 0 if is_first else outputs
        count["dram sums"] += outputs if is_last else 0
        count["hops"] += outputs * (shape.kernel_height * len(depths) - 1)
        for depth in depths:
            products = depth * shape.kernel_width  # of a PE for an output: each is added, and one sum passed on
            count["sum accesses"] += outputs * shape.kernel_height * (products + (products - 1) + 1)
            count["macs"] += outputs * shape.kernel_height * products
        count["compute"] += max(own) * max(depths) * shape.kernel_width * shape.output_width * num_images


@examples(400)
@given(mapped())
def test_closed_forms_equal_walking_through_the_passes(case: tuple[Shape, Mapping]) -> None:
    shape, mapping = case
    count = Walk(shape, mapping).count
    moved, parts = accesses(shape, mapping), cycles(shape, mapping, EYERISS)
    assert count["macs"] == shape.num_multiplications
    assert count["dram sums"] == shape.num_outputs
    dram = {"filter": count["dram filter"], "input": count["dram input"], "partial_sum": count["dram sums"]}
    assert moved.dram == dram
    assert moved.buffer == {
        "filter": 2 * count["dram filter"],
        "input_fill": count["dram input"],
        "input": count["buffer input"],
        "partial_sum": count["sums out"] + count["sums back"] + count["dram sums"],
    }
    moves = {"filter": count["filter moves"], "input": count["input moves"]}
    assert moved.neighbour == {**moves, "partial_sum": count["hops"] + count["sums back"]}
    filled = {kind: count["macs"] + words for kind, words in moves.items()}
    assert moved.register_file == {**filled, "partial_sum": count["sum accesses"]}
    network = EYERISS.network
    assert parts == {
        "compute": count["compute"],
        "filter_load": -(-count["dram filter"] // network.filter),
        "window_load": -(-count["window"] // network.input),
        "input": -(-(count["buffer input"] - count["window"]) // network.input),
        "partial_sum": -(-count["sums out"] // network.partial_sum),
    }
    flowing = max(parts["compute"], parts["input"], parts["partial_sum"])
    assert total_cycles(parts) == flowing + parts["filter_load"] + parts["window_load"]


def read_by(simulation: Simulation) -> Iterator[tuple[set[Any], set[Any]]]:
    """Weights and pixels that each pass needs, every one by its name."""
    shape = simulation.plan.shape
    for one in simulation.plan.passes():
        weights, inputs = set(), set()
        for strip, row, channel in itertools.product(one.strips, one.kernel_rows, range(shape.num_channels)):
            weights |= {(strip.filter, channel, row, tap) for tap in range(shape.kernel_width)}
            for y in range(strip.first_row, strip.first_row + strip.num_columns):
                columns = pixels(shape.columns, range(shape.output_width))
                inputs |= {(strip.image, channel, y * shape.stride[0] + row, x) for x in columns}
        yield weights, inputs


@examples(150)
@given(convolutions(), arrays(), timings())
def test_the_buffer_gives_each_word_of_a_pass_once(
    case: tuple[Any, Any, Any], array: tuple[int, int] | None, timing: Timing
) -> None:
    simulation = Simulation.of(case[2], timing, array)
    shape, moved = simulation.plan.shape, conv_accesses(simulation)
    found = list(read_by(simulation))
    top, left = shape.padding
    met = {
        place
        for _, inputs in found
        for place in inputs
        if 0 <= place[2] - top < shape.input_height and 0 <= place[3] - left < shape.input_width
    }
    weights = case[1].size
    assert moved.dram == {"filter": weights, "input": len(met), "partial_sum": shape.num_outputs}
    assert moved.buffer == {
        "filter": weights + sum(len(some) for some, _ in found),
        "input_fill": len(met),
        "input": sum(len(some) for _, some in found),
        "partial_sum": 2 * shape.num_outputs,
    }


def test_sets_side_by_side_share_their_image() -> None:
    operands = make_operands(read_matrix("random:4x4", "--input"), read_matrix("random:2x1x3x3", "--kernel"))
    alone, together = (conv_accesses(Simulation.of(operands, Timing(), pes)) for pes in ((3, 2), (3, 4)))
    assert (alone.buffer["input"], together.buffer["input"]) == (32, 16)
    assert alone.buffer["filter"] == together.buffer["filter"]


@examples(100)
@given(axes(), axes(), st.integers(1, 4))
def test_a_set_of_its_own_is_counted_alike_by_both(rows: ConvAxis, columns: ConvAxis, num_channels: int) -> None:
    """One image, one filter, no fold. `conv` adds a column in its first PE, which reads and writes its register."""
    shape = shaped(rows, columns, num_channels=num_channels)
    images = np.zeros((1, num_channels, rows.size, columns.size), dtype=int)
    filters = np.zeros((1, num_channels, rows.kernel, columns.kernel), dtype=int)
    operands = make_operands(images, filters, stride=shape.stride, padding=shape.padding)
    ours = conv_accesses(Simulation.of(operands, Timing()))
    mapping = Mapping(m=1, n=1, e=shape.output_height, p=1, q=num_channels, r=1, t=1)
    theirs = accesses(shape, mapping)
    assert (ours.dram, ours.buffer, ours.neighbour) == (theirs.dram, theirs.buffer, theirs.neighbour)
    column = 2 * shape.num_outputs * (shape.kernel_height - 1)
    sums = theirs.register_file["partial_sum"] + column
    assert ours.register_file == {**theirs.register_file, "partial_sum": sums}
