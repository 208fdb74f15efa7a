"""Lookup of classes by name in our packages, and of users' objects by `file.py:name`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.codecs import Codec, codecs
from paceline.comm import comms
from paceline.errors import PacelineError, RunError, UsageError, WorkerError, unknown
from paceline.launch.registry import launchers
from paceline.plugins import (
    accepted_arguments,
    call_factory,
    digests_of_files,
    is_reference,
    load_reference,
    refuse_file_alone,
)
from paceline.strategies import Strategy, strategies


@pytest.fixture(autouse=True)
def forgets_modules() -> Iterator[None]:
    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.startswith(("paceline_user_", "neighbour_of_")):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("file.py:name", True),
        ("some/where/file.py:Class", True),
        ("package.module:name", True),
        ("file.py:Class:option=1", True),
        ("file.py", False),
        ("file.py:", False),
        ("file.py:not a name", False),
        ("ring", False),
        ("ring:bucket_mb=5", False),
        ("module:name", False),
        ("folder:some.where/images", False),
    ],
)
def test_what_is_a_reference(text: str, expected: bool) -> None:
    assert is_reference(text) is expected


def test_a_file_is_loaded_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import dataclasses\nCALLS = []\n@dataclasses.dataclass\nclass Thing:\n    x: int = 1\n")
    first = load_reference(f"{file}:Thing", "thing")
    assert load_reference(f"{file}:Thing", "thing") is first
    assert load_reference(f"{tmp_path}/../{tmp_path.name}/mine.py:Thing", "thing") is first
    assert load_reference("collections:OrderedDict", "thing") is __import__("collections").OrderedDict


def test_files_of_one_name_are_apart(tmp_path: Path) -> None:
    for name, value in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(f"VALUE = {value}\n")
    assert [load_reference(f"{tmp_path}/{name}/mine.py:VALUE", "value") for name in "ab"] == [1, 2]


def test_a_file_imports_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from neighbour_of_mine import VALUE\n")
    (tmp_path / "other.py").write_text("VALUE = 5\n")
    (tmp_path / "neighbour_of_mine.py").write_text("VALUE = 3\n")
    assert load_reference(f"{tmp_path}/mine.py:VALUE", "value") == 3
    assert load_reference(f"{tmp_path}/other.py:VALUE", "value") == 5
    assert sys.path.count(str(tmp_path)) == 1
    assert sys.path[-1] == str(tmp_path), "the user's files hide no installed module"


def test_a_module_is_found_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "neighbour_of_tests"
    package.mkdir()
    (package / "module.py").write_text("VALUE = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])  # as for an installed script
    assert load_reference("neighbour_of_tests.module:VALUE", "value") == 7
    assert sys.path[-1] == str(tmp_path)


@pytest.mark.parametrize("text", ["mine.py", "some/mine.py:", "mine.py:not a name"])
def test_a_file_alone_names_nothing(text: str) -> None:
    file = text.partition(":")[0]
    with pytest.raises(UsageError, match=re.escape(f"model {text!r} names no function; write {file}:FUNCTION")):
        refuse_file_alone(text, "model")
    with pytest.raises(UsageError, match=re.escape(f"strategy {text!r} names no class; write {file}:CLASS")):
        strategies.get(text)
    refuse_file_alone("mine.py:model", "model")
    refuse_file_alone("lenet5", "model")


@pytest.mark.parametrize(
    ("text", "reference", "sentence"),
    [
        (None, "{}:model", "model file '.*' does not exist"),
        ("def modle(): pass\n", "{}:model", "unknown model in .* 'model'; did you mean 'modle'"),
        ("1 / 0\n", "{}:model", "model file '.*' raised ZeroDivisionError: division by zero"),
        ("def (:\n", "{}:model", "model file '.*' raised SyntaxError"),
        (None, "no.such.module:model", "model module 'no.such.module' cannot be imported: ModuleNotFoundError"),
    ],
)
def test_references_that_do_not_exist(tmp_path: Path, text: str | None, reference: str, sentence: str) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    before = set(sys.modules)
    with pytest.raises(UsageError, match=sentence):
        load_reference(reference.format(file), "model")
    if text is not None and "raised" in sentence:
        assert set(sys.modules) == before, "a file that failed is read again next time"


def test_factories(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def good(a, b=2): return a + b\ndef bad(): raise OSError('no disk')\nNUMBER = 3\n")
    assert call_factory(f"{file}:good", "model", 1, b=5) == 6
    with pytest.raises(UsageError, match=r"model '.*:bad' raised OSError: no disk"):
        call_factory(f"{file}:bad", "model")
    with pytest.raises(UsageError, match=r"model '.*:NUMBER' is a int; name a function or a class"):
        call_factory(f"{file}:NUMBER", "model")


def test_a_factory_gets_the_arguments_that_it_has() -> None:
    offered = {"shape": (1, 2), "num_classes": 3}

    def takes_one(shape: Any) -> None: ...

    def takes_all(**anything: Any) -> None: ...

    assert accepted_arguments(takes_one, offered) == {"shape": (1, 2)}
    assert accepted_arguments(takes_all, offered) == offered
    assert accepted_arguments(lambda: None, offered) == {}


@pytest.mark.parametrize("registry", [strategies, codecs, comms, launchers], ids=lambda registry: registry.kind)
def test_a_registry_finds_one_class_for_each_name(registry: Any) -> None:
    assert list(registry.classes) == sorted(registry.classes)
    assert all(cls.name == name for name, cls in registry.classes.items())
    assert list(registry) == list(registry.classes.values())
    for name, cls in registry.classes.items():
        assert registry.get(name) is cls


def test_abstract_classes_are_not_offered() -> None:
    assert all(not getattr(cls, "__abstractmethods__", None) for cls in [*strategies, *codecs])
    assert Strategy not in list(strategies)
    assert Codec not in list(codecs)
    assert "Cast" not in {cls.__name__ for cls in codecs}


def test_a_class_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'paceline\.codecs\.cast:Fp16' is not a Strategy class"):
        strategies.get("paceline.codecs.cast:Fp16")
    with pytest.raises(UsageError, match=r"is not a Strategy class"):
        strategies.get("paceline.strategies.ring:PIECE_BYTES")


def test_unknown_names_give_the_nearest_or_all() -> None:
    assert str(unknown("fruit", "aple", ["pear", "apple"])) == "unknown fruit 'aple'; did you mean 'apple'?"
    assert str(unknown("fruit", "xyz", ["pear", "apple"])) == "unknown fruit 'xyz'; known: apple, pear"


def test_the_tree_of_errors() -> None:
    assert issubclass(UsageError, PacelineError)
    assert issubclass(UsageError, ValueError)
    assert issubclass(WorkerError, RunError)
    error = WorkerError(3, "died", "Traceback ...")
    assert (str(error), error.rank, error.traceback) == ("worker 3 died", 3, "Traceback ...")


def test_files_that_words_refer_to_have_digests(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("x = 1\n")
    words = ["ring", f"{file}:Mine:k=2+bf16", f"{tmp_path / 'missing.py'}:f", "package.module:name"]
    first = digests_of_files(words)
    assert list(first) == [str(file)]
    file.write_text("x = 2\n")
    assert digests_of_files(words) != first
