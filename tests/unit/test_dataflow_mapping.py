"""The choice of a mapping against trying all there are, on chips so small that this is quick."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow_reference import axes, shaped
from paceline.dataflow.accesses import Accesses
from paceline.dataflow.baselines import best_accesses
from paceline.dataflow.chips import Chip, load_chip
from paceline.dataflow.row_stationary import OBJECTIVES, Mapping, accesses, best_mapping, choose_mapping, cycles
from paceline.dataflow.shape import ConvAxis, Shape
from paceline.errors import UsageError
from properties import examples

EYERISS = load_chip("eyeriss")
SCARCE = replace(EYERISS, rows=3, columns=5, buffer=replace(EYERISS.buffer, banks=1, bank_bytes=256, filter_bytes=144))


@st.composite
def layers(draw: st.DrawFn, *, num_images: int, num_filters: int, num_channels: int) -> Shape:
    """Small ones with padding of 1 at most: under deeper padding uneven strips can save words, and none are tried."""
    rows, columns = (
        replace(axis, stride=min(axis.stride, 3), padding=min(axis.padding, 1), size=max(axis.size, axis.kernel))
        for axis in (draw(axes()), draw(axes()))
    )
    most = {"num_images": num_images, "num_filters": num_filters, "num_channels": num_channels}
    return shaped(rows, columns, **{name: draw(st.integers(1, number)) for name, number in most.items()})


@st.composite
def chips(draw: st.DrawFn) -> Chip:
    """A few PEs with a few words each, and a buffer of a few hundred words; not all hold every layer."""
    return replace(
        EYERISS,
        rows=draw(st.integers(1, 8)),
        columns=draw(st.integers(1, 5)),
        word_bits=draw(st.sampled_from([8, 16])),
        scratch_pads=replace(
            EYERISS.scratch_pads,
            filter=draw(st.integers(3, 20)),
            input=draw(st.integers(3, 10)),
            partial_sum=draw(st.integers(1, 5)),
        ),
        buffer=replace(
            EYERISS.buffer,
            banks=draw(st.integers(2, 12)),
            bank_bytes=draw(st.sampled_from([16, 32, 64])),
            filter_bytes=draw(st.sampled_from([32, 64, 128, 256])),
        ),
    )


def pixels(axis: ConvAxis, outputs: range) -> set[int]:
    """Places along an axis that some outputs read, counted from the first of the padding."""
    return {output * axis.stride + offset for output in outputs for offset in range(axis.kernel)}


def fits(shape: Shape, mapping: Mapping, chip: Chip) -> Any:
    """Whether a chip has room for a mapping, or for each of many."""
    m, n, e, p, q, r, t = (getattr(mapping, letter) for letter in "mnepqrt")
    width, pads, buffer = shape.kernel_width, chip.scratch_pads, chip.buffer
    in_pe = (p * q * width <= pads.filter) & (q * width <= pads.input) & (p <= pads.partial_sum)
    pieces = np.ceil(e / chip.columns)  # of a set, one below the other
    down, across = chip.rows // (shape.kernel_height * pieces), chip.columns // np.minimum(e, chip.columns)
    in_array = r * t <= down * across
    rows = np.array([len(pixels(shape.rows, range(count))) for count in range(shape.output_height + 1)])
    inputs = n * q * r * rows[e] * len(pixels(shape.columns, range(shape.output_width)))
    sums = n * m * e * shape.output_width
    banks = sum(np.ceil(words * chip.word_bytes / buffer.bank_bytes) for words in (inputs, sums))
    weights = p * t * q * r * shape.kernel_height * width
    in_buffer = (banks <= buffer.banks) & (weights * chip.word_bytes <= buffer.filter_bytes)
    shares = (p <= np.ceil(shape.num_filters / t)) & (q <= np.ceil(shape.num_channels / r))
    # Partial sums wait for all filters, or for those of whole passes.
    whole_passes = (m == shape.num_filters) | (m % (p * t) == 0)
    return in_pe & in_array & in_buffer & shares & whole_passes


def all_mappings(shape: Shape, chip: Chip) -> Mapping | None:
    """Every one that fits, as arrays."""
    filters, channels = shape.num_filters, shape.num_channels
    most = {"m": filters, "n": shape.num_images, "e": shape.output_height}
    most |= {"p": filters, "q": channels, "r": channels, "t": filters}
    numbers = np.indices(tuple(most.values())).reshape(len(most), -1) + 1
    found = Mapping(**dict(zip(most, numbers, strict=True)))
    which = fits(shape, found, chip)
    return Mapping(**{letter: numbers[which] for letter, numbers in vars(found).items()}) if which.any() else None


def costs(shape: Shape, mapping: Mapping, chip: Chip) -> dict[str, Any]:
    """By objective, as the table of the documentation has them."""
    moved, parts = accesses(shape, mapping), cycles(shape, mapping, chip)
    flowing = np.maximum(np.maximum(parts["compute"], parts["input"]), parts["partial_sum"])
    time = flowing + parts["filter_load"] + parts["window_load"]
    dram = sum(moved.dram.values())
    energy = sum(moved.energy(chip).values()) + shape.num_multiplications * chip.energy.mac
    return {"dram-delay": dram * time, "energy-delay": energy * time, "energy": energy, "time": time}


@examples(500)
@given(layers(num_images=3, num_filters=8, num_channels=6), chips())
def test_no_mapping_is_better_than_the_chosen(shape: Shape, chip: Chip) -> None:
    """It fits, and none that fits costs less by its objective, nor as much with less energy."""
    every = all_mappings(shape, chip)
    if every is None:
        for objective in OBJECTIVES:
            with pytest.raises(UsageError, match="layer conv cannot be mapped onto eyeriss"):
                choose_mapping("conv", shape, chip, objective)
        return
    rivals = costs(shape, every, chip)
    assert set(rivals) == set(OBJECTIVES)
    for objective, cost in rivals.items():
        chosen = best_mapping(shape, chip, objective)
        assert choose_mapping("conv", shape, chip, objective) == chosen
        assert fits(shape, chosen, chip), chosen
        ours = costs(shape, chosen, chip)
        best = np.lexsort((rivals["energy"], cost))[0]
        least = {letter: int(numbers[best]) for letter, numbers in vars(every).items()}
        assert (ours[objective], ours["energy"]) == (cost[best], rivals["energy"][best]), (objective, chosen, least)


def cut(whole: int, part: int) -> list[range]:
    return [range(start, min(start + part, whole)) for start in range(0, whole, part)]


def real(axis: ConvAxis, places: set[int]) -> int:
    return sum(axis.padding <= place < axis.padding + axis.size for place in places)


def weight_stationary_ways(shape: Shape, chip: Chip) -> Iterator[Accesses]:
    """Planes of a filters and b channels side by side; sums of m filters, n images and e rows in the buffer: all."""
    plane = shape.kernel_height * shape.kernel_width
    words = (chip.buffer.banks * chip.buffer.bank_bytes + chip.buffer.filter_bytes) // chip.word_bytes
    columns = pixels(shape.columns, range(shape.output_width))
    sizes = (shape.num_filters, shape.num_channels, shape.num_images, shape.output_height, shape.num_filters)
    for a, b, n, e, m in itertools.product(*(range(1, size + 1) for size in sizes)):
        inputs = n * b * len(pixels(shape.rows, range(e))) * len(columns)
        is_whole = m % a == 0 or m == shape.num_filters
        has_pes = a * b == 1 or a * b * plane <= chip.num_pes
        if is_whole and a <= m and has_pes and inputs + m * n * e * shape.output_width <= words:
            yield walked(shape, chip, a=a, b=b, n=n, e=e, m=m)


def walked(shape: Shape, chip: Chip, *, a: int, b: int, n: int, e: int, m: int) -> Accesses:
    """One way, block by block; a plane with more weights than there are PEs is gone through in several turns."""
    plane = shape.kernel_height * shape.kernel_width
    turns = len(cut(plane, chip.num_pes))
    columns = pixels(shape.columns, range(shape.output_width))
    loaded = fill = read = sums = 0
    for images, strip in itertools.product(cut(shape.num_images, n), cut(shape.output_height, e)):
        rows = pixels(shape.rows, strip)
        for held in cut(shape.num_filters, m):
            fill += len(images) * shape.num_channels * real(shape.rows, rows) * real(shape.columns, columns)
            for channels, filters in itertools.product(cut(shape.num_channels, b), cut(len(held), a)):
                loaded += len(filters) * len(channels) * plane
                read += turns * len(images) * len(channels) * len(rows) * len(columns)
                sums += turns * 2 * len(images) * len(filters) * len(strip) * shape.output_width
    macs = shape.num_multiplications
    return Accesses(
        dram={"filter": loaded, "input": fill, "partial_sum": shape.num_outputs},
        buffer={"filter": 2 * loaded, "input_fill": fill, "input": read, "partial_sum": sums},
        neighbour={"filter": loaded, "input": macs, "partial_sum": macs},
        register_file={"filter": macs + loaded},
    )


def check_weight_stationary(shape: Shape, chip: Chip) -> None:
    energies = [sum(way.energy(chip).values()) for way in weight_stationary_ways(shape, chip)]
    if energies:
        assert sum(best_accesses("weight-stationary", shape, chip).energy(chip).values()) == min(energies)
    else:
        with pytest.raises(
            UsageError, match="no tile of this layer's partial sums fits into the buffer of chip eyeriss"
        ):
            best_accesses("weight-stationary", shape, chip)


@examples(200)
@given(layers(num_images=3, num_filters=6, num_channels=6))
def test_no_way_is_better_than_the_one_found_for_weight_stationary(shape: Shape) -> None:
    """A buffer of 200 words and 15 PEs, fewer than the 16 weights of the largest plane."""
    check_weight_stationary(shape, SCARCE)


@examples(300)
@given(
    layers(num_images=2, num_filters=10, num_channels=3),
    st.integers(1, 8),
    st.sampled_from([16, 32, 64, 128]),
)
def test_nor_with_still_less_room(shape: Shape, num_pes: int, bank_bytes: int) -> None:
    """More filters than sums have room for; where there is no way at all, that is said."""
    buffer = replace(SCARCE.buffer, bank_bytes=bank_bytes, filter_bytes=32)
    check_weight_stationary(shape, replace(SCARCE, rows=1, columns=num_pes, buffer=buffer))
