"""Files that a user asked for by name: whole or not at all, and never in place of what is no file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

SYSTEM = {"dev", "proc"}  # what is there stands for something else, even where it looks like a plain file


@contextmanager
def whole_file(target: str | Path) -> Iterator[TextIO]:
    """A file to write text to: beside its place first, then moved there, so that a reader never sees half of it.

    A link keeps pointing where it does, and what it points at is replaced. Pipes and devices are written to.
    """
    if is_stream(target):
        with open(target, "w", encoding="utf-8", newline="") as file:
            yield file
        return
    path = Path(os.path.realpath(target))
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("w", encoding="utf-8", newline="") as file:
            yield file
        beside.replace(path)
    except BaseException:
        with suppress(OSError):  # on a read-only disk there is nothing to take away
            beside.unlink(missing_ok=True)
        raise


def is_stream(target: str | Path) -> bool:
    """Whether a name is one of a pipe, a device or the like."""
    path = Path(target)
    return path.exists() and (not path.is_file() or path.absolute().parts[1] in SYSTEM)
