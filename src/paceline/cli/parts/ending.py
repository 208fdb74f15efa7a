"""What every study says last: where it lies, and its page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console


def tell_where(console: Console, folder: Path, *, with_page: bool) -> None:
    """Name the folder of a study; write its HTML page beside the results, where that is wanted, and name it too."""
    console.print(f"study   {folder}", markup=False, soft_wrap=True)
    if with_page:
        from paceline.report import write_report

        page = write_report([folder], folder / "report.html")
        console.print(f"report  {page}", markup=False, soft_wrap=True)
