from __future__ import annotations

from typing import Annotated

import typer

ORDER = 6

data = typer.Typer(help="List data sets, or fetch one.", invoke_without_command=True)


@data.callback()
def list_sources(context: typer.Context) -> None:
    if context.invoked_subcommand is not None:
        return
    from paceline.cli.parts.options import console_for
    from paceline.data import data_sources
    from paceline.present.model import plain_table
    from paceline.present.terminal import show_tables

    show_tables(console_for(""), [plain_table(("data", "what it is"), list(data_sources().items()))])


@data.command()
def fetch(
    name: Annotated[str, typer.Argument(help="mnist or cifar10.")],
    data_dir: Annotated[str, typer.Option("--data-dir", help="Where the files go.")] = "",
) -> None:
    """Download a published data set and verify it."""
    from paceline.cli.parts.fetching import fetch_with_bar
    from paceline.cli.parts.options import console_for

    print(fetch_with_bar(name, data_dir, console_for("-")))


def register(app: typer.Typer) -> None:
    app.add_typer(data, name="data")
