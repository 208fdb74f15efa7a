"""Tuning in words and as a table: what is tried, who passed which rung, and what to use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from paceline.cli.parts.view import DASH, fitted, milliseconds, number, percent
from paceline.study.advice import command_in, lost_words


def show_tuning(console: Console, study: Mapping[str, Any], folder: str | Path) -> None:
    """All rungs as one table, and what to use."""
    rungs = study["rungs"]
    if not rungs:
        console.print("No rung was completed.")
        return
    console.print(fitted(_rows(study), console.width, text=("end",), dispensable=("MB sent", "loss"), name_share=0.35))
    console.print(
        "ms/step: slowest worker, at each rung. lost: against the exact strategy after equal samples, points of test "
        "accuracy or % of test loss; exact strategies lose nothing but rounding. MB sent: in its last rung, by the "
        "worker that sent most."
    )
    for line in best_lines(study, folder):
        # What is copied must not be broken.
        console.print(line, markup=False, soft_wrap=not line.startswith("Best"))


def best_lines(study: Mapping[str, Any], folder: str | Path) -> list[str]:
    """The winner in words, the command and the call."""
    best = study.get("best")
    if not best:
        return []
    lines = [f"Best: {best['label']}, {_against(study, best)}; {lost_words(best)}."]
    if best["label"] == study["reference"]:
        lines = [f"Best: {best['label']}, the exact strategy itself: nothing was clearly faster within the margin."]
    call = best["library"].splitlines()
    return [
        *lines,
        f"command {command_in(best, folder)}",
        f"library {call[0]}",
        *(f"        {line}" for line in call[1:]),
    ]


def _against(study: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    bounds = best["versus_reference_interval95"]
    interval = f" (95 %: {bounds[0]:.2f} to {bounds[1]:.2f})" if bounds else " (one repeat)"
    return f"{best['versus_reference']:.2f} times the time per step of {study['reference']}{interval}"


def _rows(study: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row per candidate, those that came furthest and were fastest first."""
    rungs = study["rungs"]
    latest: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for place, table in enumerate(rungs):
        for row in table["rows"]:
            latest[row["label"]] = (place, row)
    order = sorted(latest.items(), key=lambda item: (-item[1][0], item[1][1].get("iteration_s", float("inf"))))
    best = (study.get("best") or {}).get("label")
    return [
        {
            "strategy": escape(label),
            **{f"{table['steps']} steps": _time(label, table) for table in rungs},
            **_figures(row, rungs[place]),
            "end": "best" if label == best else _end(row, is_last=place == len(rungs) - 1),
        }
        for label, (place, row) in order
    ]


def _time(label: str, table: Mapping[str, Any]) -> str:
    return next((milliseconds(row.get("iteration_s")) for row in table["rows"] if row["label"] == label), DASH)


def _figures(row: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, str]:
    if row["end"] == "failed":
        return dict.fromkeys(("test", "loss", "lost", "MB sent"), DASH)
    unit = "" if table["judged_by"] == "accuracy" else " %"
    return {
        "test": percent(row["test_accuracy"]),
        "loss": number(row["test_loss"], 3),
        "lost": "exact" if row["guarantee"] == "EXACT" else f"{row['lost']:+.2f}{unit}",
        "MB sent": f"{row['sent_bytes'] / 1e6:.2f}",
    }


def _end(row: Mapping[str, Any], *, is_last: bool) -> str:
    """Why somebody did not get further."""
    if row["end"] == "failed":
        return escape(f"failed: {row['reason']}")
    if row["end"] == "kept":  # in the last rung: the fastest, which was not told from one with a stronger guarantee
        return "no difference" if is_last else "passed"
    return "exact" if row["end"] == "reference" else str(row["end"])
