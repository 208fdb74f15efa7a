"""Stored runs and studies as one HTML page, as pictures, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.present import collect, html, markdown, page_of, pictures


def write_report(paths: Sequence[Path], output: Path) -> Path:
    """Write the page of folders, each a run, a study or a folder of them."""
    return html.write_page(page_of(collect(paths)), output)


def write_figures(paths: Sequence[Path], folder: Path) -> list[Path]:
    """Write a picture of every chart of their page."""
    return pictures.write_figures(page_of(collect(paths)), folder)


def markdown_of(paths: Sequence[Path]) -> str:
    return markdown.render(page_of(collect(paths)))
