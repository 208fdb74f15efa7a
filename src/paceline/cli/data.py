"""The command `data`: list data sets, and download published ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

if TYPE_CHECKING:
    from paceline.recipe import DataConfig

ORDER = 6

data = typer.Typer(help="List data sets, or download one.", invoke_without_command=True)


@data.callback()
def list_sources(context: typer.Context) -> None:
    if context.invoked_subcommand is not None:
        return
    from paceline.cli.output import console_for
    from paceline.data import data_sources
    from paceline.present.page_parts import plain_table
    from paceline.present.terminal import show_tables

    show_tables(console_for(""), [plain_table(("data", "description"), list(data_sources().items()))])


@data.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Name of the data set: mnist or cifar10.")],
    data_dir: Annotated[str, typer.Option("--data-dir", help="Folder to write to (default: a cache folder).")] = "",
) -> None:
    """Download a published data set, and verify its checksums."""
    from paceline.cli.output import console_for

    print(fetch_with_bar(name, data_dir, console_for("-")))


def register(app: typer.Typer) -> None:
    app.add_typer(data, name="data")


def fetch_with_bar(name: str, directory: str, console: Console) -> Path:
    """Download a data set with a progress bar, unless it was downloaded before. Return its folder."""
    from paceline.data import download  # imports torch, which would slow down `--help`

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(f"downloading {name}", total=None, visible=False)
        return download.fetch(
            name, directory, lambda done, total: progress.update(bar, completed=done, total=total, visible=True)
        )


def fetch_if_needed(config: DataConfig, console: Console) -> None:
    """If a recipe uses a published data set (MNIST or CIFAR-10) and allows downloads, download the missing files."""
    from paceline.data.published import PUBLISHED

    if config.name in PUBLISHED and config.download:
        fetch_with_bar(config.name, config.dir, console)
