from __future__ import annotations

from pathlib import Path

import typer

from paceline.cli.parts.options import Json, Out

ORDER = 4


def runs(out: Out = Path("runs"), json_target: Json = "") -> None:
    """List stored runs and studies."""
    from rich.markup import escape

    from paceline.cli.parts.options import console_for, write_json
    from paceline.cli.parts.view import DASH, make_table, milliseconds, percent
    from paceline.runs import SCHEMA, list_runs
    from paceline.study.results import fastest_of

    console = console_for(json_target)
    found = list_runs(out)
    table = make_table("folder", "kind", "status", "fastest", "ms/step", "test", text=("fastest",))
    for item in found:
        results = item.get("results") or ([item["result"]] if item.get("result") else [])
        best = fastest_of(results) if results else None
        figures = [DASH] * 3
        if best is not None:
            figures = [
                escape(best["label"]),
                milliseconds(best["iteration_s"]["mean"]),
                percent(best["final"]["test_accuracy"]),
            ]
        table.add_row(escape(Path(item["folder"]).name), item.get("kind", ""), item.get("status", DASH), *figures)
    if found:
        console.print(table)
    else:
        console.print(f"No runs in {out}: `paceline compare` makes some.")
    for item in found:
        if item["kind"] == "unreadable":
            console.print(item["reason"], style="yellow", markup=False)
    write_json({"schema": SCHEMA, "runs": found}, json_target)


def register(app: typer.Typer) -> None:
    app.command()(runs)
