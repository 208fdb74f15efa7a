"""Locks on the folders of runs and studies. A lock shows that a process writes to a folder.

The kernel holds the lock (flock), frees it when the process ends in any way, and shows it in all containers.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from paceline.errors import UsageError
from paceline.results import STUDY_FILE

LOCK_FILE = "recipe.toml"  # the file that is locked. It is never replaced, which would drop the lock.
WAIT_S = 1.0  # a reader that recovers measurements holds a shared lock for a moment
_RETRY_S = 0.02


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's or study's folder while the `with` block runs.

    Raises UsageError if another process holds the lock.
    """
    with ExitStack() as stack:
        try:
            _lock(stack.enter_context((folder / LOCK_FILE).open("ab")).fileno())
        except BlockingIOError:
            raise UsageError(_refusal(folder)) from None
        except OSError as error:
            raise UsageError(f"{str(folder)!r} cannot be locked: {error.strerror}; choose another --out") from None
        yield  # closing the file releases the lock


def check_unlocked(folder: Path) -> None:
    """Raise UsageError if another process holds the lock of this folder."""
    if is_locked(folder):
        raise UsageError(_refusal(folder))


def is_locked(folder: Path) -> bool:
    """Return whether a process writes to the folder of a run or study."""
    with not_written(folder) as is_free:
        return not is_free


@contextmanager
def not_written(folder: Path) -> Iterator[bool]:
    """Yield whether no process writes to the folder. If so, none starts to write while the `with` block runs.

    A folder without a lock file is one of the first versions, or damaged; nothing writes to it.
    """
    try:
        file = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        yield True
        return
    except OSError:  # the folder of another user: nothing can be known, and nothing may be changed
        yield False
        return
    try:
        yield try_lock(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def try_lock(file: int, kind: int) -> bool:
    """Lock a file without waiting. Return whether that succeeded. `kind` is LOCK_SH or LOCK_EX."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _lock(file: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_S)


def _refusal(folder: Path) -> str:
    if (folder / STUDY_FILE).is_file():
        advice = "wait until it ends, or start another with --fresh"
        return f"study {str(folder)!r} is being run by another process; {advice}"
    return f"run {str(folder)!r} is being run by another process; wait until it ends"
