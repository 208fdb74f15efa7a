"""The folder of a study: created at its start, locked while it runs, written after every cell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from paceline.errors import UsageError
from paceline.recipe import Recipe
from paceline.results import DONE, Json, RunRecord, RunResult, StudyResult, Unreadable, encode, read_file, to_json
from paceline.results.json_files import RUN_FILE, STUDY_FILE
from paceline.results.study import SCHEMA
from paceline.runs import Folder, timestamped
from paceline.runs.store import check_unlocked, disk_errors, locked
from paceline.study.base import Cell

RUNS = "runs"
EARLY = "early"  # results of runs without a folder


class StudyFolder:
    """Reads and writes the files of one study."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, result: StudyResult) -> None:
        """Replace the stored result atomically."""
        _replace(self.path / STUDY_FILE, encode(result))

    def run_folder(self, cell: Cell) -> Folder | None:
        """Make a folder for the run of a cell; return None if only its result is kept."""
        return Folder(self.path / RUNS, cell.folder_name) if cell.keeps_run else None

    def keep(self, cell: Cell, result: RunResult) -> None:
        """Store the result of a cell whose run has no folder."""
        if cell.keeps_run:
            return
        record = RunRecord(
            schema=SCHEMA, kind="run", name=cell.recipe.name, started="", status=DONE, label=cell.key, result=result
        )
        with disk_errors(self._early(cell)):
            self._early(cell).parent.mkdir(exist_ok=True)
        _replace(self._early(cell), encode(record))

    def result_of(self, cell: Cell) -> RunResult | None:
        """Return the stored result of a cell; None if there is none or it cannot be read."""
        file = self.run_of(cell) if cell.keeps_run else self._early(cell)
        record = None if file is None else _record(file / RUN_FILE if cell.keeps_run else file)
        if record is None or record.status != DONE or (not cell.keeps_run and record.label != cell.key):
            return None
        return record.result

    def run_of(self, cell: Cell) -> Path | None:
        """Return the folder of the cell's completed run; None if there is none."""
        named = re.compile(re.escape(cell.folder_name) + r"(-\d+)?")
        for folder in sorted((self.path / RUNS).glob("*")):
            if not named.fullmatch(folder.name):
                continue
            record = _record(folder / RUN_FILE)
            if record is not None and record.result is not None and record.result.label == cell.entry.label:
                return folder
        return None

    def _early(self, cell: Cell) -> Path:
        return self.path / EARLY / f"{cell.folder_name}.json"


@contextmanager
def new_folder(out: Path, name: str, recipe: Recipe, first: StudyResult) -> Iterator[StudyFolder]:
    """Create the folder of a study and hold its lock."""
    made = Folder(out, timestamped(name))
    try:
        made.write_text("recipe.toml", recipe.to_toml())
        made.make_inner(RUNS)
        StudyFolder(made.path).write(first)
    except BaseException:
        made.discard()
        raise
    with locked(made.path):
        yield StudyFolder(made.commit())


@contextmanager
def old_folder(path: Path) -> Iterator[tuple[StudyFolder, StudyResult]]:
    """Open the folder of a resumed study with its stored result, and hold its lock."""
    with locked(path):
        yield StudyFolder(path), read_study(path)


def read_study(path: Path) -> StudyResult:
    """Read the study stored in a folder."""
    if not (path / STUDY_FILE).is_file():
        raise UsageError(f"{str(path)!r} is not the folder of a study: it has no {STUDY_FILE}")
    stored = read_file(path / STUDY_FILE)
    if not isinstance(stored, StudyResult):
        raise UsageError(f"{str(path)!r} is a run, not a study")
    return stored


class _Begun(msgspec.Struct):
    """The keys that decide whether a stored study is read completely."""

    study: str = ""
    status: str = ""
    started: str = ""


def find_unfinished(first: StudyResult, request_keys: tuple[str, ...], out: Path) -> Path | None:
    """Return the folder of the newest unfinished study in `out` with the same request.

    Raises UsageError if another process is running it.
    """
    begun: list[tuple[str, Path]] = []
    for file in out.glob(f"*/{STUDY_FILE}"):
        try:
            item = msgspec.json.decode(file.read_bytes(), type=_Begun)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue  # `paceline runs` lists damaged studies with the reason
        if item.study == first.study and item.status != DONE and not file.parent.name.startswith("."):
            begun.append((item.started, file.parent))
    wanted = request_of(first, request_keys)
    for _, folder in sorted(begun, reverse=True):
        try:
            stored = read_study(folder)
        except Unreadable:
            continue
        if request_of(stored, request_keys) == wanted:
            check_unlocked(folder)
            return folder
    return None


def request_of(result: StudyResult, keys: tuple[str, ...]) -> Json:
    """Return the stored fields that identify a request."""
    plain = to_json(result)
    return {key: plain.get(key) for key in keys}


def _record(file: Path) -> RunRecord | None:
    try:
        found = read_file(file)
    except Unreadable:
        return None
    return found if isinstance(found, RunRecord) else None


def _replace(file: Path, content: bytes) -> None:
    part = file.with_name(f".{file.name}.part")
    with disk_errors(file):
        part.write_bytes(content)
        part.replace(file)
