"""The command `export`: write measurements of workers in other formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import Runs

ORDER = 5


def export(
    name: Annotated[
        str, typer.Argument(help="A run or study: its name in --runs, a folder, or last (the newest).", metavar="RUN")
    ],
    to: Annotated[str, typer.Option("--to", help="Format: csv, parquet, tensorboard or mlflow.", metavar="FORMAT")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.", metavar="DIR")],
    runs: Runs = Path("runs"),
) -> None:
    """Export the measurements of a run or study to CSV, Parquet, TensorBoard or MLflow."""
    from paceline.export import export as write_export
    from paceline.export import sources_of
    from paceline.runs import find

    print(write_export(sources_of(find(name, runs)), to, output))


def register(app: typer.Typer) -> None:
    app.command()(export)
