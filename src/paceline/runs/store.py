"""Create, write and delete the folders in which runs and studies are stored.

A folder has its final name from the beginning, and the status "running" until its result is stored. A lock ensures that
only one process writes to it.
"""

from __future__ import annotations

import errno
import json
import math
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from paceline.durable_files import sync_folder, write_durably
from paceline.errors import RunError, UsageError
from paceline.interrupts import deferred
from paceline.recipe import Recipe
from paceline.results import RUN_FILE, RUNNING, STUDY_FILE, RunRecord, StudyResult, Value, changed, encode, to_json
from paceline.results.worker_report import WorkerReport
from paceline.runs.locks import LOCK_FILE, check_unlocked, locked
from paceline.runs.recovery import recover_measurements
from paceline.runs.stored import Stored, read, read_content
from paceline.text import file_name_of

DELETED = ".deleted"  # suffix of a folder that is being deleted


class Folder:
    """The folder of a run or study. From its creation by `begin` until `close`, this process holds its lock.

    Its files are replaced one by one, so a reader finds complete files at any time.
    """

    def __init__(self, out: Path, name: str) -> None:
        """Name the folder that `begin` creates in `out`. If the name is taken, `begin` appends a number."""
        self._out, self._name = out, name
        self._path: Path | None = None
        self._lock = ExitStack()

    @classmethod
    def reopen(cls, path: Path) -> Folder:
        """Open the folder of an unfinished run or study, take its lock, and set its status to running.

        Measurements of workers that were killed become readable. Raises UsageError if another process holds the lock.
        """
        folder = cls(path.parent, path.name)
        with deferred(), ExitStack() as stack:
            stack.enter_context(locked(path))
            recover_measurements(path, holds_lock=True)
            content = read_content(path)
            folder._path = path
            folder.write_content(changed(content, status=RUNNING, error=None))
            folder._lock = stack.pop_all()
        return folder

    @property
    def is_begun(self) -> bool:
        """Whether the folder exists."""
        return self._path is not None

    @property
    def path(self) -> Path:
        assert self._path is not None, "the folder is created by `begin`"
        return self._path

    def begin(self, recipe: Recipe, first: RunRecord | StudyResult) -> None:
        """Create and lock the folder, and store the recipe and `first`, whose status is running.

        Only set the content to `first` if the folder was reopened.
        """
        with deferred():
            if self._path is None:
                self._create(recipe)
            self.write_content(first)

    def _create(self, recipe: Recipe) -> None:
        try:
            self._out.mkdir(parents=True, exist_ok=True)
            path = _new_folder(self._out, self._name)
        except OSError as error:
            raise UsageError(
                f"results cannot be written to {str(self._out)!r}: {error.strerror}; choose another --out"
            ) from None
        try:
            with disk_errors(path / LOCK_FILE):
                write_durably(path / LOCK_FILE, recipe.to_toml().encode())
                sync_folder(self._out)
            self._lock.enter_context(locked(path))
        except BaseException:
            (path / LOCK_FILE).unlink(missing_ok=True)
            path.rmdir()  # it has nothing but the recipe
            raise
        self._path = path

    def write_content(self, content: RunRecord | StudyResult) -> None:
        """Replace the stored run or study."""
        self.write_json(RUN_FILE if isinstance(content, RunRecord) else STUDY_FILE, content)

    def write_json(self, name: str, value: Value) -> None:
        self._write(name, encode(value))

    def write_text(self, name: str, text: str) -> None:
        self._write(name, text.encode())

    def _write(self, name: str, content: bytes) -> None:
        target = self.path / name
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            write_durably(target, content)

    def make_subfolder(self, name: str) -> Path:
        inner = self.path / name
        with disk_errors(inner):
            inner.mkdir(exist_ok=True)
        return inner

    def close(self) -> None:
        """Release the lock. A run or study that is still stored as running is then read as interrupted."""
        self._lock.close()

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _new_folder(out: Path, name: str) -> Path:
    """Create a folder called `name` in `out`, or `name-2`, `name-3` and so on if that is taken. Return its path."""
    for number in count(1):
        path = out / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("there is always a free number")


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


def write_run(folder: Folder, record: RunRecord, workers: Sequence[WorkerReport]) -> None:
    """Write the result of one run into its folder, and the files of workers that did not write theirs in training."""
    for worker in workers:
        name = f"workers/{worker.rank}.jsonl"
        if not (folder.path / name).exists():
            folder.write_text(name, "".join(_step_lines(worker)))
    folder.write_content(record)


def check_deletable(folder: Path, out: Path) -> Stored:
    """Return the run or study in a folder. Raise UsageError if this folder must not be deleted."""
    if folder.is_symlink():
        raise UsageError(f"{str(folder)!r} is a link, and links are not followed; name the folder itself")
    if not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is not the folder of a run or a study; nothing was deleted")
    stored = read(folder)
    if stored.status == RUNNING:
        raise UsageError(f"{stored.kind} {str(folder)!r} is running; end it first, for example with Ctrl-C")
    if any((folder / name).is_symlink() for name in (RUN_FILE, STUDY_FILE)):
        raise UsageError(f"{str(folder)!r} is neither a run nor a study; nothing was deleted")
    whole = folder.resolve()
    for other, name in ((Path.cwd(), "the current folder"), (out, "the folder of all runs")):
        if other.resolve().is_relative_to(whole):
            raise UsageError(f"{str(folder)!r} contains {name}; nothing was deleted")
    return stored


def delete(folder: Path) -> None:
    """Delete a folder. It first gets a hidden name, so that readers never find it half deleted.

    Also delete what an earlier deletion in the same place, which was killed, has left.
    """
    hidden = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}{DELETED}")
    try:
        check_unlocked(folder)
        folder.rename(hidden)
        for left in folder.parent.glob(f".*{DELETED}"):
            shutil.rmtree(left)  # deletes links, not their targets
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
