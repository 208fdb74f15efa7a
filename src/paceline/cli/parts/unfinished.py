"""What there is of runs that never got to a result: the steps that workers had written until then."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from paceline.cli.parts.view import fitted, milliseconds, number
from paceline.runs import run_folders
from paceline.worker_files import worker_files, worker_lines


def show_unfinished(console: Console, item: Mapping[str, Any]) -> None:
    folder = Path(item["folder"])
    rows = [
        {"run": escape(inner.name), "worker": str(rank), **cells}
        for inner in run_folders(folder)
        for rank, file in worker_files(inner).items()
        if (cells := _cells(file))
    ]
    if not rows:
        console.print("Nothing was measured.")
        return
    if item["kind"] == "run":
        rows = [{key: cell for key, cell in row.items() if key != "run"} for row in rows]
    console.print("No result; what workers had written until then:")
    console.print(fitted(rows, console.width, name_share=0.5))
    shown = folder.name if item["kind"] == "run" else "RUN"
    console.print(f"`paceline trace {shown}` and `paceline export {shown} --to csv` show more of it.", markup=False)


def _cells(file: Path) -> dict[str, str]:
    """Of one worker; empty where it had made no step."""
    times: list[float] = []
    loss: float | None = None
    for line in worker_lines(file):
        if line["kind"] == "step":
            times.append(line["iteration_s"])
            loss = line["loss"]
    if not times:
        return {}
    return {"steps": str(len(times)), "ms/step": milliseconds(statistics.fmean(times)), "last loss": number(loss)}
