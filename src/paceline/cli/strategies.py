"""The command `strategies`: list strategies and codecs."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.options import Json

ORDER = 7


def strategies(
    workers: Annotated[int, typer.Option("--workers", help="Number of workers of the prediction.", min=1)] = 4,
    model: Annotated[str, typer.Option("--model", help="Model of the prediction.")] = "lenet5",
    data: Annotated[
        str, typer.Option("--data", help="Data set that sets the model's input shape and number of classes.")
    ] = "mnist-mini",
    json_target: Json = "",
) -> None:
    """List strategies with their guarantee and predicted traffic per step, and list codecs."""
    from paceline.cli.output import console_for, write_json
    from paceline.present.numbers import DASH, megabytes
    from paceline.present.page_parts import plain_table
    from paceline.present.terminal import show_tables
    from paceline.results.commands import StrategyCatalogue
    from paceline.results.study import SCHEMA
    from paceline.study.catalogue import catalogue, codec_catalogue

    rows = catalogue(num_workers=workers, model=model, data=data)
    cells = []
    for row in rows:
        sent = [megabytes(num_bytes) for num_bytes in row.sent_bytes_per_step]
        others = max(sent[1:], default=DASH)
        servers, messages = str(row.servers or DASH), f"{row.messages_per_step:g}"
        cells.append((row.strategy, row.guarantee.lower(), servers, sent[0], others, messages))
    headings = ("strategy", "guarantee", "servers", "MB sent, rank 0", "others", "messages")
    console = console_for(json_target)
    console.print(f"Predicted traffic of one step of {model} on {workers} workers with comm torch:")
    show_tables(console, [plain_table(headings, cells, numbers=headings[1:])])
    for row in rows:
        console.print(f"[bold]{row.strategy}[/bold]  {row.description}")
        if row.unavailable:
            console.print(f"    unavailable: {row.unavailable}", markup=False)
        for name, value in row.options.items():
            console.print(f"    option {name}" if value is None else f"    option {name}={str(value).lower()}")
        if row.paper:
            console.print(f"    {row.paper}", markup=False)
    console.print("Codecs (append one to a strategy: ring+int8):")
    codecs = codec_catalogue()
    for codec in codecs:
        console.print(f"[bold]{codec.codec}[/bold]  {codec.description}")
        for name, value in codec.options.items():
            console.print(f"    option {name}={value}")
    write_json(StrategyCatalogue(schema=SCHEMA, strategies=rows, codecs=codecs), json_target)


def register(app: typer.Typer) -> None:
    app.command()(strategies)
