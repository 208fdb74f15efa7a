"""Read runs and studies, combine their results, and make the page that shows them.

A page holds the tables, findings and charts that a command shows. Each type of study has its own presenter class, which
makes its page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import PacelineError, UsageError
from paceline.plugins import Registry
from paceline.present.page_parts import Page, PageSection, Presenter
from paceline.present.rows import ShownRow, named_rows
from paceline.recipe import Recipe, recipe_keys
from paceline.results import (
    DIVERGED,
    DONE,
    FAILED,
    INTERRUPTED,
    RUNNING,
    SCHEMA,
    Environment,
    Row,
    RunRecord,
    RunResult,
    StudyResult,
    changed,
)
from paceline.runs import Stored, list_runs, read
from paceline.study.run_results import combine, compare_rows
from paceline.worker_files import worker_files, worker_lines

# Recipe keys in which compared runs may differ without a notice on the page.
MAY_DIFFER = {"name", "description", "strategy", "strategies", "codec", "workers", "timeout_s", "data.dir"}
MAY_DIFFER |= {"data.download", "train.log_every", "train.worker_batch_size"}
MAY_DIFFER |= {"measure.profile", "measure.sample_hz"}
# Recipe keys that change the work of a step, so that times are not comparable.
WORKLOAD_KEYS = ("model.name", "data.name", "data.image_size", "train.batch_size")

presenters: Registry[Presenter] = Registry("study", "paceline.present.studies", Presenter)


@dataclass(frozen=True)
class PageContent:
    """Stored runs and studies to show on one page, their rows with unique labels, and how their recipes differ."""

    sources: list[Stored]
    rows: list[ShownRow]
    differing: dict[str, list[str]] = field(default_factory=dict)  # recipe key: its different values
    left_out: list[str] = field(default_factory=list)  # sentences about results that are left out

    @property
    def study(self) -> str:
        """The name of the presenter that makes the page: the type of the study, or "run" or "several"."""
        return (self.sources[0].study or "run") if len(self.sources) == 1 else "several"

    @property
    def recipes(self) -> list[Recipe]:
        return [source.recipe for source in self.sources if source.recipe is not None]

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of the first source, or None if it is unreadable.

        The recipes of other sources may have other values for the keys of `differing`.
        """
        return self.sources[0].recipe

    @property
    def environment(self) -> Environment:
        return self.sources[0].environment


def collect(paths: Sequence[Path]) -> PageContent:
    """Read runs and studies, and combine them into the content of one page.

    Each path is the folder of a run or study, or a folder that contains several. A result that cannot be shown is left
    out, and a notice on the page says so. Raises UsageError if nothing can be shown.
    """
    with report_damage(", ".join(path.name for path in paths)):
        found = [stored for path in paths for stored in _stored(path, is_alone=len(paths) == 1)]
        reasons = [_reason_to_leave_out(stored, is_alone=len(found) == 1) for stored in found]
        if reasons.count("") > 1:
            reasons = [reason or _damage(stored) for stored, reason in zip(found, reasons, strict=True)]
        sources = [stored for stored, reason in zip(found, reasons, strict=True) if not reason]
        left_out = [
            f"{stored.name} is left out: {reason.rstrip('.')}."
            for stored, reason in zip(found, reasons, strict=True)
            if reason
        ]
        if not sources:
            why = f": {' '.join(left_out)}" if left_out else "; name the folder of a run or of a study"
            raise UsageError(f"there is nothing to report{why}")
        return combine_sources(sources, left_out)


def combine_sources(sources: Sequence[Stored], left_out: Sequence[str] = ()) -> PageContent:
    """Combine runs and studies into the content of one page.

    Runs with the same strategy, number of workers and recipe become one row, as if they were repeats of one study.
    `left_out` has sentences about results that are not on the page.
    """
    recipes = [source.recipe for source in sources if source.recipe is not None]
    differing = _differing(recipes) if len(sources) > 1 else {}
    return PageContent(list(sources), _side_by_side(sources, differing), differing, list(left_out))


def page_of(what: Stored | Sequence[Stored] | PageContent) -> Page:
    """Return the page of one run or study, or of several together.

    Stored values can be of the right type and still contradict each other (lists of different lengths, negative times).
    In that case this function, or `make_sections` of the page, raises UsageError with the name of the result.
    """
    sources = what.sources if isinstance(what, PageContent) else [what] if isinstance(what, Stored) else list(what)
    name = ", ".join(source.name for source in sources)
    with report_damage(name):
        page = _page(what if isinstance(what, PageContent) else combine_sources(sources))

    def make_sections() -> Sequence[PageSection]:
        with report_damage(name):
            return page.make_sections()

    return dataclasses.replace(page, make_sections=make_sections)


def page_in_memory(result: StudyResult | RunResult, folder: Path) -> Page:
    """Return the page of a result that is in memory. `folder` is the folder in which the result is stored."""
    if isinstance(result, StudyResult):
        return _page(combine_sources([Stored(folder, result)]))
    record = RunRecord(
        schema=SCHEMA, kind="run", name=folder.name, started="", status=DONE, label=result.label, result=result
    )
    return _page(combine_sources([Stored(folder, record)]))


def _page(material: PageContent) -> Page:
    """Return the page that the presenter of the study makes.

    A study without its own presenter is shown as a comparison. A study without rows gets the page of unfinished
    results, unless its presenter can show it (`shows_empty`).
    """
    presenter = presenters.classes.get(material.study, presenters.classes["compare"])
    if not material.rows and not presenter.shows_empty:
        presenter = presenters.classes["unfinished"]
    return presenter().page(material)


@contextmanager
def report_damage(name: str) -> Iterator[None]:
    """Turn errors in the `with` block, such as LookupError, into a UsageError about damaged stored values.

    `name` is the name of the folder in which the values are stored.
    """
    try:
        yield
    except PacelineError:
        raise
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{name!r} is damaged: its values contradict each other ({error})") from error


def _damage(source: Stored) -> str:
    """Return the reason why the page of a run or study cannot be made, or an empty text if it can."""
    try:
        page_of(source)
    except UsageError as error:
        return str(error)
    return ""


def rows_of(source: Stored) -> list[Row]:
    """Return the rows of a study, or one row for a run. The list is empty if there is no result."""
    return [result if isinstance(result, Row) else combine([result]) for result in source.results]


def requested_repeats(source: Stored) -> int:
    return (source.content.repeats or 1) if isinstance(source.content, StudyResult) else 1


def ending_words(source: Stored) -> str:
    """Describe an incomplete run or study: "is running", "was interrupted", "failed: REASON" or "diverged: REASON"."""
    if source.status in (RUNNING, INTERRUPTED):
        return "is running" if source.status == RUNNING else "was interrupted"
    lines = source.error.splitlines()
    reason = f": {lines[0].rstrip('.')}" if lines else ""
    return f"{DIVERGED if source.status == DIVERGED else FAILED}{reason}"


def _stored(path: Path, *, is_alone: bool) -> list[Stored]:
    """Read the run or study in the folder `path`, or all runs and studies that the folder contains.

    If there is no run or study, return one `Stored` that has only the error, or raise UsageError if `path` is the only
    path (`is_alone`).
    """
    try:
        return [read(path)]
    except UsageError as error:
        found = list_runs(path)
        if not found and is_alone:
            raise
        return found or [Stored(path, None, str(error))]


def _reason_to_leave_out(stored: Stored, *, is_alone: bool) -> str:
    """Return the reason to leave a result out of the page, or an empty text if it can be shown.

    Raises UsageError if the recipe is invalid and there are no other results (`is_alone`).
    """
    if stored.content is None:
        return stored.reason
    if stored.study == "quantize":
        return "" if is_alone else "a quantization has its own page and no steps to compare"
    if not stored.results:
        return f"it {ending_words(stored)} {_progress(stored)}"
    if stored.recipe is None:
        try:
            Recipe.from_dict(stored.recipe_values)
            return f"{stored.name!r} has no recipe that can be read"
        except UsageError as error:
            if is_alone:
                raise
            return str(error)
    return ""


def _progress(source: Stored) -> str:
    """Return a clause that says when a run or study without a result ended, such as "before anything was measured"."""
    if source.status == RUNNING:
        return "and has no result yet"
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


def _recipe_value_text(recipe: Recipe, key: str) -> str:
    """Return the value of a recipe key as text for labels and notices."""
    if key == "train.batch_size":
        return str(recipe.batch_size)
    section, dot, name = key.partition(".")
    value = getattr(getattr(recipe, section), name) if dot else getattr(recipe, section)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return " plus ".join(str(item) for item in value) if value else "none"
    return "unset" if value is None else str(value)


def _short_key(key: str) -> str:
    """Return a recipe key without its section: `lr` for `optimizer.lr`, but `model` for `model.name`."""
    section, _, name = key.rpartition(".")
    return section if name == "name" and section else name


def _differing(recipes: Sequence[Recipe]) -> dict[str, list[str]]:
    """Return the recipe keys in which recipes differ, each with its different values.

    Keys in `MAY_DIFFER` are left out.
    """
    found = {}
    for key, _ in recipe_keys():
        if key not in MAY_DIFFER:
            values = list(dict.fromkeys(_recipe_value_text(recipe, key) for recipe in recipes))
            if len(values) > 1:
                found[key] = values
    return found


def _side_by_side(sources: Sequence[Stored], differing: Mapping[str, list[str]]) -> list[ShownRow]:
    """Return the rows of all sources with unique labels.

    The rows of a single source keep the comparisons that are stored with them. Rows of several sources are compared
    anew, unless the sources' recipes differ in a key of `WORKLOAD_KEYS`, or a study varied settings between rows
    (`point`).
    """
    if len(sources) == 1:
        return named_rows([(row, _point_notes(row)) for row in rows_of(sources[0])])
    groups: dict[tuple[str, ...], list[tuple[Row, Stored]]] = {}
    for place, source in enumerate(sources):
        for row in rows_of(source):
            same = [_recipe_value_text(source.recipe, key) for key in differing] if source.recipe is not None else []
            alone = "" if source.kind == "run" else str(place)  # a study is not merged with others
            key = (row.label, str(row.workers), alone, str(row.point), *same)
            groups.setdefault(key, []).append((row, source))
    rows = []
    for group in groups.values():
        first, source = group[0]
        row = combine([one for one, _ in group]) if len(group) > 1 else first
        notes = {}
        if source.recipe is not None:
            notes = {_short_key(key): _recipe_value_text(source.recipe, key) for key in differing}
        row = changed(row, versus_fastest=None, speedup=None, speedup_interval95=None, efficiency=None)
        rows.append((row, {**notes, **_point_notes(row), "from": source.name}))
    named = named_rows(rows)
    if any(key in differing for key in WORKLOAD_KEYS) or any(row.point for row in named):
        return named
    return _compared(named)


def _point_notes(row: Row) -> dict[str, str]:
    """Return the settings that a study varied between its rows, with the values of this row.

    The number of workers is left out, because labels include it anyway if rows differ in it.
    """
    return {_short_key(key): str(value) for key, value in (row.point or {}).items() if key != "workers"}


def _compared(rows: Sequence[ShownRow]) -> list[ShownRow]:
    """Return the rows with verdicts, ratios and speed-ups from comparing them with each other.

    Rows are compared repeat by repeat. If rows differ in their number of repeats, only as many repeats are compared as
    all rows have.
    """
    common = min(len(row.iteration_mean_s_repeats) for row in rows)
    shortened = [changed(row, iteration_mean_s_repeats=row.iteration_mean_s_repeats[:common]) for row in rows]
    fields = ("versus_fastest", "versus_none", "speedup", "efficiency")
    return [
        changed(row, **{name: getattr(found, name) for name in fields})
        for row, found in zip(rows, compare_rows(shortened), strict=True)
    ]
