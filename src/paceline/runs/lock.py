"""A lock on the folder of a study: one process at a time writes to it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import UsageError

LOCK_FILE = "recipe.toml"  # written once when the folder is made; the other files are replaced while a study runs


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock; refused with one sentence while another process holds it."""
    with (folder / LOCK_FILE).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"study {str(folder)!r} is being run by another process; wait until it ends, or start another with "
                "--fresh"
            ) from None
        yield  # closing the file releases the lock


def check_unlocked(folder: Path) -> None:
    """Raise where another process holds the lock."""
    with locked(folder):
        pass
