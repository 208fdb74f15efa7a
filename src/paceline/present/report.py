"""Stored runs and studies as one HTML page, as pictures, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.present import html, markdown, pictures
from paceline.present.material import collect, material_of
from paceline.present.model import Page
from paceline.present.registry import presenters
from paceline.results import StudyResult
from paceline.runs import Stored


def page_of(paths: Sequence[Path]) -> Page:
    """The page of folders, each a run, a study or a folder of them."""
    material = collect(paths)
    return presenters.get(material.study)().page(material)


def page_of_study(study: StudyResult, folder: Path) -> Page:
    """The page of a study that was just measured and is stored in a folder."""
    material = material_of([Stored(folder, study)])
    return presenters.get(material.study)().page(material)


def write_report(paths: Sequence[Path], output: Path) -> Path:
    return html.write_page(page_of(paths), output)


def write_figures(paths: Sequence[Path], folder: Path) -> list[Path]:
    return pictures.write_figures(page_of(paths), folder)


def markdown_of(paths: Sequence[Path]) -> str:
    return markdown.render(page_of(paths))
