from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

ORDER = 5


def report(
    paths: Annotated[list[Path], typer.Argument(help="Folders of runs and studies.", metavar="RUN...")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(help="Also write a PNG and an SVG of every chart here.", metavar="DIR")
    ] = None,
    markdown: Annotated[
        str, typer.Option(help="Also write the table as Markdown; - is standard output.", metavar="FILE|-")
    ] = "",
) -> None:
    """Make one self-contained HTML page of runs and studies."""
    from paceline.report import markdown_of, write_figures, write_report
    from paceline.report.html import write_whole

    # What a program reads stands alone on standard output.
    stream = sys.stderr if markdown == "-" else sys.stdout
    print(write_report(paths, output), file=stream)
    if markdown == "-":
        print(markdown_of(paths), end="")
    elif markdown:
        write_whole(Path(markdown), markdown_of(paths))
        print(markdown)
    if figures is not None:
        written = write_figures(paths, figures)
        print(f"{figures}: {len(written)} pictures", file=stream)


def register(app: typer.Typer) -> None:
    app.command()(report)
