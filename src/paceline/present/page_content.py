"""The content of one page: runs and studies, stored or just measured, one or several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import UsageError
from paceline.present.numbers import counted, listed
from paceline.present.rows import ShownRow, named_rows
from paceline.recipe import Recipe, recipe_keys
from paceline.results import Environment, Row, StudyResult, changed
from paceline.runs import Stored, list_runs, read
from paceline.study.run_results import combine, compare_rows
from paceline.worker_files import worker_files, worker_lines

# Keys in which the recipes of one comparison may differ.
SUBJECT = {"name", "description", "strategy", "strategies", "codec", "workers", "timeout_s", "data.dir"}
SUBJECT |= {"data.download", "train.log_every", "train.worker_batch_size"}
SUBJECT |= {"measure.profile", "measure.sample_hz"}
# Keys that change the work of an iteration, so that times are not comparable.
WORK = ("model.name", "data.name", "data.image_size", "train.batch_size")


@dataclass(frozen=True)
class PageContent:
    """Sources of one page, their rows under unique names, and the differences between the sources."""

    sources: list[Stored]
    rows: list[ShownRow]
    differing: dict[str, list[str]] = field(default_factory=dict)  # recipe key: its values
    left_out: list[str] = field(default_factory=list)  # sentences

    @property
    def study(self) -> str:
        """Name of the presenter of the page."""
        return (self.sources[0].study or "run") if len(self.sources) == 1 else "several"

    @property
    def recipes(self) -> list[Recipe]:
        return [source.recipe for source in self.sources if source.recipe is not None]

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of the first source; `differing` lists where the others differ."""
        return self.sources[0].recipe

    @property
    def environment(self) -> Environment:
        return self.sources[0].environment


def rows_of(source: Stored) -> list[Row]:
    """The rows of a study, or a run as a row; empty without a result."""
    return [result if isinstance(result, Row) else combine([result]) for result in source.results]


def asked_repeats(source: Stored) -> int:
    return (source.content.repeats or 1) if isinstance(source.content, StudyResult) else 1


def ending(source: Stored) -> str:
    """The end of an unfinished run or study: "was interrupted" or "failed: why"."""
    lines = source.error.splitlines()
    reason = f": {lines[0].rstrip('.')}" if lines else ""
    return "was interrupted" if source.status == "interrupted" else f"failed{reason}"


def material_of(sources: Sequence[Stored], left_out: Sequence[str] = ()) -> PageContent:
    """Combine sources; runs of the same strategy count as its repeats."""
    recipes = [source.recipe for source in sources if source.recipe is not None]
    differing = _differing(recipes) if len(sources) > 1 else {}
    return PageContent(list(sources), _side_by_side(sources, differing), differing, list(left_out))


def collect(paths: Sequence[Path]) -> PageContent:
    """Read folders, each a run, a study or a folder of them. Those without a result are left out, with a notice."""
    sources, left_out = [], []
    found = [stored for path in paths for stored in _stored(path, is_alone=len(paths) == 1)]
    for stored in found:
        reason = _reason_to_leave_out(stored, is_alone=len(found) == 1)
        if reason:
            left_out.append(f"{stored.name} is left out: {reason.rstrip('.')}.")
        else:
            sources.append(stored)
    if not sources:
        reasons = f": {' '.join(left_out)}" if left_out else ""
        raise UsageError(f"there is nothing to report{reasons or '; name the folder of a run or of a study'}")
    return material_of(sources, left_out)


def _stored(path: Path, *, is_alone: bool) -> list[Stored]:
    """Read a run, a study, or a folder of them; an unreadable one among several carries its error."""
    try:
        return [read(path)]
    except UsageError as error:
        found = list_runs(path)
        if not found and is_alone:
            raise
        return found or [Stored(path, None, str(error))]


def _reason_to_leave_out(stored: Stored, *, is_alone: bool) -> str:
    """The reason to leave a result out; empty where it can be shown."""
    if stored.content is None:
        return stored.reason
    if stored.study == "quantize":
        return "" if is_alone else "a quantization has its own page and no steps to compare"
    if not stored.results:
        return f"it {ending(stored)} {_reached(stored)}"
    if stored.recipe is None:
        try:
            Recipe.from_dict(stored.recipe_values)
            return f"{stored.name!r} has no recipe that can be read"
        except UsageError as error:
            if is_alone:
                raise
            return str(error)
    return ""


def _reached(source: Stored) -> str:
    """The last steps in the worker files of a run without a result."""
    if source.kind == "study":
        return "before any of its runs was done"
    try:
        steps = [_last_step(file) for file in worker_files(source.folder).values()]
    except UsageError as error:
        return f"before it had a result ({error})"
    last = [step for step in steps if step >= 0]
    if not last:
        return "before anything was measured"
    reached = f"step {last[0]}" if len(set(last)) == 1 else f"steps {min(last)} to {max(last)}"
    return f"before it had a result; its workers finished {reached}, which `paceline trace` shows"


def _last_step(file: Path) -> int:
    return max((line["step"] for line in worker_lines(file) if line["kind"] == "step"), default=-1)


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


def _side_by_side(sources: Sequence[Stored], differing: Mapping[str, list[str]]) -> list[ShownRow]:
    if len(sources) == 1:
        return named_rows([(row, _point_notes(row)) for row in rows_of(sources[0])])
    groups: dict[tuple[str, ...], list[tuple[Row, Stored]]] = {}
    for place, source in enumerate(sources):
        for row in rows_of(source):
            same = [value_text(source.recipe, key) for key in differing] if source.recipe is not None else []
            alone = "" if source.kind == "run" else str(place)  # a study already combined its repeats
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
        for row, found in zip(rows, compare_rows(shortened), strict=True)
    ]


def notices(material: PageContent) -> list[str]:
    """Notices that come before any figure."""
    found = [
        *material.left_out,
        *(_unfinished(source, material) for source in material.sources if not _is_done(source)),
    ]
    if len(material.sources) > 1:
        found.append(
            f"Combined from {len(material.sources)} folders that were not measured interleaved: load on the machine "
            "may have slowed some of them and not others."
        )
    for key, values in material.differing.items():
        found.append(f"The recipes differ in {key}: {listed(values)}.")
    machines = {str(source.environment.processor) for source in material.sources}
    if len(machines) > 1:
        found.append(f"They were measured on different machines: {listed(sorted(machines))}.")
    return found


def _is_done(source: Stored) -> bool:
    return source.status == "done"


def _unfinished(source: Stored, material: PageContent) -> str:
    """A notice about a study that ended early, with the part that was measured."""
    subject = f"This {source.kind}" if len(material.sources) == 1 else source.name
    asked = getattr(source.content, "num_points", None)
    if asked is None:
        strategies = source.recipe_values.get("strategies")
        asked = max(len(strategies) if isinstance(strategies, list) else 0, len(source.results))
    repeats = [row.repeats for row in source.results if isinstance(row, Row)]
    done = f", {min(repeats)} of {counted(asked_repeats(source), 'repeat')}" if repeats else ""
    return f"{subject} {ending(source)}. Measured until then: {len(source.results)} of {counted(asked, 'row')}{done}."
