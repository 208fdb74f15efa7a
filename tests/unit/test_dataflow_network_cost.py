"""Networks on a chip: against the published table, what is chosen and what bounds it, and what cannot be mapped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.dataflow.accesses import compressed_share, encoded_share
from paceline.dataflow.baselines import BASELINES, best_accesses
from paceline.dataflow.chips import Chip, chip_names, load_chip
from paceline.dataflow.layers import LayerShape, alexnet, vgg16, with_unique_names
from paceline.dataflow.network_cost import analyse
from paceline.dataflow.row_stationary import OBJECTIVES, best_mapping, buffer_banks, choose_mapping, filter_bytes
from paceline.dataflow.shape import Shape, part_sizes
from paceline.errors import UsageError
from properties import examples

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
    assert set(ratios) == {"row-stationary", *BASELINES}
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
        assert mapping.m % (mapping.p * mapping.t) == 0 or mapping.m == layer.shape.num_filters
        assert mapping.m <= layer.shape.num_filters


@pytest.mark.parametrize("dataflow", BASELINES)
def test_other_dataflows_move_at_least_what_there_is(dataflow: str) -> None:
    for layer in alexnet(4):
        moved = best_accesses(dataflow, layer.shape, EYERISS)
        shape = layer.shape
        assert moved.dram["filter"] >= shape.num_filters * shape.weights_per_output
        assert moved.dram["partial_sum"] == shape.num_outputs
        assert moved.total("register_file") + moved.total("neighbour") >= 3 * shape.num_multiplications
        assert moved.buffer["input"] >= moved.buffer["input_fill"]  # what is never read need not be there


def test_layers_of_one_shape_share_a_mapping() -> None:
    best_mapping.cache_clear()
    layers = [replace(alexnet(1)[2], name=name) for name in ("first", "second", "first")]
    result = analyse(layers, EYERISS, with_baselines=False)
    assert (best_mapping.cache_info().misses, best_mapping.cache_info().hits) == (1, 2)
    assert [row["name"] for row in result["layers"]] == ["first", "second", "first (2)"]
    named = [replace(layers[0], name=name) for name in ("a", "a (2)", "a", "a")]
    assert [layer.name for layer in with_unique_names(named)] == ["a", "a (2)", "a (3)", "a (4)"]


def encode(values: list[int], longest: int) -> list[tuple[int, int]]:
    """Pairs of zeros before a value, and the value; zeros at the end are a last pair with value 0."""
    pairs: list[tuple[int, int]] = []
    run = 0
    for value in values:
        if value == 0 and run < longest:
            run += 1
        else:
            pairs.append((run, value))
            run = 0
    return [*pairs, (run - 1, 0)] if run else pairs


@examples(100)
@given(
    st.lists(st.sampled_from([0, 0, 0, 0, 1, -7]), min_size=1, max_size=300)
    | st.integers(1, 100).map(lambda count: [0] * count)
)
def test_the_size_of_run_length_coding_that_loses_nothing(values: list[int]) -> None:
    pairs = encode(values, 31)
    assert [item for run, value in pairs for item in [0] * run + [value]] == values
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
            analyse([LayerShape(name="odd", shape=Shape(**{**sizes, **changes}))], chip)
        return str(caught.value)

    assert "its 13 filter rows need as many rows of PEs, but the chip has 12" in refused(kernel_height=13)
    assert "a row of 13 weights needs as many words for inputs, but a PE has 12" in refused(kernel_width=13)
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
    assert load_chip(str(file)).about == "Eyeriss (JSSC 2017): 24 x 14 PEs at 200 MHz, 108 KB global buffer, 16 bits"
    huge = text.replace("banks = 25", f"banks = {10**9}").replace("bank_bytes = 4096", f"bank_bytes = {10**9}")
    file.write_text(huge.replace("rows = 12", f"rows = {10**9}").replace("columns = 14", f"columns = {10**9}"))
    assert analyse(alexnet(1)[:1], load_chip(str(file)))["layers"][0]["cycles"] > 0
    for wrong, words in {
        text.replace("rows = 12", "rows = 0"): "rows must be a whole number above 0, at most 1e+09, not 0",
        text.replace("rows = 12", 'rows = "12"'): "rows must be a whole number above 0, at most 1e+09, not '12'",
        text.replace("rows = 12", f"rows = {10**40}"): "holds a whole number beyond 64 bits",
        text.replace("480e6", "inf"): "bytes_per_s must be a number above 0, at most 1e+15, not inf",
        text.replace("480e6", "nan"): "not nan",
        text.replace(
            "word_bits = 16", "word_bits = 32"
        ): "needs 111 bits per compressed word (3 pairs of 5 + 32 bits), but a word has 64",
        text.replace("run_bits = 5", "run_bits = 4000"): "counts zeros in 4000 bits",
        text.replace("rows = 12", "rowz = 12"): "unknown key of chip",
        text.replace("input = 12", ""): "lacks input",
        text.replace("[dram]", "[dramm]"): "unknown key of chip",
        "rows =": "is not valid TOML",
    }.items():
        file.write_text(wrong)
        with pytest.raises(UsageError) as caught:
            load_chip(str(file))
        assert words in str(caught.value)
    file.write_bytes(text.encode().replace(b"# Eyeriss", b"# \xff"))
    with pytest.raises(UsageError, match="cannot be read"):
        load_chip(str(file))
    file.write_text(text.replace("word_bits = 16", "word_bits = 8").replace("pairs_per_word = 3", "pairs_per_word = 4"))
    assert analyse(alexnet(1), load_chip(str(file)), with_baselines=False)["total"]["dram_bytes"] > 0
    with pytest.raises(UsageError, match="does not exist"):
        load_chip(str(tmp_path / "none.toml"))
    with pytest.raises(UsageError, match="did you mean 'eyeriss'"):
        load_chip("eyeris")


def test_a_larger_array_is_faster_and_a_starved_one_is_bound_elsewhere() -> None:
    layer = alexnet(4)[2]
    usual = analyse([layer], EYERISS, with_baselines=False)["layers"][0]
    large = analyse([layer], replace(EYERISS, rows=24), with_baselines=False)["layers"][0]
    assert large["cycles"] < usual["cycles"]
    slow = replace(EYERISS, dram=replace(EYERISS.dram, bytes_per_s=1e6))
    assert analyse([layer], slow, with_baselines=False)["layers"][0]["bound"] == "dram"
    assert usual["bound"] == "compute"
    assert "energy_by_dataflow" not in usual


def test_loading_filters_is_the_buffers_part() -> None:
    """Many filters over few pixels: the PEs wait for weights much longer than they multiply."""
    sizes = {"input_height": 4, "input_width": 4, "kernel_height": 3, "kernel_width": 3, "padding": (1, 1)}
    layer = LayerShape(name="deep", shape=Shape(num_filters=512, num_channels=512, **sizes))
    fast = replace(EYERISS, dram=replace(EYERISS.dram, bytes_per_s=1e12))
    row = analyse([layer], fast, with_baselines=False)["layers"][0]
    assert row["cycles_by_cause"]["filter_load"] > row["cycles_by_cause"]["compute"]
    assert row["bound"] == "buffer"


def test_utilisation_is_of_the_time_that_is_shown() -> None:
    slow = replace(EYERISS, dram=replace(EYERISS.dram, bytes_per_s=1e6))
    result = analyse(alexnet(4)[2:4], slow, with_baselines=False)
    for row in (*result["layers"], result["total"]):
        assert row["time_s"] == row["dram_s"] > row["processing_s"]
        cycles = row["time_s"] * EYERISS.clock_hz
        assert row["utilisation"] == pytest.approx(row["macs"] / (EYERISS.num_pes * cycles))
        assert row["processing_utilisation"] == pytest.approx(row["macs"] / (EYERISS.num_pes * row["cycles"]))


def test_parts_that_divide_a_whole() -> None:
    assert part_sizes(13, 13) == [1, 2, 3, 4, 5, 7, 13]
    assert part_sizes(13, 4) == [1, 2, 3, 4]
    assert part_sizes(1, 5) == [1]
