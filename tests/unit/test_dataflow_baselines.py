"""Other dataflows: exact where everything fits at once, and against a walk where it does not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow_reference import axes, shaped
from paceline.dataflow.accesses import Accesses
from paceline.dataflow.baselines import BASELINES, Allowed, any_block, best_accesses
from paceline.dataflow.chips import Chip, load_chip
from paceline.dataflow.shape import ConvAxis, Shape
from properties import examples

EYERISS = load_chip("eyeriss")
AMPLE = replace(EYERISS, rows=1000, columns=1000, buffer=replace(EYERISS.buffer, banks=10**6))
SCARCE = replace(EYERISS, rows=3, columns=5, buffer=replace(EYERISS.buffer, banks=1, bank_bytes=256, filter_bytes=144))


@examples(100)
@given(axes(), axes(), st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)))
def test_other_dataflows_with_room_for_everything(
    rows: ConvAxis, columns: ConvAxis, counts: tuple[int, int, int]
) -> None:
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
            "buffer": {"filter": (1 + num_images) * weights, "input": read, "partial_sum": 2 * outputs},
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
    assert set(expected) == set(BASELINES)
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


@pytest.mark.parametrize("dataflow", BASELINES)
def test_pixels_that_nobody_reads_are_not_paid_for(dataflow: str) -> None:
    """One weight and a stride of 2: a quarter of the pixels is met."""
    shape = Shape(
        num_filters=8, num_channels=8, input_height=8, input_width=8, kernel_height=1, kernel_width=1, stride=(2, 2)
    )
    small = replace(shape, input_height=4, input_width=4, stride=(1, 1))
    assert best_accesses(dataflow, shape, EYERISS) == best_accesses(dataflow, small, EYERISS)


def cut(whole: int, part: int) -> list[range]:
    return [range(start, min(start + part, whole)) for start in range(0, whole, part)]


def worth_trying(whole: int) -> list[int]:
    """Parts of a whole that need fewer rounds than any smaller part."""
    return [part for part in range(1, whole + 1) if part == 1 or -(-whole // part) < -(-whole // (part - 1))]


@pytest.mark.parametrize("dataflow", BASELINES)
def test_an_input_that_no_output_reads(dataflow: str) -> None:
    """Padding of 2 and a stride of 5: the one output is over padding alone."""
    shape = shaped(*[ConvAxis(size=1, kernel=1, stride=5, padding=2)] * 2)
    assert best_accesses(dataflow, shape, EYERISS).dram == {"filter": 1, "input": 0, "partial_sum": 1}


def tiles(shape: Shape) -> Iterator[tuple[int, int, int, list[tuple[range, range, range]]]]:
    """Filters, images and rows whose sums wait in the buffer, and every turn that this takes."""
    for m, n, e in itertools.product(
        range(1, shape.num_filters + 1), worth_trying(shape.num_images), worth_trying(shape.output_height)
    ):
        cuts = cut(shape.num_images, n), cut(shape.output_height, e), cut(shape.num_filters, m)
        yield m, n, e, list(itertools.product(*cuts))


def real_pixels(axis: ConvAxis, outputs: range) -> list[int]:
    places = {output * axis.stride + offset for output in outputs for offset in range(axis.kernel)}
    return sorted(place for place in places if axis.padding <= place < axis.padding + axis.size)


def touched(axis: ConvAxis, outputs: range, block: list[int]) -> int:
    """Outputs that read any pixel of a block."""
    return sum(any(0 <= pixel - output * axis.stride < axis.kernel for pixel in block) for output in outputs)


def input_stationary_ways(shape: Shape, chip: Chip) -> Iterator[Accesses]:
    """Blocks of pixels within a strip, of sizes that save a block somewhere, one after another in the PEs."""
    plane, width = shape.kernel_height * shape.kernel_width, range(shape.output_width)
    words = int((chip.buffer.banks * chip.buffer.bank_bytes + chip.buffer.filter_bytes) / chip.word_bytes)
    whole = [real_pixels(axis, range(axis.outputs)) for axis in (shape.rows, shape.columns)]
    across = whole[1]
    sizes = itertools.product(*map(worth_trying, (shape.num_channels, *(max(1, len(one)) for one in whole))))
    for (b, high, wide), (m, n, e, turns) in itertools.product(sizes, list(tiles(shape))):
        held_words = b * high * wide + m * (n * e * shape.output_width + b * plane)
        if b * high * wide > chip.num_pes or held_words > words:
            continue
        count = dict.fromkeys(("filter", "fill", "read", "input", "sums"), 0)
        for images, strip, held in turns:
            down = real_pixels(shape.rows, strip)
            count["filter"] += len(held) * shape.num_channels * plane
            count["fill"] += len(images) * shape.num_channels * len(down) * len(across)
            for channels in cut(shape.num_channels, b):
                for rows, columns in itertools.product(chunks(down, high), chunks(across, wide)):
                    count["input"] += len(images) * len(channels) * len(rows) * len(columns)
                    count["read"] += len(images) * len(held) * len(channels) * plane
                    outputs = touched(shape.rows, strip, rows) * touched(shape.columns, width, columns)
                    count["sums"] += 2 * len(images) * len(held) * outputs
        macs = shape.num_multiplications
        yield Accesses(
            dram={"filter": count["filter"], "input": count["fill"], "partial_sum": shape.num_outputs},
            buffer={
                "filter": count["filter"] + count["read"],
                "input_fill": count["fill"],
                "input": count["input"],
                "partial_sum": count["sums"],
            },
            neighbour={"filter": macs, "input": count["input"], "partial_sum": macs},
            register_file={"input": macs + count["input"]},
        )


def chunks(pixels: list[int], size: int) -> list[list[int]]:
    return [pixels[start : start + size] for start in range(0, len(pixels), size)]


@examples(60)
@given(axes(), axes(), st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3)))
def test_input_stationary_is_that_of_a_walk(rows: ConvAxis, columns: ConvAxis, counts: tuple[int, int, int]) -> None:
    """On 15 PEs with a buffer of 200 words: strips overlap, blocks do not fill them, sums come back."""
    rows, columns = (
        replace(axis, kernel=min(axis.kernel, 3), size=min(max(axis.size, 3), 7)) for axis in (rows, columns)
    )
    num_images, num_filters, num_channels = counts
    shape = shaped(rows, columns, num_images=num_images, num_filters=num_filters, num_channels=num_channels)
    energies = [sum(way.energy(SCARCE).values()) for way in input_stationary_ways(shape, SCARCE)]
    assert sum(best_accesses("input-stationary", shape, SCARCE).energy(SCARCE).values()) == min(energies)


def test_less_freedom_costs_more() -> None:
    shape = Shape(
        num_filters=16,
        num_channels=16,
        input_height=14,
        input_width=14,
        kernel_height=3,
        kernel_width=3,
        padding=(1, 1),
    )

    def energy(dataflow: str, **given: Allowed) -> float:
        return float(sum(best_accesses(dataflow, shape, EYERISS, **given).energy(EYERISS).values()))

    for dataflow in BASELINES:
        assert energy(dataflow, allowed=lambda *sizes: sizes[0] == 1) > energy(dataflow)
        assert energy(dataflow, allowed=any_block) == energy(dataflow)
        with pytest.raises(ValueError, match="none of a dataflow's blocks is allowed"):
            energy(dataflow, allowed=lambda *_: False)
    alone = best_accesses("weight-stationary", shape, EYERISS, lambda _filters, channels: channels == 1)
    assert alone.buffer["partial_sum"] == 2 * shape.num_outputs * shape.num_channels
