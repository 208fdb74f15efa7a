"""Whether code that a stored run or study names may be executed.

Runs are exchanged between people, and `file.py:name` in a recipe means: execute this file. What the user types on the
command line is trusted. What only a stored recipe names is trusted if the file lies in the current folder, where the
user's own code is, or if the user says so with --trust.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.plugins import is_reference

# Objects that the Python API has registered in this process. Another process finds nothing under this name.
_OWN_OBJECTS = "paceline.train.user_objects"
_SEPARATORS = re.compile(r"[,+;\s]")  # of strategies, options and codecs in one string
_STORES = ("study.json", "runs")  # what marks a folder as one that holds stored runs


def check_trusted(values: Any, source: str, *, folder: Path, typed: Any = (), trust: bool = False) -> None:
    """Raise UsageError if plain values, such as a stored recipe, name code that must not be executed.

    `source` describes the values in the message, and `folder` is the stored run's folder: code inside it came with it.
    `typed` has plain values that the user typed, whose references are trusted.
    """
    if trust:
        return
    known = set(references_in(typed))
    for reference in references_in(values):
        module = reference.partition(":")[0]
        if reference in known or module == _OWN_OBJECTS:
            continue
        file = _file_of(module)
        if file is None or not _is_in_current_folder(file, folder.resolve()):
            where = f"the file {str(file)!r}" if file is not None else f"the module {module!r}"
            raise UsageError(
                f"{source} names {reference!r}, but {where} is not part of your code in the current folder, so it "
                "is not executed; run the command in the folder of the code, or add --trust if you trust it"
            )


def references_in(values: Any) -> Iterator[str]:
    """Yield all references to code in plain values: `file.py:name` or `package.module:name`, anywhere in a text.

    A text such as `ring,mine.py:Star:rounds=2+int8` has several readings. All of them are yielded.
    """
    if isinstance(values, str):
        yield from _references_in_text(values)
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from references_in(key)
            yield from references_in(value)
    elif isinstance(values, Sequence) and not isinstance(values, bytes):
        for value in values:
            yield from references_in(value)


def _references_in_text(text: str) -> Iterator[str]:
    for colon in (match.start() for match in re.finditer(":", text)):
        name = re.match(r"\w*", text[colon + 1 :])
        assert name is not None
        before = text[:colon]
        starts = [0, *(match.end() for match in _SEPARATORS.finditer(before))]
        for start in starts:
            reference = f"{before[start:]}:{name[0]}"
            if is_reference(reference):
                yield reference


def _file_of(module: str) -> Path | None:
    """Return the file that a reference's module stands for, with links resolved; None if there is no such module."""
    if module.endswith(".py"):
        try:
            return Path(module).expanduser().resolve()
        except (RuntimeError, OSError, ValueError):  # no such home, a loop of links, a null character
            return None
    # find_spec of importlib would execute the packages around the module.
    search: Sequence[str] | None = None
    name = origin = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, search)
        if spec is None:
            return None
        search, origin = spec.submodule_search_locations or [], spec.origin or ""
    return Path(origin).resolve() if origin else None


def _is_in_current_folder(file: Path, stored: Path) -> bool:
    """Return whether a file lies in the current folder, but not in the folder with the stored runs."""
    while stored.parent.name in _STORES or (stored.parent / _STORES[0]).exists():
        stored = stored.parent
    here = Path.cwd().resolve()
    return file.is_relative_to(here) and (here.is_relative_to(stored) or not file.is_relative_to(stored))
