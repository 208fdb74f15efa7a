"""The command `models`: list built-in models."""

from __future__ import annotations

import typer

ORDER = 8


def models() -> None:
    """List built-in models. The option --model also accepts your own file.py:factory."""
    from paceline.cli.output import console_for
    from paceline.present.page_parts import plain_table
    from paceline.present.terminal import show_tables
    from paceline.study.catalogue import model_catalogue

    rows = [(row.model, f"{row.parameters:,}", row.input, row.description) for row in model_catalogue()]
    headings = ("model", "parameters", "input", "description")
    show_tables(console_for(""), [plain_table(headings, rows, numbers=("parameters", "input"))])


def register(app: typer.Typer) -> None:
    app.command()(models)
