"""A reproduced experiment as tables: measured here, and published beside it, never in one column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from paceline.cli.parts.view import DASH, fitted, make_table
from paceline.study.reproduce.words import figure_text, proof_words, short_heading

Study = Mapping[str, Any]


def show_experiments(console: Console) -> None:
    """What can be reproduced."""
    from paceline.study.reproduce import experiment_names

    table = make_table("experiment", "what it is", text=("what it is",))
    for name, title in experiment_names().items():
        table.add_row(name, title)
    console.print(table)
    console.print("`paceline reproduce NAME` runs one; --full runs all of it.", markup=False)


def show_reproduced(console: Console, study: Study) -> None:
    """Every note, the proof where there is one, and each published table beside ours."""
    for note in study["notes"]:
        console.print(note, style="yellow", markup=False)
    for line in proof_words(study["proof"]):
        console.print(line, markup=False)
    if not study["ours"]:
        return
    console.print("[bold]Measured here[/bold]" + ("; ~ is extrapolated" if _is_extrapolated(study) else ""))
    names = list(study["quantities"])
    shown = [name for name in names if any(name in row["figures"] for row in study["ours"])]
    rows = [
        {"row": escape(row["key"]), **{short_heading(name): _ours(row, name, study) for name in shown}}
        for row in study["ours"]
    ]
    console.print(fitted(rows, console.width, text=_texts(shown), name_share=0.3))
    for table in study["published"]:
        _show_published(console, study, table)
    _show_load(console, study)


def _is_extrapolated(study: Study) -> bool:
    return any(figure["is_extrapolated"] for row in study["ours"] for figure in row["figures"].values())


def _ours(row: Mapping[str, Any], name: str, study: Study) -> str:
    figure = row["figures"].get(name)
    if figure is None:
        return DASH
    mark = "~" if figure["is_extrapolated"] else ""
    return escape(mark + figure_text(figure["value"], study["quantities"][name]["unit"]))


def _show_published(console: Console, study: Study, table: Mapping[str, Any]) -> None:
    """Somebody else's table; of each figure that we have too, ours over theirs stands beside it."""
    console.print(f"[bold]Published[/bold], {escape(table['source'])}: {escape(table['setting'])}")
    ours = {row["key"]: row for row in study["ours"]}
    shown = [name for name in study["quantities"] if any(name in row["published"] for row in table["rows"])]
    rows = []
    for row in table["rows"]:
        cells = {"row, as published": escape(row["name"]), "ours": escape(row["ours"] or "not run")}
        for name in shown:
            value = row["published"].get(name)
            unit = study["quantities"][name]["unit"]
            cells[short_heading(name)] = DASH if value is None else escape(figure_text(value, unit))
        rows.append(cells)
    ran = [row for row in rows if row["ours"] in ours]
    console.print(fitted(ran or rows, console.width, text=("ours", *_texts(shown)), name_share=0.35))
    if ran and len(ran) < len(rows):
        left = len(rows) - len(ran)
        rest = "1 published row was" if left == 1 else f"{left} published rows were"
        console.print(f"{rest} not run here; the report has them all.")


def _texts(names: list[str]) -> tuple[str, ...]:
    """Columns of words or lists rather than of single figures: they may be folded."""
    return tuple(short_heading(name) for name in names if name.endswith("_by_rank") or name == "replicas")


def _show_load(console: Console, study: Study) -> None:
    """Each worker's resources."""
    loaded = [row for row in study["ours"] if row["load"]]
    if not loaded:
        return
    console.print("[bold]Resources of each worker, measured here[/bold] (CPU: 100 % is one core; bytes in MB)")
    rows = [
        {
            "row": escape(row["key"]),
            "worker": str(one["rank"]),
            "CPU %": _number(one["cpu_percent"], 1),
            "memory": _number(one["peak_rss_bytes"], 1e6),
            "net sent": _number(one["network_sent_bytes"], 1e6),
            "net received": _number(one["network_received_bytes"], 1e6),
            "disk read": _number(one["disk_read_bytes"], 1e6),
            "disk written": _number(one["disk_written_bytes"], 1e6),
        }
        for row in loaded
        for one in row["load"]
    ]
    console.print(fitted(rows, console.width, name_share=0.4))


def _number(value: float | None, unit: float) -> str:
    return DASH if value is None else f"{value / unit:,.1f}"
