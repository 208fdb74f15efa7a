"""The page of stored results or of results in memory, made by the presenter of the study (present/studies/)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import PacelineError, UsageError
from paceline.plugins import Registry
from paceline.present import page_content as materials
from paceline.present.model import Page, PageSection, Presenter
from paceline.present.page_content import PageContent, material_of
from paceline.results import SCHEMA, RunRecord, RunResult, StudyResult
from paceline.runs import Stored

__all__ = ["collect", "page_in_memory", "page_of", "refusing"]


def collect(paths: Sequence[Path]) -> PageContent:
    """Read runs and studies from folders. A damaged one is an error if it is the only one, and left out otherwise."""
    with refusing(", ".join(path.name for path in paths)):
        found = materials.collect(paths)
    if len(found.sources) == 1:
        return found
    sources, left_out = [], list(found.left_out)
    for source in found.sources:
        try:
            page_of(source)
            sources.append(source)
        except UsageError as error:
            left_out.append(f"{source.name} is left out: {error}.")
    if len(sources) == len(found.sources):
        return found
    if not sources:
        raise UsageError(f"there is nothing to report: {' '.join(left_out)}")
    return material_of(sources, left_out)


def page_of(what: Stored | Sequence[Stored] | PageContent) -> Page:
    """Return the page of one run or study, or of several side by side.

    Stored values can be of the right type and still contradict each other (lists of different lengths, negative times);
    that raises an error with the name of the result, also while charts are made.
    """
    sources = what.sources if isinstance(what, PageContent) else [what] if isinstance(what, Stored) else list(what)
    name = ", ".join(source.name for source in sources)
    with refusing(name):
        page = _page(what if isinstance(what, PageContent) else material_of(sources))

    def make_sections() -> Sequence[PageSection]:
        with refusing(name):
            return page.make_sections()

    return dataclasses.replace(page, make_sections=make_sections)


def page_in_memory(result: StudyResult | RunResult, folder: Path) -> Page:
    """The page of a result that was just measured and stored in a folder."""
    content = result if isinstance(result, StudyResult) else _record(result, folder)
    return _page(material_of([Stored(folder, content)]))


def _page(material: PageContent) -> Page:
    return _presenter(material).page(material)


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """Turn errors from stored values that contradict each other into one sentence with the name of the folder."""
    try:
        yield
    except PacelineError:
        raise
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{name!r} is damaged: its values contradict each other ({error})") from error


def _record(result: RunResult, folder: Path) -> RunRecord:
    return RunRecord(
        schema=SCHEMA, kind="run", name=folder.name, started="", status="done", label=result.label, result=result
    )


def _presenter(material: PageContent) -> Presenter:
    """The presenter of the study; results of a study without one are shown as a comparison."""
    found = presenters.classes.get(material.study, presenters.classes["compare"])
    if not material.rows and not found.shows_empty:
        found = presenters.classes["unfinished"]
    return found()


presenters: Registry[Presenter] = Registry("study", "paceline.present.studies", Presenter)
