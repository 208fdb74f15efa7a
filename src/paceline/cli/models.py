from __future__ import annotations

import typer

ORDER = 8


def models() -> None:
    """List the built-in models; any file.py:factory works as well."""
    from paceline.cli.parts.options import console_for
    from paceline.cli.parts.view import make_table
    from paceline.study.catalogue import model_catalogue

    table = make_table("model", "parameters", "input", "what it is", text=("what it is",))
    for row in model_catalogue():
        table.add_row(row.model, f"{row.parameters:,}", row.input, row.description)
    console_for("").print(table)


def register(app: typer.Typer) -> None:
    app.command()(models)
