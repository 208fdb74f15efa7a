"""The page of stored results, or of results in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.present.material import Material, collect, material_of
from paceline.present.model import Page, Presenter
from paceline.present.registry import presenters
from paceline.results import RunRecord, RunResult, StudyResult
from paceline.runs import Stored

__all__ = ["collect", "page_in_memory", "page_of"]


def page_of(what: Stored | Sequence[Stored] | Material) -> Page:
    """The page of one run or study, or of several side by side."""
    if not isinstance(what, Material):
        what = material_of([what] if isinstance(what, Stored) else what)
    return _presenter(what).page(what)


def page_in_memory(result: StudyResult | RunResult, folder: Path) -> Page:
    """The page of a result that was just measured and stored in a folder."""
    content = result if isinstance(result, StudyResult) else _record(result, folder)
    return page_of(Stored(folder, content))


def _record(result: RunResult, folder: Path) -> RunRecord:
    return RunRecord(
        schema=1, kind="run", name=folder.name, started="", status="done", label=result.label, result=result
    )


def _presenter(material: Material) -> Presenter:
    """The presenter of the study; results of a study without one are shown as a comparison."""
    found = presenters.classes.get(material.study, presenters.classes["compare"])
    if not material.rows and not found.shows_empty:
        found = presenters.classes["unfinished"]
    return found()
