"""The folder of a study: locked while the study runs, and updated after every run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from paceline.durable_files import write_durably
from paceline.errors import UsageError
from paceline.recipe import Recipe
from paceline.results import DONE, Json, RunRecord, RunResult, StudyResult, Unreadable, encode, read_file, to_json
from paceline.results.json_files import RUN_FILE, STUDY_FILE
from paceline.results.study import SCHEMA
from paceline.runs import Folder, timestamped
from paceline.runs.locks import check_unlocked, locked
from paceline.runs.recovery import recover_measurements
from paceline.runs.store import disk_errors
from paceline.study.base import Cell
from paceline.study.resumption import Resumption, find_resumption

RUNS = "runs"
EARLY = "early"  # folder for the results of runs that have no folder of their own


class StudyFolder:
    """The folder of one study. Its methods read and write the study's files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, result: StudyResult) -> None:
        """Replace the study's stored result atomically."""
        with disk_errors(self.path / STUDY_FILE):
            write_durably(self.path / STUDY_FILE, encode(result))

    def run_folder(self, cell: Cell) -> Folder | None:
        """Name the folder for the files of a cell (planned run), or return None if the cell has no run folder."""
        return Folder(self.path / RUNS, cell.folder_name) if cell.has_folder else None

    def open_run(self, cell: Cell) -> tuple[Folder | None, Resumption | None]:
        """Return the folder for the files of a cell, and how its run continues if it was interrupted.

        An interrupted run continues in its folder if that has a whole checkpoint; otherwise the cell starts anew.
        """
        recipe = cell.entry.recipe(cell.recipe)
        for folder in self._run_folders(cell):
            if _is_unfinished(folder):
                resume = find_resumption(folder, recipe)
                if resume.step:
                    return Folder.reopen(folder), resume
        return self.run_folder(cell), None

    def store_result(self, cell: Cell, result: RunResult) -> None:
        """Store the result of a cell (planned run) that has no run folder.

        Do nothing for other cells, because their run folders hold their results.
        """
        if cell.has_folder:
            return
        record = RunRecord(
            schema=SCHEMA, kind="run", name=cell.recipe.name, started="", status=DONE, label=cell.key, result=result
        )
        with disk_errors(self._result_file(cell)):
            self._result_file(cell).parent.mkdir(exist_ok=True)
            write_durably(self._result_file(cell), encode(record))

    def result_of(self, cell: Cell) -> RunResult | None:
        """Return the stored result of a cell (planned run), or None if there is none or it cannot be read."""
        file = self.run_of(cell) if cell.has_folder else self._result_file(cell)
        record = None if file is None else _read_run(file / RUN_FILE if cell.has_folder else file)
        if record is None or record.status != DONE or (not cell.has_folder and record.label != cell.key):
            return None
        return record.result

    def run_of(self, cell: Cell) -> Path | None:
        """Return the folder with the completed run of a cell (planned run), or None if there is none."""
        for folder in self._run_folders(cell):
            record = _read_run(folder / RUN_FILE)
            if record is not None and record.result is not None and record.result.label == cell.entry.label:
                return folder
        return None

    def _run_folders(self, cell: Cell) -> list[Path]:
        """Return the folders in which a cell (planned run) was started."""
        pattern = re.compile(re.escape(cell.folder_name) + r"(-\d+)?")
        return [folder for folder in sorted((self.path / RUNS).glob("*")) if pattern.fullmatch(folder.name)]

    def _result_file(self, cell: Cell) -> Path:
        return self.path / EARLY / f"{cell.folder_name}.json"


@contextmanager
def new_folder(out: Path, name: str, recipe: Recipe, first: StudyResult) -> Iterator[StudyFolder]:
    """Create the folder of a study, and hold the study's lock while the `with` block runs.

    The folder is created in `out`. `first`, the study's result before the first run, is stored immediately.
    """
    with Folder(out, timestamped(name)) as folder:
        folder.begin(recipe, first)
        folder.make_subfolder(RUNS)
        yield StudyFolder(folder.path)


@contextmanager
def reopen_folder(path: Path) -> Iterator[tuple[StudyFolder, StudyResult]]:
    """Open the folder of a study that is resumed, and hold the study's lock while the `with` block runs.

    Yield the folder and the stored result.
    """
    with locked(path):
        recover_measurements(path, holds_lock=True)
        yield StudyFolder(path), read_study(path)


def read_study(path: Path) -> StudyResult:
    """Read the study stored in a folder. Raise UsageError if there is none."""
    if not (path / STUDY_FILE).is_file():
        raise UsageError(
            f"{str(path)!r} is not the folder of a study, because it has no {STUDY_FILE}; name the folder of a study"
        )
    stored = read_file(path / STUDY_FILE)
    if not isinstance(stored, StudyResult):
        raise UsageError(f"{str(path)!r} is a run, not a study; name the folder of a study")
    return stored


class _StudySummary(msgspec.Struct):
    """The fields of a stored study that are read first, to decide whether the rest is needed."""

    study: str = ""
    status: str = ""
    started: str = ""


def find_unfinished_folder(first: StudyResult, request_keys: tuple[str, ...], out: Path) -> Path | None:
    """Return the folder of the newest unfinished study in `out` that has the same request as a new study, or None.

    `first` is the result of the new study before its first run. Two studies have the same request if all fields
    `request_keys` of their results are equal. Raises UsageError if another process is running the study that was found.
    """
    unfinished: list[tuple[str, Path]] = []
    for file in out.glob(f"*/{STUDY_FILE}"):
        try:
            item = msgspec.json.decode(file.read_bytes(), type=_StudySummary)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue  # `paceline runs` lists damaged studies with the reason
        if item.study == first.study and item.status != DONE and not file.parent.name.startswith("."):
            unfinished.append((item.started, file.parent))
    request = request_of(first, request_keys)
    for _, folder in sorted(unfinished, reverse=True):
        try:
            stored = read_study(folder)
        except Unreadable:
            continue
        if request_of(stored, request_keys) == request:
            check_unlocked(folder)
            return folder
    return None


def request_of(result: StudyResult, keys: tuple[str, ...]) -> Json:
    """Return the fields `keys` of a study's result. These fields identify the request of the study.

    Keys of the recipe that an earlier version of Paceline did not have get their defaults.
    """
    plain = to_json(result)
    request = {key: plain.get(key) for key in keys}
    recipe = request.get("recipe")
    if isinstance(recipe, dict):
        with suppress(UsageError):  # a recipe of a newer version differs from every recipe of this one
            request["recipe"] = Recipe.from_dict(recipe).to_dict()
    return request


def _read_run(file: Path) -> RunRecord | None:
    """Return the run stored in a file, or None if it cannot be read."""
    try:
        content = read_file(file)
    except Unreadable:
        return None
    return content if isinstance(content, RunRecord) else None


def _is_unfinished(folder: Path) -> bool:
    record = _read_run(folder / RUN_FILE)
    return record is not None and record.status != DONE
