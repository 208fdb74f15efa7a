from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ORDER = 5


def report(
    paths: Annotated[list[Path], typer.Argument(help="Folders of runs and studies.", metavar="RUN...")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
) -> None:
    """Make one self-contained HTML page of runs and studies."""
    from paceline.report import write_report

    print(write_report(paths, output))


def register(app: typer.Typer) -> None:
    app.command()(report)
