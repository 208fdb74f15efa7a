"""A quantization as a table of stages and a few sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from paceline.cli.parts.view import DASH, fitted, number
from paceline.study.quantize.stages import Listener
from paceline.study.quantize.words import calibration_words, deployed_lines, headline, percents, points, tuned_line

Study = Mapping[str, Any]


def show_quantized(console: Console, study: Study) -> None:
    rows = [
        {
            "stage": escape(row["name"]),
            "calibration": row["calibration"] or DASH,
            "test loss": number(row["test_loss"]),
            "test": percents(row["test_accuracy"]),
            "points": points(row["change_points"]),
            "as float": percents(row["agreement"]),
        }
        for row in study["stages"]
    ]
    console.print(fitted(rows, console.width, text=("calibration",), name_share=0.4))
    console.print("points: of accuracy against float; as float: test samples with the float model's answer.")
    for op in study["left_in_float"]:
        console.print(f"Left in float: {op['what']} ({op['name']}).", style="yellow", markup=False)
    worst = [row for row in study["activations"] if row["snr_db"] is not None]
    if worst:
        least = min(worst, key=lambda row: float(row["snr_db"]))
        console.print(f"Most noise: {least['tensor']}, signal {least['snr_db']:.1f} dB above it.", markup=False)
    lines = [calibration_words(study), tuned_line(study), *deployed_lines(study)]
    for line in filter(None, lines):
        console.print(line, markup=False)
    console.print(f"{headline(study)}.", style="bold", markup=False)


@contextmanager
def following(console: Console) -> Iterator[Listener]:
    """A bar for the stage that is judged, and a line for each that is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("test samples"))
    with Progress(*columns, console=console, refresh_per_second=4, transient=True) as progress:
        bar = progress.add_task("", total=None, visible=False)

        def move(name: str, done: int, total: int) -> None:
            progress.update(bar, description=escape(name), completed=done, total=total, visible=True)

        def end(row: Mapping[str, Any]) -> None:
            progress.update(bar, visible=False)
            progress.console.print(_stage_line(row), style="dim", markup=False)

        yield Listener(move, end)


def _stage_line(row: Mapping[str, Any]) -> str:
    """Said as soon as a stage is judged."""
    accuracy = "" if row["test_accuracy"] is None else f"{percents(row['test_accuracy'])} "
    return f"{row['name']}: {accuracy}in {row['evaluation_s']:.1f} s"
