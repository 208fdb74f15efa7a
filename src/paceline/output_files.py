"""Write files that the user names: replace plain files atomically and durably; write directly to pipes and devices."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from paceline.durable_files import durable_file

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
    with durable_file(Path(os.path.realpath(target))) as binary:
        file = io.TextIOWrapper(binary, encoding="utf-8", newline="")
        yield file
        file.flush()
        file.detach()  # the file is closed by its owner


def is_stream(target: str | Path) -> bool:
    """Return whether a path exists and is not a plain file: a pipe, device or folder, or any file in /dev or /proc."""
    path = Path(target)
    return path.exists() and (not path.is_file() or path.absolute().parts[1] in SYSTEM_FOLDERS)
