"""The command `data`: list data sets, download published ones, and find samples that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from paceline.cli.options import Json

if TYPE_CHECKING:
    from paceline.data.base import BadSample
    from paceline.recipe import DataConfig

ORDER = 6

data = typer.Typer(
    help="List data sets, download one, or find samples that cannot be read.", invoke_without_command=True
)


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


@data.command()
def check(
    name: Annotated[str, typer.Argument(help="folder:PATH, or your own data: file.py:factory.", metavar="DATA")],
    json_target: Json = "",
) -> None:
    """Read every sample, and list those that cannot be read. The exit code is 1 if there are any."""
    from paceline.cli.output import check_json_target, console_for, write_json
    from paceline.present.page_parts import plain_table
    from paceline.present.terminal import say, show_tables
    from paceline.results import SCHEMA
    from paceline.results.commands import BadSampleEntry, DataCheck

    check_json_target(json_target)
    console = console_for(json_target)
    samples, bad = _check_with_bar(name, console)
    if bad:
        rows = [(one.split, one.name, one.reason) for one in bad]
        show_tables(console, [plain_table(("split", "sample", "reason"), rows)])
    say(console, f"{len(bad):,} of {sum(samples.values()):,} samples cannot be read.")
    entries = [BadSampleEntry(split=one.split, sample=one.name, reason=one.reason) for one in bad]
    write_json(DataCheck(schema=SCHEMA, data=name, samples=samples, bad=entries), json_target)
    if bad:
        raise typer.Exit(1)


def _check_with_bar(name: str, console: Console) -> tuple[dict[str, int], Sequence[BadSample]]:
    """Read all samples with a progress bar. Return their numbers by split, and the samples that cannot be read."""
    from paceline.data.checks import check_data
    from paceline.recipe import DataConfig

    columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None)
        return check_data(DataConfig(name=name), lambda done, total: progress.update(bar, completed=done, total=total))


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
    """If a recipe uses a published data set (MNIST or CIFAR-10) and allows downloads, download the missing files.

    If it leaves out bad images of a folder, check the images now: the workers use the stored result.
    """
    from paceline.data.published import PUBLISHED

    if config.name in PUBLISHED and config.download:
        fetch_with_bar(config.name, config.dir, console)
    if config.name.startswith("folder:") and config.on_bad_sample == "skip" and config.train_samples is None:
        _check_with_bar(config.name, console)
