"""Write and delete the folders in which runs and studies are stored.

A folder gets its final name only once it is complete. A lock ensures that only one process writes to a study.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from paceline.errors import RunError, UsageError
from paceline.parsing import whole_number
from paceline.recipe import Recipe
from paceline.results import RUN_FILE, STUDY_FILE, Environment, RunRecord, StudyResult, Value, encode, to_json
from paceline.results.worker_report import WorkerReport
from paceline.runs.stored import Stored, read
from paceline.text import file_name_of

LOCK_FILE = "recipe.toml"  # the file that is locked: other files are replaced during a study, which would drop the lock


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a study's folder while the `with` block runs.

    Raises UsageError if another process holds the lock.
    """
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
    """Raise UsageError if another process holds the lock of this study's folder."""
    with locked(folder):
        pass


class Folder:
    """A folder of results that is written under a hidden name. `commit` renames it to its final name."""

    def __init__(self, out: Path, name: str) -> None:
        self._out = out
        self._name = name
        self._is_kept = False
        try:
            out.mkdir(parents=True, exist_ok=True)
            _delete_leftovers(out)
            self.path = Path(tempfile.mkdtemp(dir=out, **hidden_name(name)))
        except OSError as error:
            raise UsageError(
                f"results cannot be written to {str(out)!r}: {error.strerror}; choose another --out"
            ) from None
        self.path.chmod(0o755)

    @classmethod
    def reopen(cls, path: Path) -> Folder:
        """Open the folder of an unfinished run to continue it. It keeps its name, and is never deleted."""
        folder = cls.__new__(cls)
        folder._out, folder._name, folder.path = path.parent, path.name, path
        folder._is_kept = True
        return folder

    def write_json(self, name: str, value: Value) -> None:
        self.write_text(name, encode(value).decode())

    def write_text(self, name: str, text: str) -> None:
        target = self.path / name
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")

    def make_subfolder(self, name: str) -> Path:
        """Create a subfolder. If that fails, delete the whole folder and raise RunError."""
        inner = self.path / name
        try:
            with disk_errors(inner):
                inner.mkdir(exist_ok=self._is_kept)
        except RunError:
            self.discard()
            raise
        return inner

    def commit(self) -> Path:
        """Rename the folder to its final name, and return its path.

        If a folder with that name exists, a number is appended to the name.
        """
        if self._is_kept:
            return self.path
        number = 1
        while True:
            final = self._out / (self._name if number == 1 else f"{self._name}-{number}")
            try:
                with disk_errors(final):
                    self.path.rename(final)
            except RunError as error:
                if not final.exists():
                    raise error
                number += 1
                continue
            self.path = final
            return final

    def discard(self) -> None:
        if self._is_kept:
            return
        shutil.rmtree(self.path, ignore_errors=True)


def hidden_name(name: str) -> dict[str, str]:
    """Return prefix and suffix of a hidden temporary folder's name, as arguments of tempfile.mkdtemp.

    The suffix contains the host name and the id of the process that writes the folder.
    """
    return {"prefix": f".{name}.", "suffix": f".{socket.gethostname()}-{os.getpid()}.part"}


def _delete_leftovers(out: Path) -> None:
    """Delete temporary folders left behind by processes of this host that have ended."""
    for folder in out.glob(f".*.{socket.gethostname()}-*.part"):
        pid = folder.name.rpartition(".part")[0].rpartition("-")[2]
        if (number := whole_number(pid)) is not None and not psutil.pid_exists(number):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError in the `with` block into a RunError that names the file and the reason."""
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        raise RunError(f"{path.name} cannot be written: {reason}") from error


def timestamped(name: str) -> str:
    """Return a folder name that consists of the current time and `name`."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{file_name_of(name, allowed='-_.', other='-')}"[:100]


def without_timestamp(name: str) -> str:
    """Return a folder name without the time at its beginning."""
    return re.sub(r"^\d{8}-\d{6}-", "", name)


def write_run(
    folder: Folder, recipe: Recipe, environment: Environment, record: RunRecord, workers: Sequence[WorkerReport]
) -> None:
    """Write the files of one run into its folder."""
    folder.write_text("recipe.toml", recipe.to_toml())
    folder.write_json("environment.json", environment)
    for worker in workers:
        name = f"workers/{worker.rank}.jsonl"
        if not (folder.path / name).exists():  # a worker may have written its file during training
            folder.write_text(name, "".join(_step_lines(worker)))
    folder.write_json(RUN_FILE, record)


def store_study(folder: Folder, study: StudyResult) -> Path:
    """Write a study and its recipe, and return the study's final folder. If that fails, delete the folder."""
    try:
        folder.write_text("recipe.toml", Recipe.from_dict(study.recipe).to_toml())
        folder.write_json(STUDY_FILE, study)
        return folder.commit()
    except BaseException:
        folder.discard()
        raise


def check_deletable(folder: Path, out: Path) -> Stored:
    """Return the run or study in a folder. Raise UsageError if that folder may not be deleted."""
    if folder.is_symlink():
        raise UsageError(f"{str(folder)!r} is a link, and links are not followed; name the folder itself")
    if not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is not the folder of a run or a study; nothing was deleted")
    stored = read(folder)
    if any((folder / name).is_symlink() for name in (RUN_FILE, STUDY_FILE)):
        raise UsageError(f"{str(folder)!r} is neither a run nor a study; nothing was deleted")
    whole = folder.resolve()
    for other, name in ((Path.cwd(), "the current folder"), (out, "the folder of all runs")):
        if other.resolve().is_relative_to(whole):
            raise UsageError(f"{str(folder)!r} contains {name}; nothing was deleted")
    return stored


def delete(folder: Path) -> None:
    """Delete a folder. It first gets a hidden name, so that readers never find it half deleted."""
    try:
        hidden = Path(tempfile.mkdtemp(dir=folder.parent, **hidden_name(folder.name)))
        folder.rename(hidden)
        shutil.rmtree(hidden)  # deletes links, not their targets
    except OSError as error:
        raise RunError(f"{str(folder)!r} cannot be deleted: {error.strerror}") from error


def _step_lines(worker: WorkerReport) -> Iterator[str]:
    """Yield one line of JSON for every step of a worker."""
    columns = ("iteration_s", "data_s", "loss", "num_right", "num_answers", "num_samples")
    for step in range(len(worker.iteration_s)):
        row = {"kind": "step", "step": step, **{column: getattr(worker, column)[step] for column in columns}}
        yield json.dumps(nonfinite_to_none(row)) + "\n"


def nonfinite_to_none(value: Any) -> Any:
    """Convert a value to plain values for JSON. None replaces NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Value):
        return to_json(value)
    if isinstance(value, Mapping):
        return {str(key): nonfinite_to_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nonfinite_to_none(item) for item in value]
    return value
