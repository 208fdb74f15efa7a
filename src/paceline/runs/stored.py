"""Read stored runs and studies, including failed and unreadable ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

import msgspec

from paceline.errors import UsageError
from paceline.parsing import read_toml
from paceline.recipe import Recipe
from paceline.results import (
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


@dataclass(frozen=True)
class Stored:
    """A folder of the store. If it cannot be read, `content` is None and `reason` is the error."""

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
        """The name of the study; empty for a run."""
        return self.content.study if isinstance(self.content, StudyResult) else ""

    @property
    def status(self) -> str:
        return self.content.status if self.content is not None else UNREADABLE

    @property
    def started(self) -> str:
        return self.content.started if self.content is not None else ""

    @property
    def started_at(self) -> float | None:
        """The start in seconds since 1970; None if unknown."""
        try:
            return datetime.fromisoformat(self.started).timestamp()
        except (ValueError, OverflowError, OSError):
            return None

    @property
    def error(self) -> str:
        return (self.content.error or "") if self.content is not None else ""

    @property
    def results(self) -> Sequence[RunResult]:
        """The results of a study or the result of a run; empty without results."""
        if isinstance(self.content, StudyResult):
            return self.content.results
        if self.content is None or self.content.result is None:
            return []
        return [self.content.result]

    @cached_property
    def recipe_values(self) -> Json:
        """The recipe as plain values; empty if it cannot be read."""
        if isinstance(self.content, StudyResult):
            return self.content.recipe
        try:
            return read_toml(_small_text(self.folder / "recipe.toml"), "recipe.toml")
        except (OSError, ValueError):
            return {}

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe; None if it cannot be read or was written by a newer version."""
        try:
            return Recipe.from_dict(self.recipe_values) if self.recipe_values else None
        except UsageError:
            return None

    @cached_property
    def environment(self) -> Environment:
        """The machine of the measurement; empty if it cannot be read."""
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
        """Names and labels of the strategies; without results, the requested strategies."""
        if self.results:
            return [name for result in self.results for name in (result.strategy, result.label)]
        asked = self.recipe_values.get("strategies") if self.kind == "study" else None
        if isinstance(asked, list) and asked:
            return [str(name) for name in asked]
        return [str(self.recipe_values.get("strategy", ""))]

    @property
    def asked_label(self) -> str:
        """The requested strategy of a run without a result."""
        label = self.content.label if isinstance(self.content, RunRecord) else None
        return label or self.strategies[0]

    def to_json(self) -> Json:
        """Return the JSON of the stored file, with the folder added."""
        if self.content is None:
            return {"kind": UNREADABLE, "folder": str(self.folder), "reason": self.reason}
        return {**to_json(self.content), "folder": str(self.folder)}


def read(path: Path) -> Stored:
    """Read and validate a run or study from its folder or its JSON file; raise Unreadable if it is damaged."""
    folder = path if path.is_dir() else path.parent
    for name in (STUDY_FILE, RUN_FILE):
        file = folder / name
        if file.is_file() and (path.is_dir() or path == file):
            return Stored(folder, read_file(file))
    raise UsageError(f"{str(path)!r} is neither a run nor a study: it has no {RUN_FILE} or {STUDY_FILE}")


def list_runs(out: Path) -> list[Stored]:
    """Return every run and study below a folder, newest last; unreadable ones come first."""
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
    """Return the folders of a study's runs; for a run, its own folder."""
    inner = sorted(path.parent for path in (folder / "runs").glob(f"*/{RUN_FILE}"))
    return inner or [folder]


def name_of(result: RunResult) -> str:
    """Return the label of a result, followed by its point unless the label contains it."""
    point = (result.get("point") or {}) if result.get("remedy") is None else {}  # a sweep's label names its point
    return ", ".join([result.label, *(f"{key.rpartition('.')[2]} {value}" for key, value in point.items())])


def _small_text(file: Path) -> str:
    if file.stat().st_size > MOST_TOML_BYTES:
        raise ValueError(f"{file.name} is larger than any recipe")
    return file.read_text(encoding="utf-8")
