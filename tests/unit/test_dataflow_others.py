"""Other dataflows: exact where everything fits at once, and against a walk where it does not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow_reference import axes, shaped
from paceline.dataflow.axis import Axis
from paceline.dataflow.chips import Chip, load_chip
from paceline.dataflow.levels import Accesses
from paceline.dataflow.others import OTHERS, best_accesses
from paceline.dataflow.shape import Shape

EYERISS = load_chip("eyeriss")
AMPLE = replace(EYERISS, rows=1000, columns=1000, buffer=replace(EYERISS.buffer, banks=10**6))
SCARCE = replace(EYERISS, rows=3, columns=5, buffer=replace(EYERISS.buffer, banks=1, bank_bytes=256, filter_bytes=144))


@settings(max_examples=100, deadline=None)
@given(axes(), axes(), st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)))
def test_other_dataflows_with_room_for_everything(rows: Axis, columns: Axis, counts: tuple[int, int, int]) -> None:
    """Nothing is fetched twice where the array and the buffer hold the whole layer."""
    rows, columns = (replace(axis, padding=0, size=max(axis.size, axis.kernel)) for axis in (rows, columns))
    num_images, num_filters, num_channels = counts
    shape = shaped(rows, columns, num_images=num_images, num_filters=num_filters, num_channels=num_channels)
    weights, outputs, macs = num_filters * shape.weights_per_output, shape.num_outputs, shape.num_multiplications
    read = num_images * num_channels * rows.real * columns.real
    expected = {
        "weight-stationary": {
            "buffer": {"filter": 2 * weights, "input": read, "partial_sum": 2 * outputs},
            "neighbour": {"filter": weights, "input": macs, "partial_sum": macs},
            "register_file": {"filter": macs + weights},
        },
        "output-stationary": {
            "buffer": {"filter": (1 + num_images) * weights, "input": read, "partial_sum": 0},
            "neighbour": {"filter": macs, "input": macs, "partial_sum": outputs},
            "register_file": {"partial_sum": 2 * macs},
        },
        "input-stationary": {
            "buffer": {"filter": (1 + num_images) * weights, "input": read, "partial_sum": 2 * outputs},
            "neighbour": {"filter": macs, "input": read, "partial_sum": macs},
            "register_file": {"input": macs + read},
        },
        "no-local-reuse": {
            "buffer": {
                "filter": weights + macs,
                "input": macs // num_filters,
                "partial_sum": 2 * macs // num_channels,
            },
            "neighbour": {"filter": macs, "input": macs, "partial_sum": macs},
            "register_file": {},
        },
    }
    assert set(expected) == set(OTHERS)
    for name, levels in expected.items():
        moved = best_accesses(name, shape, AMPLE)
        assert moved.dram == {"filter": weights, "input": read, "partial_sum": outputs}, name
        assert moved.buffer == {**levels["buffer"], "input_fill": read}, name
        assert (moved.neighbour, moved.register_file) == (levels["neighbour"], levels["register_file"]), name


def test_a_plane_of_weights_with_more_of_them_than_pes_is_folded() -> None:
    shape = Shape(input_height=20, input_width=20, kernel_height=11, kernel_width=11)
    whole = best_accesses("weight-stationary", shape, AMPLE)
    folded = best_accesses("weight-stationary", shape, replace(AMPLE, rows=10, columns=10))
    assert folded.buffer["partial_sum"] == 2 * whole.buffer["partial_sum"]
    assert folded.buffer["input"] == 2 * whole.buffer["input"]


@pytest.mark.parametrize("dataflow", OTHERS)
def test_pixels_that_nobody_reads_are_not_paid_for(dataflow: str) -> None:
    """One weight and a stride of 2: a quarter of the pixels is met."""
    shape = Shape(
        num_filters=8, num_channels=8, input_height=8, input_width=8, kernel_height=1, kernel_width=1, stride=(2, 2)
    )
    small = replace(shape, input_height=4, input_width=4, stride=(1, 1))
    assert best_accesses(dataflow, shape, EYERISS) == best_accesses(dataflow, small, EYERISS)


def cut(whole: int, part: int) -> list[range]:
    return [range(start, min(start + part, whole)) for start in range(0, whole, part)]


def met(axis: Axis, outputs: range) -> tuple[int, int]:
    """Places that some outputs read along an axis, and how many of them are no padding."""
    places = {output * axis.stride + offset for output in outputs for offset in range(axis.kernel)}
    return len(places), sum(axis.padding <= place < axis.padding + axis.size for place in places)


def worth_trying(whole: int) -> list[int]:
    """Parts of a whole that need fewer rounds than any smaller part."""
    return [part for part in range(1, whole + 1) if part == 1 or -(-whole // part) < -(-whole // (part - 1))]


def weight_stationary_ways(shape: Shape, chip: Chip) -> Iterator[Accesses]:
    """Every block of planes, images and rows that the buffer has room for, walked through; filters as many as fit."""
    plane = shape.kernel_height * shape.kernel_width
    words = int((chip.buffer.banks * chip.buffer.bank_bytes + chip.buffer.filter_bytes) / chip.word_bytes)
    whole_width, real_width = met(shape.columns, range(shape.output_width))
    sizes = (shape.num_filters, shape.num_channels, shape.num_images, shape.output_height)
    for a, b, n, e in itertools.product(*map(worth_trying, sizes)):
        inputs = n * b * met(shape.rows, range(e))[0] * whole_width
        m = min((words - inputs) // (n * e * shape.output_width), shape.num_filters)
        m = m if m == shape.num_filters else m // a * a
        if m < a or a * b > max(1, chip.num_pes // plane):
            continue
        count = dict.fromkeys(("filter", "fill", "input", "sums"), 0)
        for images, rows in itertools.product(cut(shape.num_images, n), cut(shape.output_height, e)):
            whole_rows, real_rows = met(shape.rows, rows)
            for held in cut(shape.num_filters, m):
                count["fill"] += len(images) * shape.num_channels * real_rows * real_width
                for channels, filters in itertools.product(cut(shape.num_channels, b), cut(len(held), a)):
                    count["filter"] += len(filters) * len(channels) * plane
                    count["input"] += len(images) * len(channels) * whole_rows * whole_width
                    count["sums"] += 2 * len(images) * len(filters) * len(rows) * shape.output_width
        macs, filters = shape.num_multiplications, count["filter"]
        yield Accesses(
            dram={"filter": filters, "input": count["fill"], "partial_sum": shape.num_outputs},
            buffer={
                "filter": 2 * filters,
                "input_fill": count["fill"],
                "input": count["input"],
                "partial_sum": count["sums"],
            },
            neighbour={"filter": filters, "input": macs, "partial_sum": macs},
            register_file={"filter": macs + filters},
        )


@settings(max_examples=60, deadline=None)
@given(axes(), axes(), st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 4)))
def test_the_least_of_all_ways_is_found(rows: Axis, columns: Axis, counts: tuple[int, int, int]) -> None:
    """Weight-stationary with a buffer of 200 words on 15 PEs."""
    rows, columns = (replace(axis, kernel=min(axis.kernel, 3), size=max(axis.size, 3)) for axis in (rows, columns))
    num_images, num_filters, num_channels = counts
    shape = shaped(rows, columns, num_images=num_images, num_filters=num_filters, num_channels=num_channels)
    energies = [sum(way.energy(SCARCE).values()) for way in weight_stationary_ways(shape, SCARCE)]
    assert sum(best_accesses("weight-stationary", shape, SCARCE).energy(SCARCE).values()) == min(energies)


@pytest.mark.parametrize("dataflow", OTHERS)
def test_an_input_that_no_output_reads(dataflow: str) -> None:
    """Padding of 2 and a stride of 5: the one output is over padding alone."""
    shape = shaped(*[Axis(size=1, kernel=1, stride=5, padding=2)] * 2)
    assert best_accesses(dataflow, shape, EYERISS).dram == {"filter": 1, "input": 0, "partial_sum": 1}
