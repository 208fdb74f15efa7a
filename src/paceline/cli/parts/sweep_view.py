"""A sweep as a table that fits a terminal of 100 columns, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.cli.parts.view import DASH, fitted, milliseconds, number, percent
from paceline.study.findings import sweep_lines
from paceline.study.vary import short_key, value_text

Row = Mapping[str, Any]


def show_sweep(console: Console, study: Row) -> None:
    """Every point that was measured, those that were not, and what the sweep says."""
    if not study["results"]:
        console.print("No point was measured.")
    else:
        console.print(sweep_table(study, console.width))
        warmup = study["results"][0]["warmup_steps"]
        console.print(
            f"ms/step: mean over workers, first {warmup} dropped; test: accuracy; MB: the most memory of a worker, "
            "measured, and as it was predicted."
        )
    for line in failure_lines(study):
        console.print(line, style="yellow", markup=False)
    for line in sweep_lines(study):
        console.print(line, markup=False)


def sweep_table(study: Row, width: int) -> Table:
    """One row per point; the keys that were varied come first."""
    results = study["results"]
    keys = list(results[0]["point"])
    has_remedies = any(result["remedy"] for result in results)
    has_interval = any(result["iteration_mean_s_interval95"] for result in results)
    rows = []
    for result in results:
        row = {short_key(key, result["point"]): escape(value_text(result["point"][key])) for key in keys}
        row |= {"remedy": escape(result["remedy"]) or DASH} if has_remedies else {}
        row |= {"ms/step": milliseconds(result["iteration_s"]["mean"])}
        row |= {"95 %": _plus_minus(result)} if has_interval else {}
        row |= {
            "samples/s": f"{result['samples_per_s']:,.0f}",
            "epoch s": DASH if result["epoch_s"] is None else f"{result['epoch_s']:.2f}",
            "train s": f"{result['train_s']:.2f}",
            "loss": number(result["final"]["train_loss"], 3),
            "test": percent(result["final"]["test_accuracy"]),
            "MB": _megabytes(result["memory"]["peak_rss_bytes"]),
            "predicted": _megabytes((result["memory"]["predicted"] or {}).get("worker_bytes")),
        }
        rows.append(row)
    text = ("remedy", *(short_key(key, results[0]["point"]) for key in keys if not _is_number(results, key)))
    dispensable = ("epoch s", "95 %", "loss", "predicted", "train s")
    return fitted(rows, width, dispensable=dispensable, text=text)


def failure_lines(study: Row) -> list[str]:
    return [f"{one['label']}: {one['status']}: {one['reason']}." for one in study.get("failures", [])]


def _is_number(results: Sequence[Row], key: str) -> bool:
    values = [result["point"][key] for result in results]
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _megabytes(num_bytes: float | None) -> str:
    return DASH if num_bytes is None else f"{num_bytes / 1e6:,.0f}"


def _plus_minus(result: Row) -> str:
    bounds = result["iteration_mean_s_interval95"]
    return (
        f"\N{PLUS-MINUS SIGN}{50 * (bounds[1] - bounds[0]) / result['iteration_s']['mean']:.0f} %" if bounds else DASH
    )
