"""Read, find and filter stored runs and studies, including failed and unreadable ones."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import msgspec

from paceline.errors import UsageError, unknown
from paceline.parsing import read_toml
from paceline.recipe import Recipe
from paceline.results import (
    DIVERGED,
    DONE,
    FAILED,
    INTERRUPTED,
    RUN_FILE,
    STUDY_FILE,
    Environment,
    Json,
    RunRecord,
    RunResult,
    StudyResult,
    Unreadable,
    convert,
    read_file,
    read_object,
    to_json,
)

UNREADABLE = "unreadable"
MOST_TOML_BYTES = 1 << 20  # a recipe is a few kilobytes
STATUSES = (DONE, FAILED, INTERRUPTED, DIVERGED, UNREADABLE)
KINDS = ("run", "study")
_LAST = re.compile(r"last(?:~(\d{1,9}))?")
_AGE = re.compile(r"(\d{1,9})\s*([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


@dataclass(frozen=True)
class Stored:
    """A stored run or study. If its folder cannot be read, `content` is None and `reason` is the error."""

    folder: Path
    content: RunRecord | StudyResult | None
    reason: str = ""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def kind(self) -> str:
        if self.content is None:
            return UNREADABLE
        return "run" if isinstance(self.content, RunRecord) else "study"

    @property
    def study(self) -> str:
        """The name of the study, such as `compare`, or an empty string for a run."""
        return self.content.study if isinstance(self.content, StudyResult) else ""

    @property
    def status(self) -> str:
        return self.content.status if self.content is not None else UNREADABLE

    @property
    def started(self) -> str:
        return self.content.started if self.content is not None else ""

    @property
    def started_at(self) -> float | None:
        """Time at which the run or study started, in seconds since 1970, or None if it is unknown."""
        try:
            return datetime.fromisoformat(self.started).timestamp()
        except (ValueError, OverflowError, OSError):
            return None

    @property
    def error(self) -> str:
        return (self.content.error or "") if self.content is not None else ""

    @property
    def results(self) -> Sequence[RunResult]:
        """All results of a study, or the one result of a run. The list is empty if there is no result."""
        if isinstance(self.content, StudyResult):
            return self.content.results
        if self.content is None or self.content.result is None:
            return []
        return [self.content.result]

    @cached_property
    def recipe_values(self) -> Json:
        """The recipe as plain values, or an empty dict if it cannot be read."""
        if isinstance(self.content, StudyResult):
            return self.content.recipe
        try:
            return read_toml(_small_text(self.folder / "recipe.toml"), "recipe.toml")
        except (OSError, ValueError):
            return {}

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe, or None if it cannot be read or was written by a newer version."""
        try:
            return Recipe.from_dict(self.recipe_values) if self.recipe_values else None
        except UsageError:
            return None

    @cached_property
    def environment(self) -> Environment:
        """The machine and software of the measurement, or an empty Environment if they cannot be read."""
        if isinstance(self.content, StudyResult):
            return self.content.environment
        try:
            return convert(read_object(self.folder / "environment.json"), Environment)
        except (Unreadable, msgspec.ValidationError):
            return Environment()

    @property
    def model(self) -> str:
        model = self.recipe_values.get("model")
        return str(model.get("name", "")) if isinstance(model, dict) else ""

    @property
    def strategies(self) -> list[str]:
        """Names and labels of the strategies in the results, or the requested strategies if there are no results."""
        if self.results:
            return [name for result in self.results for name in (result.strategy, result.label)]
        requested = self.recipe_values.get("strategies") if self.kind == "study" else None
        if isinstance(requested, list) and requested:
            return [str(name) for name in requested]
        return [str(self.recipe_values.get("strategy", ""))]

    @property
    def requested_label(self) -> str:
        """The label (strategy with options and codec) that the user requested, for a run without a result."""
        label = self.content.label if isinstance(self.content, RunRecord) else None
        return label or self.strategies[0]

    def to_json(self) -> Json:
        """Return the content as plain values for JSON, and the folder's path under the key `folder`."""
        if self.content is None:
            return {"kind": UNREADABLE, "folder": str(self.folder), "reason": self.reason}
        return {**to_json(self.content), "folder": str(self.folder)}


def read(path: Path) -> Stored:
    """Read and check the run or study in a folder or JSON file.

    Raises Unreadable if the file is damaged, and UsageError if there is no such file.
    """
    folder = path if path.is_dir() else path.parent
    for name in (STUDY_FILE, RUN_FILE):
        file = folder / name
        if file.is_file() and (path.is_dir() or path == file):
            return Stored(folder, read_file(file))
    raise UsageError(f"{str(path)!r} is neither a run nor a study: it has no {RUN_FILE} or {STUDY_FILE}")


def list_runs(out: Path) -> list[Stored]:
    """Return every run and study directly below a folder, from oldest to newest.

    Runs and studies whose start time is unknown, such as unreadable ones, come first.
    """
    found = []
    for name in sorted(os.listdir(out)) if out.is_dir() else []:
        folder = out / name
        if name.startswith(".") or not any((folder / file).is_file() for file in (STUDY_FILE, RUN_FILE)):
            continue
        try:
            found.append(read(folder))
        except UsageError as error:
            found.append(Stored(folder, None, str(error)))
    return sorted(found, key=lambda stored: (stored.started_at or 0.0, str(stored.folder)))


def run_folders(folder: Path) -> list[Path]:
    """Return the folders of all runs of a study. For a run, return the run's own folder."""
    inner = sorted(path.parent for path in (folder / "runs").glob(f"*/{RUN_FILE}"))
    return inner or [folder]


def name_of(result: RunResult) -> str:
    """Return the label of a result and the settings that its study varies, for example `ring, workers 4`.

    In a sweep, the label contains the varied settings, so they are not repeated.
    """
    point = (result.get("point") or {}) if result.get("remedy") is None else {}  # only sweeps set `remedy`
    return ", ".join([result.label, *(f"{key.rpartition('.')[2]} {value}" for key, value in point.items())])


def _small_text(file: Path) -> str:
    if file.stat().st_size > MOST_TOML_BYTES:
        raise ValueError(f"{file.name} is larger than any recipe")
    return file.read_text(encoding="utf-8")


def find(name: str, out: Path) -> Stored:
    """Return the run or study that a name stands for.

    The name is `last` (the newest that is readable), `last~1` (the one before), the name of a folder in `out` or a
    unique beginning of such a name, or a path.
    """
    match = _LAST.fullmatch(name)
    if match and not (out / name).exists():
        found = [item for item in list_runs(out) if item.content is not None]
        back = int(match[1] or 0)
        if back >= len(found):
            raise UsageError(f"{name!r} does not exist: {str(out)!r} has {len(found)} readable runs and studies")
        return found[-1 - back]
    return read(resolve_folder(_complete_prefix(name, out), out))


def folder_of(name: str, out: Path) -> Path:
    """Return the folder that a name stands for. The names are those that `find` accepts.

    Unlike `find`, this function also accepts a folder that is no run or study itself, such as one that contains runs.
    """
    is_last = _LAST.fullmatch(name) and not (out / name).exists()
    return find(name, out).folder if is_last else resolve_folder(_complete_prefix(name, out), out)


def _complete_prefix(name: str, out: Path) -> str:
    """Return the name of the only run or study in `out` whose name begins with `name`.

    Return `name` unchanged if a file or folder of this name exists, or if the number of matches is not one.
    """
    if not name or (out / name).exists() or Path(name).exists():
        return name
    known = [item.name for item in list_runs(out)]
    matches = [one for one in known if one.startswith(name)]
    return matches[0] if len(matches) == 1 else name


def resolve_folder(name: str, out: Path) -> Path:
    """Return the folder with this name in `out` or at this path. Raise UsageError if there is none."""
    is_path = Path(name).parts[:1] in ((), ("..",))  # such as `.` or `../runs`: relative to the current folder
    for folder in (Path(name),) if is_path else (out / name, Path(name)):
        if folder.exists() or folder.is_symlink():
            return folder
    known = [item.name for item in list_runs(out)]
    if known:
        raise unknown("run or study", name, known)
    raise UsageError(f"there is no run or study {name!r} in {str(out)!r}, and no folder of this name")


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Criteria that select runs and studies for a list.

    An empty field accepts all. `model` and `strategy` may contain the wildcards `*` and `?`.
    """

    model: str = ""
    strategy: str = ""
    status: str = ""
    kind: str = ""
    since: str = ""  # a date, a date with time, or an age: 12h, 7d
    last: int | None = None  # how many of the newest to select

    def __post_init__(self) -> None:
        if self.status and self.status not in STATUSES:
            raise unknown("status", self.status, STATUSES)
        if self.kind and self.kind not in KINDS:
            raise unknown("kind", self.kind, KINDS)
        if self.last is not None and self.last < 1:
            raise UsageError(f"--last must be at least 1, not {self.last}")
        if self.since:
            parse_time(self.since)

    def apply(self, found: Sequence[Stored]) -> list[Stored]:
        earliest = parse_time(self.since) if self.since else None
        kept = [item for item in found if self._accepts(item, earliest)]
        return kept[-self.last :] if self.last else kept

    def _accepts(self, item: Stored, earliest: float | None) -> bool:
        return (
            self.status in ("", item.status)
            and self.kind in ("", item.kind)
            and (earliest is None or (item.started_at or 0.0) >= earliest)
            and (not self.model or _matches(self.model, [item.model]))
            and (not self.strategy or _matches(self.strategy, item.strategies))
        )


def parse_time(text: str) -> float:
    """Parse a date, a date with time, or an age such as `12h`. Return the time in seconds since 1970."""
    if _AGE.fullmatch(text.strip()):
        return time.time() - age_s(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(f"{text!r} is neither a date (2026-01-31, 2026-01-31T12:00) nor an age (12h, 7d)") from None


def age_s(text: str) -> float:
    """Parse an age such as `30m`, `12h`, `7d` or `2w`. Return it in seconds."""
    match = _AGE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{text!r} is not an age: a number and m, h, d or w, such as 30d")
    return float(match[1]) * _SECONDS[match[2]]


def _matches(pattern: str, names: list[str]) -> bool:
    return any(fnmatchcase(name.lower(), pattern.lower()) for name in names)


def size_bytes(folder: Path) -> int:
    """Return the total size of all files in a folder, in bytes. Links are not followed."""
    total = 0
    for path, _, names in os.walk(folder):
        total += sum(os.lstat(os.path.join(path, name)).st_size for name in names)
    return total
