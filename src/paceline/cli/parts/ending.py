"""What every study says last: its result, where it lies, and its page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from paceline.recipe import Recipe
from paceline.results import RunResult, StudyResult


def show_outcome(console: Console, result: StudyResult, folder: Path, *, with_page: bool) -> None:
    """Show a study that was just measured."""
    from paceline.present import page_in_memory
    from paceline.present.terminal import show

    show(console, page_in_memory(result, folder))
    for caution in result.cautions or []:
        console.print(f"{caution[0].upper()}{caution[1:]}.", style="yellow", markup=False)
    tell_where(console, folder, with_page=with_page and bool(result.results))


def show_run_outcome(console: Console, recipe: Recipe, result: RunResult, folder: Path) -> None:
    """Show a run that was just measured."""
    from paceline.present import page_in_memory
    from paceline.present.terminal import show

    del recipe
    show(console, page_in_memory(result, folder))
    console.print(f"run             {folder}", markup=False, soft_wrap=True)


def tell_where(console: Console, folder: Path, *, with_page: bool) -> None:
    """Name the folder of a study; write its HTML page beside the results, where that is wanted, and name it too."""
    console.print(f"study   {folder}", markup=False, soft_wrap=True)
    if with_page:
        from paceline.report import write_report

        page = write_report([folder], folder / "report.html")
        console.print(f"report  {page}", markup=False, soft_wrap=True)
