"""The last lines of a command that measures: its result, where it is stored, and its HTML page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from paceline.present import page_in_memory
from paceline.present.terminal import say, show
from paceline.results import RunResult, StudyResult


def show_outcome(console: Console, result: StudyResult, folder: Path, *, with_page: bool) -> None:
    """Show a study that was just measured, and write its HTML page into its folder where that is wanted."""
    page = page_in_memory(result, folder)
    show(console, page)
    say(console, f"study   {folder}", is_unbroken=True)
    if with_page and page.tables:
        from paceline.present.html import write_page

        say(console, f"report  {write_page(page, folder / 'report.html')}", is_unbroken=True)


def show_run_outcome(console: Console, result: RunResult, folder: Path) -> None:
    """Show a run that was just measured."""
    show(console, page_in_memory(result, folder))
    say(console, f"run             {folder}", is_unbroken=True)
