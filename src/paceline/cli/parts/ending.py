"""The last lines of every study: its result, where it is stored, and its page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from paceline.recipe import Recipe
from paceline.results import RunResult, StudyResult

if TYPE_CHECKING:
    from paceline.present.model import Page


def show_outcome(console: Console, result: StudyResult, folder: Path, *, with_page: bool) -> None:
    """Show a study that was just measured."""
    from paceline.present import page_in_memory
    from paceline.present.terminal import show

    page = page_in_memory(result, folder)
    show(console, page)
    for caution in result.cautions or []:
        console.print(f"{caution[0].upper()}{caution[1:]}.", style="yellow", markup=False)
    tell_where(console, folder, page if with_page and result.results else None)


def show_run_outcome(console: Console, recipe: Recipe, result: RunResult, folder: Path) -> None:
    """Show a run that was just measured."""
    from paceline.present import page_in_memory
    from paceline.present.terminal import show

    del recipe
    show(console, page_in_memory(result, folder))
    console.print(f"run             {folder}", markup=False, soft_wrap=True)


def tell_where(console: Console, folder: Path, page: Page | None) -> None:
    """Name the folder of a study; write its HTML page into it, where one is wanted, and name the page too."""
    console.print(f"study   {folder}", markup=False, soft_wrap=True)
    if page is not None:
        from paceline.present.html import write_page

        console.print(f"report  {write_page(page, folder / 'report.html')}", markup=False, soft_wrap=True)
