"""The command `report`: write an HTML page with the results of runs and studies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import Runs
from paceline.text import plain_text

ORDER = 5


def report(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Runs and studies: names in --runs, folders, or last (the newest), last~1, ...", metavar="RUN..."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(help="Also write every chart as PNG and SVG to this folder.", metavar="DIR")
    ] = None,
    markdown: Annotated[
        str, typer.Option(help="Also write the tables as Markdown; - is standard output.", metavar="FILE|-")
    ] = "",
    runs: Runs = Path("runs"),
) -> None:
    """Write a self-contained HTML page with the results of runs and studies."""
    from paceline.present import collect, page_of
    from paceline.present.chart_images import write_figures
    from paceline.present.html import write_atomically, write_page
    from paceline.present.text_renderers import as_markdown
    from paceline.runs import folder_of

    page = page_of(collect([folder_of(name, runs) for name in names]))
    # With --markdown -, standard output carries only Markdown.
    stream = sys.stderr if markdown == "-" else sys.stdout
    # Pictures are written first, so that nothing is written if their dependencies are missing.
    pictures = write_figures(page, figures) if figures is not None else []
    print(write_page(page, output), file=stream)
    if markdown == "-":
        print(plain_text(as_markdown(page), keep_lines=True), end="")
    elif markdown:
        write_atomically(Path(markdown), as_markdown(page))
        print(markdown)
    if figures is not None:
        print(f"{figures}: {len(pictures)} pictures", file=stream)


def register(app: typer.Typer) -> None:
    app.command()(report)
