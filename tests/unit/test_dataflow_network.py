"""Networks on a chip: against the published table, against counting by hand, and what cannot be mapped."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.dataflow.chips import Chip, chip_names, load_chip
from paceline.dataflow.compression import compressed_share, decode, encode, encoded_share
from paceline.dataflow.layers import Layer, alexnet, vgg16
from paceline.dataflow.mapping import OBJECTIVES, choose_mapping, divided
from paceline.dataflow.network import analyse
from paceline.dataflow.others import OTHERS, best_accesses
from paceline.dataflow.rowstationary import Mapping, accesses, buffer_banks, cycles, filter_bytes
from paceline.dataflow.shape import Shape
from paceline.errors import UsageError

# Published: processing ms, MACs, active PEs, buffer MB, DRAM MB.
TABLE = {
    "CONV1": (16.5, 421_660_800, 154, 18.5, 5.0),
    "CONV2": (39.2, 895_795_200, 135, 77.6, 4.0),
    "CONV3": (21.8, 598_081_536, 156, 50.2, 3.0),
    "CONV4": (16.0, 448_561_152, 156, 37.4, 2.1),
    "CONV5": (10.0, 299_040_768, 156, 24.9, 1.3),
}
EYERISS = load_chip("eyeriss")


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    return analyse(alexnet(4), EYERISS)


def test_alexnet_is_as_published(published: dict[str, Any]) -> None:
    """The tolerances are those that the chip's table is to be met with; active PEs and MACs are exact."""
    errors = []
    for row in published["layers"]:
        time_ms, macs, active, buffer_mb, dram_mb = TABLE[row["name"]]
        assert row["macs"] == macs
        assert row["active_pes"] == active
        assert row["buffer_traffic_bytes"] / 1e6 == pytest.approx(buffer_mb, rel=0.25)
        assert row["dram_bytes"] / 1e6 == pytest.approx(dram_mb, rel=0.25)
        errors.append(abs(1e3 * row["processing_s"] / time_ms - 1))
    assert max(errors) <= 0.20
    assert sum(errors) / len(errors) <= 0.10


def test_row_stationary_needs_least_energy(published: dict[str, Any]) -> None:
    ratios = {name: energy["over_row_stationary"] for name, energy in published["total"]["energy_by_dataflow"].items()}
    assert set(ratios) == {"row-stationary", *OTHERS}
    assert min(ratios, key=lambda name: ratios[name]) == "row-stationary"
    assert max(ratios, key=lambda name: ratios[name]) == "no-local-reuse"
    for row in published["layers"]:
        parts = row["energy"]
        assert parts["total"] == pytest.approx(
            sum(parts[key] for key in ("mac", "register_file", "neighbour", "buffer", "dram"))
        )


def test_published_shapes() -> None:
    assert sum(layer.num_macs for layer in vgg16(1)) == 15_346_630_656
    assert [layer.shape.output_height for layer in alexnet(1)] == [55, 27, 13, 13, 13]


@st.composite
def mapped(draw: st.DrawFn) -> tuple[Shape, Mapping]:
    """Small layers with any mapping of theirs."""
    kernel, stride = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    shape = Shape(
        num_images=draw(st.integers(1, 3)),
        num_filters=draw(st.integers(1, 6)),
        num_channels=draw(st.integers(1, 6)),
        input_height=draw(st.integers(kernel, 9)),
        input_width=draw(st.integers(kernel, 9)),
        kernel_height=kernel,
        kernel_width=draw(st.integers(1, kernel)),
        stride=(stride, stride),
    )
    p, t = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    passes = draw(st.integers(1, 3))
    mapping = Mapping(
        m=p * t * passes,
        n=draw(st.integers(1, shape.num_images)),
        e=draw(st.integers(1, shape.output_height)),
        p=p,
        q=draw(st.integers(1, 3)),
        r=draw(st.integers(1, 3)),
        t=t,
    )
    return shape, mapping


def pieces(whole: int, part: int) -> list[int]:
    return [min(part, whole - start) for start in range(0, whole, part)]


@settings(max_examples=300, deadline=None)
@given(mapped())
def test_closed_forms_equal_walking_through_the_loops(case: tuple[Shape, Mapping]) -> None:
    """Every pass is walked through, and what it moves is counted as it comes."""
    shape, mapping = case
    counted: dict[str, int] = dict.fromkeys(
        ("filter", "input", "sums", "macs", "compute", "window", "hops", "delivered"), 0
    )
    filters, channels = (
        pieces(shape.num_filters, mapping.p * mapping.t),
        pieces(shape.num_channels, mapping.q * mapping.r),
    )
    for images, rows in itertools.product(pieces(shape.num_images, mapping.n), pieces(shape.output_height, mapping.e)):
        input_rows = (rows - 1) * shape.stride[0] + shape.kernel_height
        for taken, depth in itertools.product(filters, channels):
            counted["filter"] += taken * depth * shape.kernel_height * shape.kernel_width
            counted["input"] += images * depth * input_rows * shape.padded_width
            counted["window"] += depth * input_rows * shape.kernel_width
            counted["sums"] += images * taken * rows * shape.output_width
            counted["hops"] += images * taken * rows * shape.output_width * (shape.kernel_height * mapping.r - 1)
            counted["delivered"] += taken * depth * shape.kernel_height * shape.kernel_width * rows
            busiest = -(-taken // mapping.t) * -(-depth // mapping.r)
            counted["compute"] += busiest * shape.kernel_width * shape.output_width * images
            counted["macs"] += (
                images * taken * rows * shape.output_width * depth * shape.kernel_height * shape.kernel_width
            )
    assert counted["macs"] == shape.num_multiplications
    moved, parts = accesses(shape, mapping), cycles(shape, mapping, EYERISS)
    assert moved.buffer["input"] == counted["input"]
    assert moved.buffer["partial_sum"] == 2 * counted["sums"]
    assert moved.neighbour["partial_sum"] == counted["hops"]
    if len(filters) * len(channels) > 1:
        assert moved.dram["filter"] == counted["filter"]
        assert moved.neighbour["filter"] == counted["delivered"]
        assert parts["filter_load"] == -(-counted["filter"] // EYERISS.network.filter)
    assert parts["compute"] == counted["compute"]
    assert parts["window_load"] == counted["window"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_chosen_mapping_fits_the_chip(objective: str) -> None:
    for layer in [*alexnet(4), *vgg16(3)[:4]]:
        mapping = choose_mapping(layer.name, layer.shape, EYERISS, objective)
        pads, width = EYERISS.scratch_pads, layer.shape.kernel_width
        assert mapping.p * mapping.q * width <= pads.filter
        assert mapping.q * width <= pads.input
        assert mapping.p <= pads.partial_sum
        assert mapping.active_pes(layer.shape) <= EYERISS.num_pes
        assert buffer_banks(layer.shape, mapping, EYERISS) <= EYERISS.buffer.banks
        assert filter_bytes(layer.shape, mapping, EYERISS) <= EYERISS.buffer.filter_bytes
        assert mapping.m % (mapping.p * mapping.t) == 0


def test_the_objective_is_met_best_by_its_own_mapping() -> None:
    layer = alexnet(4)[1]
    for objective, measure in OBJECTIVES.items():
        values = {
            other: float(measure(layer.shape, choose_mapping(layer.name, layer.shape, EYERISS, other), EYERISS))
            for other in OBJECTIVES
        }
        assert min(values.values()) == values[objective], objective


@pytest.mark.parametrize("dataflow", OTHERS)
def test_other_dataflows_move_at_least_what_there_is(dataflow: str) -> None:
    for layer in alexnet(4):
        moved = best_accesses(dataflow, layer.shape, EYERISS)
        shape = layer.shape
        assert moved.dram["filter"] >= shape.num_filters * shape.weights_per_output
        assert moved.dram["partial_sum"] == shape.num_outputs
        assert moved.total("register_file") + moved.total("neighbour") >= 3 * shape.num_multiplications


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([0, 0, 0, 0, 1, -7]), min_size=1, max_size=300)
    | st.integers(1, 100).map(lambda count: [0] * count)
)
def test_run_length_coding_loses_nothing(values: list[int]) -> None:
    pairs = encode(np.array(values), EYERISS)
    assert decode(pairs).tolist() == values
    assert all(0 <= run <= 31 for run, _ in pairs)
    words = -(-len(pairs) // 3)
    assert encoded_share(np.array(values), EYERISS) == min(1.0, 4 * words / len(values))


@pytest.mark.parametrize("zeros", [0.0, 0.387, 0.725, 0.793, 0.97, 0.999])
def test_the_expected_size_is_that_of_a_real_stream(zeros: float) -> None:
    """Half a million values: the share of non-zeros varies by well under 5 % of itself, even where few are left."""
    stream = (np.random.default_rng(1).random(500_000) >= zeros).astype(int)
    assert compressed_share(zeros, EYERISS) == pytest.approx(encoded_share(stream, EYERISS), rel=0.05)


def test_what_cannot_be_mapped_is_said() -> None:
    def refused(chip: Chip = EYERISS, **changes: Any) -> str:
        sizes = {"input_height": 40, "input_width": 40, "kernel_height": 3, "kernel_width": 3}
        with pytest.raises(UsageError, match="layer odd cannot be mapped onto eyeriss") as caught:
            analyse([Layer(name="odd", shape=Shape(**{**sizes, **changes}))], chip)
        return str(caught.value)

    assert "its 13 filter rows need as many rows of PEs, and there are 12" in refused(kernel_height=13)
    assert "a row of 13 weights needs as many words for inputs, and a PE has 12" in refused(kernel_width=13)
    small = replace(EYERISS, scratch_pads=replace(EYERISS.scratch_pads, filter=2))
    assert "a row of 3 weights does not fit into a PE's 2 words" in refused(small)
    assert "25 banks of 4096 bytes" in refused(input_width=30_000)


def test_chips(tmp_path: Path) -> None:
    assert "eyeriss" in chip_names()
    assert (EYERISS.num_pes, EYERISS.word_bytes) == (168, 2)
    text = (Path(__file__).parents[2] / "src" / "paceline" / "dataflow" / "chips" / "eyeriss.toml").read_text()
    file = tmp_path / "mine.toml"
    file.write_text(text.replace("rows = 12", "rows = 24"))
    assert load_chip(str(file)).rows == 24
    for wrong, words in {
        text.replace("rows = 12", "rows = 0"): "rows must be a whole number above 0, not 0",
        text.replace("rows = 12", 'rows = "12"'): "rows must be a whole number above 0, not '12'",
        text.replace("rows = 12", "rowz = 12"): "unknown key of chip",
        text.replace("input = 12", ""): "lacks input",
        text.replace("[dram]", "[dramm]"): "unknown key of chip",
        "rows =": "is not TOML",
    }.items():
        file.write_text(wrong)
        with pytest.raises(UsageError) as caught:
            load_chip(str(file))
        assert words in str(caught.value)
    with pytest.raises(UsageError, match="does not exist"):
        load_chip(str(tmp_path / "none.toml"))
    with pytest.raises(UsageError, match="did you mean 'eyeriss'"):
        load_chip("eyeris")


def test_a_larger_array_is_faster_and_a_starved_one_is_bound_elsewhere() -> None:
    layer = alexnet(4)[2]
    usual = analyse([layer], EYERISS, with_others=False)["layers"][0]
    large = analyse([layer], replace(EYERISS, rows=24), with_others=False)["layers"][0]
    assert large["cycles"] < usual["cycles"]
    slow = replace(EYERISS, dram=replace(EYERISS.dram, bytes_per_s=1e6))
    assert analyse([layer], slow, with_others=False)["layers"][0]["bound"] == "dram"
    assert usual["bound"] == "compute"
    assert "energy_by_dataflow" not in usual


def test_parts_that_divide_a_whole() -> None:
    assert divided(13, 13) == [1, 2, 3, 4, 5, 7, 13]
    assert divided(13, 4) == [1, 2, 3, 4]
    assert divided(1, 5) == [1]
