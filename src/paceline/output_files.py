"""Output files named by the user. They are written atomically; pipes and devices are never replaced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

SYSTEM_FOLDERS = {"dev", "proc"}  # entries there are never plain files, even if they look like it


@contextmanager
def atomic_file(target: str | Path) -> Iterator[TextIO]:
    """Open a text file that replaces `target` when the block succeeds, so that readers never see a partial file.

    A symbolic link stays, and its target is replaced. Pipes and devices are written to directly.
    """
    if is_stream(target):
        with open(target, "w", encoding="utf-8", newline="") as file:
            yield file
        return
    path = Path(os.path.realpath(target))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # on a read-only disk there is nothing to remove
            temporary.unlink(missing_ok=True)
        raise


def is_stream(target: str | Path) -> bool:
    """Return whether a path exists and is not a plain file, but a pipe or a device, for example."""
    path = Path(target)
    return path.exists() and (not path.is_file() or path.absolute().parts[1] in SYSTEM_FOLDERS)
