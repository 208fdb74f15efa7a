"""Matrices from text and files, and what is said of those that are none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paceline.dataflow.matrices import make_operands, read_matrix
from paceline.dataflow.shape import Shape, parse_array, parse_pair
from paceline.errors import UsageError

ROWS = [[1, 3, 9], [4, 5, 6]]


@pytest.mark.parametrize(
    "text", ["1 3 9; 4 5 6", "1,3,9;4,5,6", " 1 3 9 ;\n 4, 5, 6 ; ", "1 3 9\n4 5 6", "[[1,3,9],[4,5,6]]"]
)
def test_text(text: str) -> None:
    matrix = read_matrix(text, "--input")
    assert matrix.tolist() == ROWS
    assert matrix.dtype == np.int64


def test_a_number_with_a_point_makes_all_of_them_floating(tmp_path: Path) -> None:
    assert read_matrix("1 0.5", "--input").dtype == np.float64
    file = tmp_path / "a.npy"
    np.save(file, np.array(ROWS, dtype=np.float32))
    assert read_matrix(str(file), "--input").dtype == np.float64


def test_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(ROWS, dtype=np.uint8))
    (tmp_path / "a.csv").write_text("1,3,9\n4,5,6\n\n")
    (tmp_path / "a.json").write_text(json.dumps([[ROWS, ROWS]]))
    (tmp_path / "marked.csv").write_text("1,3,9\n4,5,6\n", encoding="utf-8-sig")
    assert read_matrix(str(tmp_path / "marked.csv"), "--input").tolist() == ROWS
    assert read_matrix(str(tmp_path / "a.npy"), "--input").tolist() == ROWS
    assert read_matrix(str(tmp_path / "a.csv"), "--input").tolist() == ROWS
    assert read_matrix(str(tmp_path / "a.json"), "--input").shape == (1, 2, 2, 3)


def test_random_ones_are_the_same_for_a_seed() -> None:
    first = read_matrix("random:2x3x4x5:7", "--input")
    assert first.shape == (2, 3, 4, 5)
    assert (first == read_matrix("random:2x3x4x5:7", "--input")).all()
    assert (first != read_matrix("random:2x3x4x5:8", "--input")).any()
    assert (first != read_matrix("random:2x3x4x5:7", "--kernel")).any()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "--input is empty"),
        (";;", "has no rows"),
        ("1 2; 3", "--input is ragged: row 1 has 2 numbers, but row 2 has 1 number"),
        ("1 2; 3 x", "--input, row 2, column 2: 'x' is not a number"),
        ("1 2; 3 nan", "not finite"),
        ("1 1e999", "not finite"),
        ("[[1, 2], [3]]", "--input is ragged: [0] and [1] differ in size"),
        ("[[1, 2], [3, null]]", "--input[1][1]: null is not a number"),
        ("[[1, 2], [3, true]]", "true is not a number"),
        ("[[1, 2], []]", "--input[1] is an empty list"),
        ("[[1, 2", "is not JSON"),
        ("[1, 2]", "has 1 dimensions"),
        ("[[[[[1]]]]]", "has 5 dimensions"),
        ("[[[[[[1]]]]]]", "has more than 4 dimensions"),
        ("[" * 5000 + "1" + "]" * 5000, "nested too deep"),
        ("1,,3; 4,5,6", "--input, row 1, column 2: an empty cell is not a number"),
        ("1,,3; 4,5", "--input is ragged"),
        ("1,2,; 3,4,", "an empty cell is not a number"),
        ("random:99999x99999", "asks for 9,999,800,001 values"),
        (f"{'n' * 5000}.csv", "cannot be read"),
        ("random:0x3", "a side of length 0"),
        ("99999999999999999999 1", "a whole number beyond 64 bits"),
        ("[[9223372036854775808, -1]]", "a whole number beyond 64 bits"),
        ("1_0 2", "'1_0' is not a number"),
        ("random:axb", "is not random:SIZES with 2 to 4 sizes, such as 3x8x8"),
        ("random:1x2x3x4x5", "is not random:SIZES with 2 to 4 sizes"),
        ("mine.npz", "cannot be read; use a file that ends in .npy, .csv, .json"),
        ("none.npy", "there is no file 'none.npy'"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_matrix(text, "--input")
    assert words in str(caught.value)


def test_files_that_hold_something_else(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "pickled.npy", np.array([[{}]]), allow_pickle=True)
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "ragged.csv").write_text("1,2\n3\n")
    (tmp_path / "holes.csv").write_text("1,,2\n3,4,5\n")
    (tmp_path / "long.csv").write_text("1 " * 100_000)
    np.savez(tmp_path / "several.npz", one=np.ones((2, 2)))
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    for name in (file.name for file in tmp_path.iterdir()):
        with pytest.raises(UsageError, match="--kernel"):
            read_matrix(str(tmp_path / name), "--kernel")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kernel_height": 4}, "the kernel (4 x 2) is larger than the padded input (3 x 3)"),
        ({"stride": (0, 1)}, "the stride must be at least 1, not 0x1"),
        ({"stride": (0, 0)}, "the stride must be at least 1, not 0"),
        ({"padding": (-1, 0)}, "the padding must not be negative"),
        ({"num_channels": 0}, "num channels must be at least 1"),
    ],
)
def test_shapes_that_cannot_be(changes: dict[str, object], words: str) -> None:
    sizes = {"input_height": 3, "input_width": 3, "kernel_height": 2, "kernel_width": 2}
    with pytest.raises(UsageError) as caught:
        Shape(**{**sizes, **changes})  # type: ignore[arg-type]
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["0x4", "4x0", "12", "x", "axb", "-1x4", "2x3x4", f"{'1' * 5000}x2"])
def test_arrays_without_pes(text: str) -> None:
    with pytest.raises(UsageError, match="--pes"):
        parse_array(text)


def test_pairs() -> None:
    assert parse_pair("2", "--stride") == (2, 2)
    assert parse_pair("2x1", "--stride") == (2, 1)
    assert parse_array("12x14") == (12, 14)
    assert parse_pair("-1x2", "--stride") == (-1, 2)
    for text in ("", "a", "1x2x3", "1.5", "--5", "-", "1" * 5000):
        with pytest.raises(UsageError, match="--stride"):
            parse_pair(text, "--stride")


def test_a_plain_matrix_is_cut_into_channels_and_images() -> None:
    operands = make_operands(
        np.arange(24).reshape(12, 2), np.ones((2, 2), dtype=int), num_channels=2, num_images=2, padding=(0, 0)
    )
    assert operands.images.shape == (2, 2, 3, 2)
    assert operands.filters.shape == (1, 2, 1, 2)
    assert operands.images[1, 0].tolist() == [[12, 13], [14, 15], [16, 17]]
    with pytest.raises(UsageError, match="7 rows, which cannot be cut"):
        make_operands(np.ones((7, 2), dtype=int), np.ones((2, 2), dtype=int), num_channels=2)
    with pytest.raises(UsageError, match="--channels 3 conflicts with --input, which has 2"):
        make_operands(np.ones((2, 4, 4)), np.ones((6, 2)), num_channels=3)
    with pytest.raises(UsageError, match="the input has 2 channels, but the kernel has 1"):
        make_operands(np.ones((2, 4, 4)), np.ones((2, 2)))
    with pytest.raises(UsageError, match="--filters must be at least 1"):
        make_operands(np.ones((4, 4)), np.ones((2, 2)), num_filters=0)


def test_sums_that_could_pass_64_bits_are_refused() -> None:
    large = np.full((2, 2), 2**31)
    with pytest.raises(UsageError, match="too large to be added up in 64 bits"):
        make_operands(large, large)
    assert make_operands(large.astype(float), large).images.dtype == np.float64
    with pytest.raises(UsageError, match="could overflow a float"):
        make_operands(np.full((2, 2), 1e300), np.full((1, 1), 1e300))


def test_padding_beyond_all_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="the padded input has"):
        make_operands(np.ones((2, 2)), np.ones((1, 1)), padding=(10**8, 10**8))
