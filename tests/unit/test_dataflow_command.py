"""`paceline dataflow`: what it prints and writes, and what it says of requests that cannot be met."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from command import run_command
from paceline.present.animation import MAX_EVENTS

WORKED = ("dataflow", "conv", "--input", "1 3 9; 4 5 6; 7 4 9", "--kernel", "-1 2; 2 -1")


def test_the_worked_example_is_shown() -> None:
    said = run_command(*WORKED, width=250)
    assert said.code == 0
    for words in ("a logical set of 2 x 2 PEs", "PE(1,0)", "1: 2 -1", "2: 7 4 9", "-1 x 1 = -1, receives -1 and 1"):
        assert words in said.out
    for words in ("sends 3 to PE(0,0)", "8 cycles, 4 PEs of the logical set, utilisation 87.5%", "  16 6"):
        assert words in said.out
    assert said.out.count("complete") == 4


@pytest.mark.parametrize(("model", "cycles"), [("serial", 28), ("single-alu", 8), ("pipelined", 6), ("mac", 4)])
def test_its_json(model: str, cycles: int) -> None:
    said = run_command(*WORKED, "--model", model, "--json", "-")
    result = json.loads(said.out)
    assert result["output"] == [[8, 19], [16, 6]]
    assert (result["cycles"], result["pes"], result["model"]) == (cycles, 4, model)
    assert 0 < result["utilisation"] <= 1
    assert result["energy"]["mac"] == result["multiplications"] == 16


def test_folded_onto_fewer_pes() -> None:
    result = json.loads(run_command(*WORKED, "--pes", "1x1", "--json", "-").out)
    assert (result["output"], result["cycles"], result["folds"]) == ([[8, 19], [16, 6]], 28, 2)
    assert result["array"] == {"rows": 1, "columns": 1, "pes": 1, "utilisation": 1.0}
    assert "folded: 1 of 2 kernel rows at a time" in run_command(*WORKED, "--pes", "1x1").out


def test_files_channels_and_longer_operations(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(2 * 3 * 5 * 5).reshape(2, 3, 5, 5))
    (tmp_path / "w.csv").write_text("1,0\n0,1\n" * 6)
    given = ("dataflow", "conv", "--input", str(tmp_path / "x.npy"), "--kernel", str(tmp_path / "w.csv"))
    said = run_command(*given, "--channels", "3", "--filters", "2", "--stride", "2", "--padding", "1x0", "--json", "-")
    output = np.array(json.loads(said.out)["output"])
    assert output.shape == (2, 2, 3, 2)
    assert (output[:, 0] == output[:, 1]).all()
    slow = run_command(*WORKED, "--multiply-cycles", "3", "--add-cycles", "2")
    assert "(to cycle 3)" in slow.out
    assert f"{2 * (2 * 3 + 2) + 2 * 2} cycles" in slow.out


def test_large_and_broken_numbers_are_shown_whole() -> None:
    said = run_command("dataflow", "conv", "--input", "1234567 1; 2 3", "--kernel", "1 0; 0 1")
    assert "1234570" in said.out
    assert "0.333333" in run_command("dataflow", "conv", "--input", "0.3333333333 1", "--kernel", "1 0").out


def test_many_pes_are_listed_line_by_line() -> None:
    """7 x (2 x 3 - 1) + 7 x 2 cycles, of which two are shown."""
    said = run_command("dataflow", "conv", "--input", "random:9x9", "--kernel", "random:3x3", "--cycles", "2")
    assert "... 47 more cycles; --cycles N" in said.out
    assert "PE(2,6)" in said.out


def test_outputs_of_one_weight_are_announced() -> None:
    said = run_command("dataflow", "conv", "--input", "1 2; 3 4", "--kernel", "5", width=250)
    assert "5 x 4 = 20, receives 4: output [1, 1] complete" in said.out
    assert said.out.count("complete") == 4


def test_what_is_left_out_is_said() -> None:
    given = ("dataflow", "conv", "--input", "random:2x2x5x5", "--kernel", "random:3x2x3x3", "--cycles", "500")
    said = run_command(*given, "--pes", "3x4", width=250)
    assert "Values of PEs in the first of 6 passes:" in said.out
    assert "output row 0 of image 0, filter 0" in said.out
    for words in ("output of image 0, filter 0\n", "output of image 0, filter 1\n", "... 4 more outputs"):
        assert words in said.out
    for words in ("output [0, 0, 0, 0] complete", "output [1, 2, 2, 2] complete"):
        assert words in said.out
    assert "output of" not in run_command(*WORKED).out


def test_traces_pages_and_charts_are_written(tmp_path: Path) -> None:
    names = ("t.csv", "t.json", "t.vcd")
    for name in names:
        assert f"{tmp_path / name} (32 events)" in run_command(*WORKED, "--trace", str(tmp_path / name)).out
    page, chart = tmp_path / "a.html", tmp_path / "c.html"
    assert run_command(*WORKED, "--animate", str(page), "--chart", str(chart)).code == 0
    story = json.loads(page.read_text().partition('id="story">')[2].partition("</script>")[0])
    assert (story["cycles"], len(story["events"]), len(story["passes"])) == (8, 32, 1)
    operations = Counter(story["operations"][event[4]] for event in story["events"])
    assert operations == {"multiply": 16, "add": 8, "sum": 4, "send": 4}
    complete = {tuple(event[8:12]): event[7] for event in story["events"] if event[15]}
    assert complete == {(0, 0, 0, 0): "8", (0, 0, 0, 1): "19", (0, 0, 1, 0): "16", (0, 0, 1, 1): "6"}
    assert story["passes"][0]["pes"][2] == {
        "place": [1, 0],
        "filter": ["2", "-1"],
        "input": [["4", "5", "6"]],
        "image": 0,
        "number": 0,
        "filter_row": 1,
        "input_row": 1,
        "output_row": 0,
    }
    assert "Utilisation over time" in chart.read_text()
    assert run_command("dataflow", "network", "alexnet", "--chart", str(chart)).code == 0
    assert "Energy per MAC of all layers, by dataflow" in chart.read_text()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--pes", "0x4"), "is an array without PEs"),
        (("--stride", "0"), "the stride must be at least 1, not 0"),
        (("--stride", "fast"), "--stride 'fast' is neither a whole number"),
        (("--padding", "-1"), "the padding must not be negative"),
        (("--model", "systolic"), "unknown execution model 'systolic'"),
        (("--add-cycles", "0"), "--add-cycles must be at least 1"),
        (("--kernel", "1 2 3 4"), "the kernel (1 x 4) is larger than the padded input (3 x 3)"),
        (("--kernel", "1 2; 3"), "--kernel is ragged"),
        (("--kernel", "1 two"), "'two' is not a number"),
        (("--trace", "t.txt"), "ends in .csv, .json, .vcd"),
        (("--trace", "nowhere/t.csv"), "the folder 'nowhere' does not exist"),
        (("--animate", "page.txt"), "--animate 'page.txt': name a file that ends in .html"),
        (("--channels", "2"), "--input has 3 rows, which cannot be cut"),
        (("--stride=--5",), "--stride '--5' is neither a whole number"),
        (("--multiply-cycles", "1000000000", "--trace", "t.vcd"), "cycles, but the limit is 20,000,000"),
        (("--multiply-cycles", "1000000000", "--chart", "c.html"), "cycles are too many for a chart"),
        (("--multiply-cycles", "1000000000", "--animate", "a.html"), "are too many for one page"),
        (("--pes", "100000x100000", "--animate", "a.html"), "are too many for one page"),
        (
            ("--input", "random:1x200000", "--kernel", "random:1x1000"),
            "products per output row, but the limit is 20,000,000",
        ),
    ],
)
def test_requests_that_cannot_be_met(more: tuple[str, ...], words: str) -> None:
    said = run_command(*WORKED, *more, width=300)
    assert said.code == 2
    assert words in said.err
    assert said.out == ""


def test_utilisation_is_of_the_set_and_of_the_array() -> None:
    """Which the same PEs are where no array is given."""
    assert "utilisation 87.5%\n" in run_command(*WORKED, "--cycles", "0").out
    said = run_command(*WORKED, "--cycles", "0", "--pes", "1x1").out
    assert "28 cycles, 4 PEs of the logical set, utilisation 25.0% (of the 1 x 1 in the array: 100.0%)\n" in said


def test_other_models_and_passes_are_shown() -> None:
    said = run_command(*WORKED, "--pes", "1x1").out
    assert "Other models: serial 28, pipelined 22, mac 16 cycles" in said
    lines = [line.split() for line in said.partition(" cycle ")[2].partition("\noutput\n")[0].splitlines()[2:]]
    begins: dict[str, str] = {}
    for cycle, number, *_ in (words for words in lines if words and words[0].isdigit()):
        begins.setdefault(number, cycle)
    # 6 cycles of the first kernel row, 8 with the sums of the second
    assert begins == {"1": "1", "2": "7", "3": "15", "4": "21"}


def test_small_figures_are_shown_with_their_digits() -> None:
    given = ("dataflow", "network", "lenet5", "--input-shape", "1x28x28", "--linear", "--no-others", "--batch", "1")
    (line,) = (
        line for line in run_command(*given, width=140).out.splitlines() if " dram" in line and "linear3" in line
    )
    assert "0.00084 M" in line
    assert " 0.0 " not in line
    assert " 0.00 " not in line


def test_too_much_for_a_page(tmp_path: Path) -> None:
    given = ("dataflow", "conv", "--input", "random:40x40", "--kernel", "random:5x5", "--cycles", "0")
    said = run_command(*given, "--animate", str(tmp_path / "a.html"), width=300)
    assert said.code == 2
    assert f"which shows up to {MAX_EVENTS:,}" in said.err
    assert (said.out, list(tmp_path.iterdir())) == ("", [])


def test_a_network_is_shown() -> None:
    said = run_command("dataflow", "network", "alexnet", width=120)
    assert said.code == 0
    for words in ("96 1 7 16 1 1 2", "154", "weight-stationary", "compute", "Mappings chosen by dram-delay."):
        assert words in said.out
    assert "weight-stationary" not in run_command("dataflow", "network", "vgg16", "--no-others", width=120).out


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_only_columns_that_are_shown_are_explained(width: int) -> None:
    said = run_command("dataflow", "network", "alexnet", width=width)
    head = next(line for line in said.out.splitlines() if "mapping" in line)
    for column, words in {
        "zeros": "zeros: share of zeros",
        "buffer MB": "buffer MB: between",
        "DRAM MB": "DRAM MB: with",
    }.items():
        assert (column in head) == (words in " ".join(said.out.split())), (column, said.out)


def test_accesses_at_each_level_are_shown() -> None:
    said = run_command("dataflow", "network", "alexnet", width=100)
    result = json.loads(run_command("dataflow", "network", "alexnet", "--json", "-").out)
    (head,) = (line for line in said.out.splitlines() if "cycles" in line and "neighbours" in line)
    assert head.split() == ["layer", "cycles", "registers", "neighbours", "buffer", "DRAM"]
    lines = [line.split() for line in said.out.partition(head)[2].splitlines()]
    first, total = result["layers"][0], result["total"]
    for name, row in ((["CONV1"], first), (["all"], total)):
        words = [sum(row["accesses"][level].values()) for level in ("register_file", "neighbour", "buffer", "dram")]
        assert [*name, f"{row['cycles']:,}", *(f"{count / 1e6:,.2f}" for count in words)] in lines


def test_the_json_of_a_network(tmp_path: Path) -> None:
    file = tmp_path / "n.json"
    run_command("dataflow", "network", "alexnet", "--batch", "1", "--json", str(file))
    result = json.loads(file.read_text())
    assert (result["network"], result["batch"], result["chip"]) == ("alexnet", 1, "eyeriss")
    first = result["layers"][0]
    assert first["shape"]["num_images"] == 1
    assert set(first["mapping"]) == set("mnepqrt")
    assert set(first["accesses"]) == {"dram", "buffer", "neighbour", "register_file"}
    assert {"active_pes", "cycles", "time_s", "energy", "utilisation", "bound", "dram_bytes"} <= set(first)


def test_a_chip_to_start_from(tmp_path: Path) -> None:
    """What is printed is a chip: changed, it is another."""
    file = tmp_path / "mine.toml"
    printed = run_command("dataflow", "chip").out
    assert "rows = 12\n" in printed
    file.write_text(printed.replace("rows = 12\n", "rows = 24\n"))
    pes = [
        json.loads(run_command("dataflow", "network", "alexnet", "--chip", chip, "--json", "-").out)["layers"][0]["pes"]
        for chip in ("eyeriss", str(file))
    ]
    assert pes == [12 * 14, 24 * 14]
    said = run_command("dataflow", "chip", "eyeris")
    assert (said.code, said.out) == (2, "")
    assert "did you mean 'eyeriss'?" in said.err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("alexnett",), "did you mean 'alexnet'?"),
        (("lenet5",), "give --input-shape, such as 3x32x32"),
        (("lenet5", "--input-shape", "1x28"), "takes images (channels, height, width)"),
        (("lenet5", "--input-shape", "big"), "is not sizes such as 3x32x32"),
        (("lenet5", "--input-shape", "1x99999x99999"), "of 100,000,000 values at most"),
        (("lenet5", "--input-shape", "1" * 5000), "is not sizes such as 3x32x32"),
        (("alexnet", "--linear"), "alexnet is a fixed list of published convolutions"),
        (("alexnet", "--chip", "eyeris"), "did you mean 'eyeriss'?"),
        (("alexnet", "--objective", "speed"), "unknown objective 'speed'"),
        (("alexnet", "--batch", "1000000000"), "must be at most 100000"),
        (("last", "--runs", "nowhere"), "paceline: 'last' does not exist: 'nowhere' has 0 readable runs and studies"),
        (("mine", "--runs", "nowhere"), "(Nor is it a stored run: there is no run or study 'mine' in 'nowhere'"),
        (("none.py:model",), "model file 'none.py' does not exist"),
    ],
)
def test_networks_that_cannot_be(given: tuple[str, ...], words: str) -> None:
    said = run_command("dataflow", "network", *given, width=300)
    assert said.code == 2
    assert words in said.err
