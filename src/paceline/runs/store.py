"""Where runs and studies are kept: one folder each, written whole or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from paceline.errors import RunError, UsageError
from paceline.parsing import whole_number
from paceline.recipe import Recipe
from paceline.text import file_name_of

SCHEMA = 1
RUN_FILE = "summary.json"
STUDY_FILE = "study.json"


class Folder:
    """A folder being written beside its final place; `commit` moves it there in one step."""

    def __init__(self, out: Path, name: str) -> None:
        self._out = out
        self._name = name
        try:
            out.mkdir(parents=True, exist_ok=True)
            _sweep(out)
            self.path = Path(tempfile.mkdtemp(dir=out, **hidden_name(name)))
        except OSError as error:
            raise UsageError(
                f"results cannot be written to {str(out)!r}: {error.strerror}; choose another --out"
            ) from None
        self.path.chmod(0o755)

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, json.dumps(finite(value), indent=1) + "\n")

    def write_text(self, name: str, text: str) -> None:
        target = self.path / name
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")

    def make_inner(self, name: str) -> Path:
        """A folder inside; where it cannot be made, nothing is left of this one."""
        inner = self.path / name
        try:
            with disk_errors(inner):
                inner.mkdir()
        except RunError:
            self.discard()
            raise
        return inner

    def commit(self) -> Path:
        """Move the folder to its final place; a taken name gets a number."""
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
        shutil.rmtree(self.path, ignore_errors=True)


def hidden_name(name: str) -> dict[str, str]:
    """How a folder begins and ends that is not seen: by its end, a later writer knows whether anybody still uses it."""
    return {"prefix": f".{name}.", "suffix": f".{socket.gethostname()}-{os.getpid()}.part"}


def _sweep(out: Path) -> None:
    """Take away what writers of this host left when they were killed; a living writer's folder is not touched."""
    for folder in out.glob(f".*.{socket.gethostname()}-*.part"):
        pid = folder.name.rpartition(".part")[0].rpartition("-")[2]
        if (number := whole_number(pid)) is not None and not psutil.pid_exists(number):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """A full or broken disk becomes one sentence."""
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        raise RunError(f"{path.name} cannot be written: {reason}") from error


def stamped(name: str) -> str:
    """A folder name that sorts by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{file_name_of(name, allowed='-_.', other='-')}"[:100]


def unstamped(name: str) -> str:
    """The name without its time, for what is made of a stored run."""
    return re.sub(r"^\d{8}-\d{6}-", "", name)


def write_run(
    folder: Folder,
    recipe: Recipe,
    environment: Mapping[str, Any],
    summary: Mapping[str, Any],
    workers: list[dict[str, Any]],
) -> None:
    """The files of one run."""
    folder.write_text("recipe.toml", recipe.to_toml())
    folder.write_json("environment.json", environment)
    for worker in workers:
        name = f"workers/{worker['rank']}.jsonl"
        if not (folder.path / name).exists():  # else the worker has written it itself
            folder.write_text(name, "".join(_step_lines(worker)))
    folder.write_json(RUN_FILE, {"schema": SCHEMA, "kind": "run", **summary})


def store_study(folder: Folder, study: Mapping[str, Any]) -> Path:
    """A study with its recipe, whole or not at all; where it lies from now on."""
    try:
        folder.write_text("recipe.toml", Recipe.from_dict(study["recipe"]).to_toml())
        folder.write_json(STUDY_FILE, study)
        return folder.commit()
    except BaseException:
        folder.discard()
        raise


def _step_lines(worker: dict[str, Any]) -> Iterator[str]:
    """One JSON object per step."""
    columns = ("iteration_s", "data_s", "loss", "num_right", "num_answers", "num_samples")
    for step in range(len(worker["iteration_s"])):
        row = {"kind": "step", "step": step, **{column: worker[column][step] for column in columns}}
        yield json.dumps(finite(row)) + "\n"


def read(path: Path) -> dict[str, Any]:
    """A run's summary or a study, checked; the folder or the file itself may be named."""
    folder = path if path.is_dir() else path.parent
    for name in (STUDY_FILE, RUN_FILE):
        file = folder / name
        if file.is_file() and (path.is_dir() or path == file):
            return _read_checked(file)
    raise UsageError(f"{str(path)!r} is neither a run nor a study: it has no {RUN_FILE} or {STUDY_FILE}")


def _read_checked(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        schema = value["schema"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{str(file)!r} is damaged: {error}") from None
    if not isinstance(schema, int) or schema > SCHEMA:
        raise UsageError(
            f"{str(file)!r} has schema {schema}, this version of paceline reads up to {SCHEMA}; use a newer paceline"
        )
    return {**value, "folder": str(file.parent)}


def list_runs(out: Path) -> list[dict[str, Any]]:
    """Every run and study below a folder, newest last; what cannot be read comes first, with the reason."""
    found: list[dict[str, Any]] = []
    for name in sorted(os.listdir(out)) if out.is_dir() else []:
        folder = out / name
        if name.startswith(".") or not any((folder / file).is_file() for file in (STUDY_FILE, RUN_FILE)):
            continue
        try:
            found.append(read(folder))
        except UsageError as error:
            found.append({"kind": "unreadable", "folder": str(folder), "reason": str(error)})
    return sorted(found, key=_age)


def run_folders(folder: Path) -> list[Path]:
    """A run itself, or the runs of a study."""
    inner = sorted(path.parent for path in (folder / "runs").glob("*/summary.json"))
    return inner or [folder]


def _age(item: Mapping[str, Any]) -> tuple[float, str]:
    """Sorts by time, and by name within one second."""
    try:
        return datetime.fromisoformat(item["started"]).timestamp(), item["folder"]
    except (KeyError, TypeError, ValueError):
        return 0.0, item["folder"]


def finite(value: Any) -> Any:
    """The same plain values with NaN and infinity as null: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
