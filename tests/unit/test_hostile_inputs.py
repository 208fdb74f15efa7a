"""Randomly mutated files and words: every command ends with exit code 0, 1 or 2 and one sentence."""

from __future__ import annotations

import io
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from command import Said, run_command
from paceline.dataflow.chips import load_chip
from paceline.dataflow.matrices import read_matrix
from paceline.errors import RunError, UsageError
from paceline.measure.inject import check_injections
from paceline.parsing import read_json, read_toml, read_toml_value, whole_number
from paceline.recipe import Recipe, load_recipe, parse_cluster, parse_set
from paceline.recipe.sections import ClusterConfig
from paceline.runs import find, read
from paceline.runs.stored import parse_time
from paceline.strategies import StrategySpec
from paceline.study.sweep_axes import apply_choice, parse_remedies, parse_vary
from report_samples import result, write_run

DIGITS = "9" * 5000
DEEP = "[" * 100_000
QUICK, THOROUGH = 300, 5000
PIECES = [
    *("=", ":", ",", ";", "+", "-", ".", "x", "\\", "'", '"', "#", "\n", "\t", "\x00", "\x1b[31m", "\u202e", "²", "٣"),
    *(
        "[",
        "]",
        "{",
        "}",
        "[[",
        "((((",
        "1e999",
        "nan",
        "inf",
        "-1",
        "0x" + "f" * 5000,
        DIGITS,
        "9" * 25,
        "true",
        "\ud800",
    ),
    *(DEEP, "a." * 2000 + "a", "None", "''", "1979-05-27T07:32:00Z", "%", "é", " "),
]


def mutated(text: str, chance: random.Random) -> str:
    """Return the text after one to three edits, which remove, double, swap or insert pieces."""
    for _ in range(chance.randint(1, 3)):
        first, last = sorted(chance.randint(0, len(text)) for _ in range(2))
        last = min(last, first + 8)
        edits = [
            text[:first] + text[last:],
            text[:last] + text[first:],
            text[:first] + chance.choice(PIECES) + text[last:],
        ]
        text = chance.choice([*edits, edits[-1]])
    return text


TIERS = pytest.mark.parametrize(
    "count", [pytest.param(QUICK, id="quick"), pytest.param(THOROUGH, id="thorough", marks=pytest.mark.slow)]
)


def assert_all_refused_or_read(words: list[str], read: Callable[[str], object], count: int) -> None:
    """Check that every mutated text is read, or refused with one sentence."""
    chance = random.Random(count)
    refused = 0
    for number in range(count):
        text = mutated(chance.choice(words), chance)
        try:
            read(text)
        except UsageError:
            refused += 1
        except Exception as error:
            pytest.fail(f"mutant {number}, {text[:200]!r}, ended in {type(error).__name__}: {str(error)[:200]}")
    assert 0 < refused <= count


@TIERS
def test_words_of_set(count: int) -> None:
    words = ["train.epochs=3", "optimizer.lr=0.1", "model.name=lenet5", "strategies=['ring','ddp']", "seed=5"]
    assert_all_refused_or_read(words, lambda word: Recipe().replace(parse_set([word])), count)


@TIERS
def test_recipe_files(count: int) -> None:
    assert_all_refused_or_read([Recipe().to_toml(), load_recipe("lenet5-mnist").to_toml()], Recipe.from_toml, count)


@TIERS
def test_strategy_specs(count: int) -> None:
    words = ["ring", "overlap:bucket_mb=5+int8", "stepwise:rotate=false:exact_every=7", "local-sgd:period=4"]
    words += ["ring+topk:ratio=0.05", "parameter-server:servers=2", "sharded+powersgd:rank=2"]
    assert_all_refused_or_read(words, lambda word: StrategySpec.parse(word, "fp32").build(), count)


@TIERS
def test_words_of_cluster(count: int) -> None:
    words = [
        "nodes=4,cpus=0.5,bandwidth=1gbit",
        "nodes=3,links=0-2:100mbit,slow=1:0.5",
        "nodes=2,latency=1ms,loss=0.1%",
    ]
    words += ["nodes=2,memory=2g"]
    assert_all_refused_or_read(words, lambda word: str(Recipe().replace(parse_cluster(word))), count)


@TIERS
def test_words_of_inject(count: int) -> None:
    words = [
        "slow:rank=1,ms=200,phase=backward",
        "slow:rank=1,factor=1.5",
        "kill:rank=3,step=50",
        "hang:rank=1,step=20",
    ]
    assert_all_refused_or_read(words, lambda word: check_injections([word], num_workers=4, total_steps=100), count)


@TIERS
def test_words_of_vary(count: int) -> None:
    words = ["batch-size=32,128,512", "lr=0.1,0.2", "strategy=ring,ddp", "strategy.bucket_mb=1,5", "seed=1,2"]

    def read(word: str) -> None:
        for axis in parse_vary([word]):
            for value in axis.values:
                apply_choice(Recipe(), {axis.key: value})

    assert_all_refused_or_read(words, read, count)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def mutated_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return mutations of the header's text and of single bytes, and truncations."""
    header = data[10:128].decode("latin1")
    if chance.random() < 0.6:
        data = data[:10] + mutated(header, chance).encode("latin1", errors="replace")[:118].ljust(118) + data[128:]
    for _ in range(chance.randint(0, 4)):
        place = chance.randrange(len(data))
        data = data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :]
    return data[: chance.randrange(len(data))] if chance.random() < 0.1 else data


@TIERS
def test_npy_files(count: int, tmp_path: Path) -> None:
    chance = random.Random(count)
    arrays = [npy(np.arange(12).reshape(3, 4)), npy(np.ones((2, 3, 3), dtype=np.float32))]
    file = tmp_path / "mutant.npy"
    refused = 0
    for number in range(count):
        data = mutated_bytes(chance.choice(arrays), chance)
        file.write_bytes(data)
        try:
            read_matrix(str(file), "--input")
        except UsageError:
            refused += 1
        except Exception as error:
            pytest.fail(f"mutant {number}, {data[:140]!r}, ended in {type(error).__name__}: {error}")
    assert refused > count / 4


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<i8', 'fortran_order': False, 'shape': (3, 4",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (3, 4), ",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999, 4), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (9999999999999999999999, 4), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-3, 4), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3, 4), }",
        "{'descr': 5, 'fortran_order': False, 'shape': (3, 4), }",
        "'''",
        "(" * 110,
        "\x00\x00",
    ],
)
def test_npy_headers_are_refused_by_the_command(header: str, tmp_path: Path) -> None:
    data = npy(np.arange(12).reshape(3, 4))
    (tmp_path / "input.npy").write_bytes(data[:10] + header.encode().ljust(117) + b"\n" + data[128:])
    said = run_command("dataflow", "conv", "--input", str(tmp_path / "input.npy"), "--kernel", "1 2; 3 4")
    assert_refused(said)
    assert "input.npy" in said.err


def assert_refused(said: Said) -> None:
    assert said.code == 2, said
    assert "Traceback" not in said.err
    assert len(said.err) < 2000
    assert said.err.strip()


@pytest.fixture
def nothing_starts() -> Iterator[None]:
    """Make commands end before they load data."""
    with mock.patch("paceline.cli.data.fetch_if_needed", side_effect=RunError("stopped by the test")):
        yield


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    "words",
    [
        ("--set", f"seed={DIGITS}"),
        ("--set", f"seed=0x{'f' * 5000}"),
        ("--set", f"train.epochs={'9' * 400}"),
        ("--set", f"optimizer.lr={'9' * 400}"),
        ("--set", f"seed={DEEP}"),
        ("--set", f"{DIGITS}=1"),
        ("--set", "model.name=3"),
        ("--seed", DIGITS),
        ("--seed", "9" * 4000),
        ("--workers", DIGITS),
        ("--cluster", f"nodes={DIGITS}"),
        ("--cluster", f"nodes={'9' * 4000}"),
        ("--cluster", f"nodes=2,links=0-{DIGITS}:1mbit"),
        ("--cluster", "nodes=2,slow=²:0.5"),
        ("--cluster", f"nodes=2,memory={DIGITS}g"),
        ("--strategy", f"overlap:bucket_mb={DIGITS}"),
        ("--strategy", f"local-sgd:period={'9' * 4000}"),
        ("--strategy", "x" * 100_000),
    ],
    ids=lambda words: f"{words[0]} {words[1][:20]}",
)
def test_words_are_refused_by_the_command(words: tuple[str, str]) -> None:
    with (
        mock.patch("paceline.cli.data.fetch_if_needed"),
        mock.patch("paceline.study.preflight.preflight", side_effect=RunError("stopped by the test")),
    ):
        assert_refused(run_command("run", *words))


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("text", [f"seed = {DIGITS}", f"seed = {DEEP}", "a." * 5000 + "a = 1", f"x = {'{a=' * 5000}"])
def test_recipe_files_are_refused_by_the_command(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    said = run_command("run", str(tmp_path / "mine.toml"))
    assert_refused(said)
    assert "mine.toml" in said.err


@pytest.mark.usefixtures("nothing_starts")
@TIERS
def test_commands_with_mutated_words(count: int) -> None:
    chance = random.Random(count)
    words = [("--set", "train.epochs=3"), ("--strategy", "overlap:bucket_mb=5"), ("--cluster", "nodes=4,cpus=0.5")]
    words += [("--inject", "slow:rank=2,ms=200"), ("--workers", "4"), ("--lr", "0.1")]
    for _ in range(count // 10):
        option, text = chance.choice(words)
        said = run_command("run", option, mutated(text, chance))
        assert said.code in (1, 2), said
        assert "Traceback" not in said.err


def test_chips_are_read_as_recipes_are(tmp_path: Path) -> None:
    for text in (f"x = {DEEP}", f"x = {DIGITS}", "x = ="):
        (tmp_path / "chip.toml").write_text(text)
        with pytest.raises(UsageError, match=r"chip '.*chip.toml' (is nested|holds a whole|is not valid TOML)"):
            load_chip(str(tmp_path / "chip.toml"))


def test_remedies_are_read_as_recipes_are() -> None:
    with pytest.raises(UsageError, match="holds a whole number beyond 64 bits"):
        parse_remedies([f"lars:momentum={DIGITS}"])


class TestParsing:
    def test_whole_numbers_have_plain_digits(self) -> None:
        assert [whole_number(text) for text in ("0", "12", "²", "٣", "", "-1", "1_0", DIGITS)] == [0, 12, *[None] * 6]

    def test_toml_is_bounded(self) -> None:
        assert read_toml("a = [[1], [2]]", "x") == {"a": [[1], [2]]}
        for text, reason in (
            (f"a = {DIGITS}", "beyond 64 bits"),
            (f"a = {DEEP}", "nested too deep"),
            ("a =", "not valid"),
        ):
            with pytest.raises(UsageError, match=f"x .*{reason}"):
                read_toml(text, "x")
        with pytest.raises(UsageError, match="nested too deep"):
            read_toml("a = " + "[" * 100 + "]" * 100, "x")

    def test_a_word_is_a_value_or_itself(self) -> None:
        words = ("3", "0.5", "true", "'a'", "a", "[1", "1\nb=2", "")
        assert [read_toml_value(word, "x") for word in words] == [3, 0.5, True, "a", "a", "[1", "1\nb=2", ""]

    def test_json_errors_are_one_sentence(self) -> None:
        assert read_json("[1]", "x") == [1]
        for text in (DEEP, DIGITS, "{"):
            with pytest.raises(UsageError, match=r"^x "):
                read_json(text, "x")


class TestStoredRuns:
    def test_names_and_ages_with_many_digits(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError):
            find(f"last~{DIGITS[:200]}", tmp_path)
        with pytest.raises(UsageError):
            parse_time(f"{DIGITS}d")

    def test_nested_files_are_damaged(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", result("ring", 0.01))
        (run / "recipe.toml").write_text(f"a = {DEEP}")
        assert read(run).recipe_values == {}
        (run / "summary.json").write_text(DEEP)
        said = run_command("runs", "--out", str(tmp_path), "show", "run")
        assert_refused(said)
        assert run_command("runs", "--out", str(tmp_path)).code == 0

    def test_left_over_folders_of_strange_names_stay(self, tmp_path: Path) -> None:
        strange = tmp_path / f".x.{socket.gethostname()}-².part"
        strange.mkdir()
        (strange / "weights").write_text("")
        said = run_command("runs", "--out", str(tmp_path), width=300)
        assert f"1 folder of unfinished runs of an earlier version: {strange}" in said.out
        assert strange.is_dir()

    def test_files_named_after_digits_that_are_not_numbers(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", result("ring", 0.01))
        (run / "workers").mkdir(exist_ok=True)
        (run / "workers" / "².jsonl").write_text("{")
        for words in (("runs", "--out", str(tmp_path), "show", "run"), ("trace", str(run)), ("report", str(run))):
            more = ("-o", str(tmp_path / "page.html")) if words[0] == "report" else ()
            said = run_command(*words, *more)
            assert said.code in (0, 2)
            assert "Traceback" not in said.err


def test_node_numbers_are_plain_digits() -> None:
    with pytest.raises(UsageError, match=r"cluster\.links '0-²:1mbit'"):
        ClusterConfig(nodes=3, links=("0-²:1mbit",))
