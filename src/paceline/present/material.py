"""What a page is made of: stored results or results in memory, several of them side by side."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from paceline.errors import UsageError
from paceline.measure.reading import read_lines, worker_files
from paceline.present.bridge import combine, compared
from paceline.present.numbers import listed
from paceline.present.rows import ShownRow, named_rows
from paceline.recipe import Recipe, recipe_keys
from paceline.results import (
    RUN_FILE,
    STUDY_FILE,
    Environment,
    Json,
    Row,
    RunRecord,
    StudyResult,
    Unreadable,
    changed,
    convert,
    read_file,
    read_object,
)

# Keys in which recipes may differ and still be one comparison: the subject itself, names, and where files lie.
SUBJECT = {"name", "description", "strategy", "strategies", "codec", "workers", "timeout_s", "data.dir"}
SUBJECT |= {"data.download", "train.log_every", "train.worker_batch_size"}
SUBJECT |= {"measure.profile", "measure.sample_hz"}
# Keys that make an iteration a different piece of work, so that its time says nothing about the strategy.
WORK = ("model.name", "data.name", "data.image_size", "train.batch_size")


@dataclass(frozen=True)
class Source:
    """One run or study, stored or in memory."""

    content: RunRecord | StudyResult
    settings: Json  # the recipe as plain values; empty where it cannot be read
    environment: Environment
    folder: Path | None = None

    @property
    def name(self) -> str:
        return self.folder.name if self.folder is not None else self.content.name

    @property
    def kind(self) -> str:
        return self.content.kind

    @property
    def study(self) -> str:
        """The kind of study; "run" for a run."""
        return self.content.study if isinstance(self.content, StudyResult) else "run"

    @property
    def is_done(self) -> bool:
        return self.content.status == "done"

    @property
    def asked_repeats(self) -> int:
        return (self.content.repeats or 1) if isinstance(self.content, StudyResult) else 1

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of a study, or a run as a row; none where it did not get to a result."""
        if isinstance(self.content, StudyResult):
            return list(self.content.results)
        return [combine([self.content.result])] if self.content.result is not None else []

    @cached_property
    def recipe(self) -> Recipe | None:
        """None where this version cannot read it."""
        try:
            return Recipe.from_dict(self.settings)
        except UsageError:
            return None

    @property
    def ending(self) -> str:
        """How an unfinished one ended: "was interrupted" or "failed: why"."""
        lines = (self.content.error or "").splitlines()
        reason = f": {lines[0].rstrip('.')}" if lines else ""
        return "was interrupted" if self.content.status == "interrupted" else f"failed{reason}"


@dataclass(frozen=True)
class Material:
    """The content of one page."""

    sources: list[Source]
    rows: list[ShownRow]
    differing: dict[str, list[str]] = field(default_factory=dict)  # recipe key: its values
    left_out: list[str] = field(default_factory=list)  # sentences

    @property
    def study(self) -> str:
        """Which presenter makes the page."""
        return self.sources[0].study if len(self.sources) == 1 else "several"

    @property
    def recipes(self) -> list[Recipe]:
        return [source.recipe for source in self.sources if source.recipe is not None]

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of the first source speaks for all where they are the same."""
        return self.sources[0].recipe

    @property
    def environment(self) -> Environment:
        return self.sources[0].environment


def source_of(folder: Path) -> Source:
    """A stored run or study; the folder or its file may be named."""
    path = folder
    for name in (STUDY_FILE, RUN_FILE):
        file = path / name if path.is_dir() else path
        if file.name == name and file.is_file():
            return stored_source(read_file(file), file.parent)
    raise UsageError(f"{str(path)!r} is neither a run nor a study: it has no {RUN_FILE} or {STUDY_FILE}")


def stored_source(content: RunRecord | StudyResult, folder: Path) -> Source:
    """A run keeps its recipe and its environment in files of their own."""
    if isinstance(content, StudyResult):
        return Source(content, content.recipe, content.environment, folder)
    return Source(content, _recipe_in(folder), _environment_in(folder), folder)


def _recipe_in(folder: Path) -> Json:
    try:
        with (folder / "recipe.toml").open("rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError, RecursionError):
        return {}


def _environment_in(folder: Path) -> Environment:
    try:
        return convert(read_object(folder / "environment.json"), Environment)
    except (Unreadable, msgspec.ValidationError):
        return Environment()


def material_of(sources: Sequence[Source], left_out: Sequence[str] = ()) -> Material:
    """Sources side by side: rows of one strategy in several runs are its repeats."""
    recipes = [source.recipe for source in sources if source.recipe is not None]
    differing = _differing(recipes) if len(sources) > 1 else {}
    return Material(list(sources), _side_by_side(sources, differing), differing, list(left_out))


def collect(paths: Sequence[Path]) -> Material:
    """Read folders, each a run, a study or a folder of them. Those without a result are left out, with a sentence."""
    sources, left_out = [], []
    folders = [folder for path in paths for folder in _folders(path)]
    for folder in folders:
        try:
            source = source_of(folder)
            if source.recipe is None:
                Recipe.from_dict(source.settings)  # raises, with the reason
        except UsageError as error:
            if len(folders) == 1:
                raise
            left_out.append(f"{folder.name} is left out: {error}.")
            continue
        if source.study == "quantize" and len(folders) > 1:
            left_out.append(f"{source.name} is left out: a quantization has its own page and no steps to compare.")
        elif source.rows or source.study == "quantize":
            sources.append(source)
        else:
            left_out.append(f"{source.name} is left out: it {source.ending} {_reached(source)}.")
    if not sources:
        reasons = f": {' '.join(left_out)}" if left_out else ""
        raise UsageError(f"there is nothing to report{reasons or '; name the folder of a run or of a study'}")
    return material_of(sources, left_out)


def _folders(path: Path) -> list[Path]:
    """The path itself, or the runs and studies in it."""

    def is_stored(folder: Path) -> bool:
        return any((folder / name).is_file() for name in (STUDY_FILE, RUN_FILE))

    if not path.is_dir() or is_stored(path):
        return [path]
    found = [folder for folder in sorted(path.iterdir()) if not folder.name.startswith(".") and is_stored(folder)]
    return found or [path]


def _reached(source: Source) -> str:
    """How far the workers of a run without a result came, by their own files."""
    if source.kind == "study":
        return "before any of its runs was done"
    assert source.folder is not None
    try:
        steps = [_last_step(file) for file in worker_files(source.folder / "workers").values()]
    except UsageError as error:
        return f"before it had a result ({error})"
    last = [step for step in steps if step >= 0]
    if not last:
        return "before anything was measured"
    reached = f"step {last[0]}" if len(set(last)) == 1 else f"steps {min(last)} to {max(last)}"
    return f"before it had a result; its workers finished {reached}, which `paceline trace` shows"


def _last_step(file: Path) -> int:
    return max((line["step"] for line in read_lines(file) if line.get("kind") == "step"), default=-1)


def value_text(recipe: Recipe, key: str) -> str:
    """A value of a recipe as a user writes it."""
    if key == "train.batch_size":
        return str(recipe.batch_size)
    section, dot, name = key.partition(".")
    value = getattr(getattr(recipe, section), name) if dot else getattr(recipe, section)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return " plus ".join(str(item) for item in value) if value else "none"
    return "unset" if value is None else str(value)


def key_text(key: str) -> str:
    """A key of a recipe without its section; `model.name` is `model`."""
    section, _, name = key.rpartition(".")
    return section if name == "name" and section else name


def _differing(recipes: Sequence[Recipe]) -> dict[str, list[str]]:
    """The keys in which recipes differ though a comparison needs them equal, each with its values."""
    found = {}
    for key, _ in recipe_keys():
        if key not in SUBJECT:
            values = list(dict.fromkeys(value_text(recipe, key) for recipe in recipes))
            if len(values) > 1:
                found[key] = values
    return found


def _side_by_side(sources: Sequence[Source], differing: Mapping[str, list[str]]) -> list[ShownRow]:
    if len(sources) == 1:
        return named_rows([(row, _point_notes(row)) for row in sources[0].rows])
    groups: dict[tuple[str, ...], list[tuple[Row, Source]]] = {}
    for place, source in enumerate(sources):
        for row in source.rows:
            same = [value_text(source.recipe, key) for key in differing] if source.recipe is not None else []
            alone = "" if source.kind == "run" else str(place)  # a study has combined its repeats itself
            key = (row.label, str(row.workers), alone, str(row.point), *same)
            groups.setdefault(key, []).append((row, source))
    rows = []
    for group in groups.values():
        first, source = group[0]
        row = combine([one for one, _ in group]) if len(group) > 1 else first
        notes = {}
        if source.recipe is not None:
            notes = {key_text(key): value_text(source.recipe, key) for key in differing}
        row = changed(row, versus_fastest=None, speedup=None, speedup_interval95=None, efficiency=None)
        rows.append((row, {**notes, **_point_notes(row), "from": source.name}))
    named = named_rows(rows)
    if any(key in differing for key in WORK) or any(row.point for row in named):
        return named
    return _compared(named)


def _point_notes(row: Row) -> dict[str, str]:
    """The keys of a point as notes, but for the number of workers, which a name has anyway."""
    return {key_text(key): str(value) for key, value in (row.point or {}).items() if key != "workers"}


def _compared(rows: Sequence[ShownRow]) -> list[ShownRow]:
    """Compare rows by the repeats that all of them have, because repeats are compared in pairs."""
    common = min(len(row.iteration_mean_s_repeats) for row in rows)
    shortened = [changed(row, iteration_mean_s_repeats=row.iteration_mean_s_repeats[:common]) for row in rows]
    fields = ("versus_fastest", "versus_none", "speedup", "efficiency")
    return [
        changed(row, **{name: getattr(found, name) for name in fields})
        for row, found in zip(rows, compared(shortened), strict=True)
    ]


def notices(material: Material) -> list[str]:
    """What a reader has to know before any figure."""
    found = list(material.left_out)
    if len(material.sources) > 1:
        found.append(
            f"Combined from {len(material.sources)} folders that were not measured in turn: load on the machine may "
            "have slowed some of them and not others."
        )
    for key, values in material.differing.items():
        found.append(f"The recipes differ in {key}: {listed(values)}.")
    machines = {str(source.environment.processor) for source in material.sources}
    if len(machines) > 1:
        found.append(f"They were measured on different machines: {listed(sorted(machines))}.")
    return found
