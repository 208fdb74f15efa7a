"""Write files that the user names: replace plain files atomically, and write directly to pipes and devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

SYSTEM_FOLDERS = {"dev", "proc"}  # files in /dev and /proc must not be replaced, even if the OS calls them plain files


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
        with suppress(OSError):  # raised on a read-only disk, where the file was not created
            temporary.unlink(missing_ok=True)
        raise


def is_stream(target: str | Path) -> bool:
    """Return whether a path exists and is not a plain file: a pipe, device or folder, or any file in /dev or /proc."""
    path = Path(target)
    return path.exists() and (not path.is_file() or path.absolute().parts[1] in SYSTEM_FOLDERS)
