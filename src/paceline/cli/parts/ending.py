"""The last lines of every study: where it is stored, and its page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from paceline.results import StudyResult


def tell_where(console: Console, folder: Path, *, with_page: bool, study: StudyResult | None = None) -> None:
    """Name the folder of a study; write its HTML page into it, where that is wanted, and name the page too.

    The page is made from `study`, or from the folder where it is not given.
    """
    console.print(f"study   {folder}", markup=False, soft_wrap=True)
    if with_page:
        from paceline.present.html import write_page
        from paceline.present.report import page_of, page_of_study

        page = page_of([folder]) if study is None else page_of_study(study, folder)
        console.print(f"report  {write_page(page, folder / 'report.html')}", markup=False, soft_wrap=True)
