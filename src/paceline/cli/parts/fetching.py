"""Published data, downloaded with a bar that shows only when something is downloaded."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from paceline.data.download import fetch
from paceline.data.published import PUBLISHED
from paceline.recipe import DataConfig


def fetch_with_bar(name: str, directory: str, console: Console) -> Path:
    """Make sure that a data set is there; says where."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(f"downloading {name}", total=None, visible=False)
        return fetch(
            name, directory, lambda done, total: progress.update(bar, completed=done, total=total, visible=True)
        )


def fetch_if_needed(config: DataConfig, console: Console) -> None:
    if config.name in PUBLISHED and config.download:
        fetch_with_bar(config.name, config.dir, console)
