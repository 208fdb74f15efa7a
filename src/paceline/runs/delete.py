"""Deleting runs and studies, and nothing else."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from paceline.errors import RunError, UsageError
from paceline.results import RUN_FILE, STUDY_FILE
from paceline.runs.store import hidden_name
from paceline.runs.stored import Stored, read


def check_deletable(folder: Path, out: Path) -> Stored:
    """What is stored there; anything that is not surely a run or a study is refused with the reason."""
    if folder.is_symlink():
        raise UsageError(f"{str(folder)!r} is a link, and links are not followed; name the folder itself")
    if not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is not the folder of a run or a study; nothing was deleted")
    stored = read(folder)
    if any((folder / name).is_symlink() for name in (RUN_FILE, STUDY_FILE)):
        raise UsageError(f"{str(folder)!r} is neither a run nor a study; nothing was deleted")
    whole = folder.resolve()
    for other, name in ((Path.cwd(), "the folder that you are in"), (out, "the folder of all runs")):
        if other.resolve().is_relative_to(whole):
            raise UsageError(f"{str(folder)!r} holds {name}; nothing was deleted")
    return stored


def delete(folder: Path) -> None:
    """Take the folder away: out of sight in one step, so that nobody ever finds half of it."""
    try:
        hidden = Path(tempfile.mkdtemp(dir=folder.parent, **hidden_name(folder.name)))
        folder.rename(hidden)
        shutil.rmtree(hidden)  # links inside are taken away, what they lead to is not
    except OSError as error:
        raise RunError(f"{str(folder)!r} cannot be deleted: {error.strerror}") from error


def size_bytes(folder: Path) -> int:
    """Bytes of all files inside; links count as themselves."""
    total = 0
    for path, _, names in os.walk(folder):
        total += sum(os.lstat(os.path.join(path, name)).st_size for name in names)
    return total
