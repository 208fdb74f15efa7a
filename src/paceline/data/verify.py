"""Whether a file is the published one: by size and digest, computed once and remembered beside the file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from paceline.errors import UsageError
from paceline.results.value import Json

REMEMBERED = ".verified.json"


@dataclass(frozen=True)
class Pin:
    """What a published file must be."""

    size_bytes: int
    digest: str  # "md5:..." or "sha256:..." of the whole file


class Facts(TypedDict):
    """A verified file, as REMEMBERED stores it."""

    size_bytes: int
    mtime_ns: int
    digest: str


def verify(files: Iterable[tuple[Path, Pin]]) -> None:
    """Raise UsageError for the first file that is not what its pin says.

    A file that was verified before, and whose size and modification time have not changed, is not read again.
    """
    by_folder: dict[Path, list[tuple[Path, Pin]]] = {}
    for path, pin in files:
        by_folder.setdefault(path.parent, []).append((path, pin))
    for folder, members in by_folder.items():
        remembered = _recall(folder)
        news = {}
        for path, pin in members:
            facts = _facts(path, pin)
            if remembered.get(path.name) != facts:
                problem = mismatch(path, pin)
                if problem:
                    raise UsageError(f"data file {path} {problem}; delete it and get it again")
                news[path.name] = facts
        if news:
            _remember(folder, remembered | news)


def mismatch(path: Path, pin: Pin) -> str:
    """What is wrong with a file, or an empty string. Always reads the file."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes != pin.size_bytes:
            return f"has {size_bytes} bytes, not the expected {pin.size_bytes}"
        algorithm, _, expected = pin.digest.partition(":")
        with path.open("rb") as stream:
            # Some of the publishers give md5 alone; saying that it guards no secret lets hardened systems compute it.
            found = hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if found == expected else f"is corrupt: its {algorithm} is {found}, not the expected {expected}"


def _facts(path: Path, pin: Pin) -> Facts:
    try:
        status = path.stat()
    except OSError as error:
        raise UsageError(f"data file {path} cannot be read ({error.strerror})") from None
    # The pinned digest is part of the facts, so that a file accepted under another pin is read again.
    return {"size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "digest": pin.digest}


def _recall(folder: Path) -> Json:
    try:
        remembered = json.loads((folder / REMEMBERED).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return remembered if isinstance(remembered, dict) else {}


def _remember(folder: Path, facts: Json) -> None:
    text = json.dumps(facts, indent=1, sort_keys=True) + "\n"
    # In a read-only folder the files are verified again next time, which costs only time.
    with contextlib.suppress(OSError):
        write_beside(folder / REMEMBERED, text.encode())


def write_beside(path: Path, content: bytes) -> None:
    """Write a file so that no reader ever sees a part of it, however many processes write it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
