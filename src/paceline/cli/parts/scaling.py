"""A scaling study in the terminal: what is going to be measured, the points in tables, and what follows from them."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.cli.parts.limits import limit_lines
from paceline.cli.parts.view import (
    DASH,
    fitted,
    measuring_lines,
    milliseconds,
    share,
    straggler_lines,
    unjudged_lines,
)
from paceline.study.scaling import lines_of, modes_of, reference_of
from paceline.study.scaling_words import (
    TITLES,
    batch_words,
    failed_lines,
    ideal_name,
    paying_lines,
    refused_lines,
)

# Where the terminal is narrow, these go first; the report has all of them.
DISPENSABLE = ("samples/s", "compute", "wait")


def show_scaling(console: Console, study: dict[str, Any]) -> None:
    """A table per mode, and in words where each strategy stops paying."""
    results = study["results"]
    for mode in modes_of(results):
        console.print()
        console.print(f"{TITLES[mode]}: {batch_words(study['modes'], mode)}.", style="bold", markup=False)
        console.print(scaling_table(results, mode, console.width))
        for line in paying_lines(results, mode):
            console.print(line, markup=False)
        for line in _limits(results, mode):
            console.print(line)
    console.print()
    console.print(
        f"N: workers. ms/step: mean over workers, first {results[0]['warmup_steps']} dropped, with its 95 % interval. "
        "speed-up: samples per second over one worker's; eff.: that over N. compute, comm, wait: shares of a step. "
        f"beyond: ms above {_ideals(results)}, beside the communication that was measured (comm ms: not hidden).",
        markup=False,
    )
    if study["repeats"] == 1:
        console.print("One repeat cannot tell a gain from noise: --repeats 3 gives intervals.")
    for line in [*refused_lines(study["refused"]), *failed_lines(study["failed"])]:
        console.print(line, style="yellow", markup=False)
    for line in measuring_lines(study):
        console.print(line)
    for result in results:
        for line in straggler_lines(result, f"{result['label']} on {result['workers']}"):
            console.print(line, markup=False)
    for line in unjudged_lines(
        [{**result, "label": f"{result['label']} on {result['workers']}"} for result in results]
    ):
        console.print(line, markup=False)


def scaling_table(results: list[dict[str, Any]], mode: str, width: int) -> Table:
    """One row per point of a mode, the one worker first."""
    reference = reference_of(results, mode)
    rows = [row for line in lines_of(results, mode).values() for row in line]
    cells = [_cells(row) for row in ([reference] if reference is not None else []) + rows]
    return fitted(cells, width, dispensable=DISPENSABLE)


def _limits(results: list[dict[str, Any]], mode: str) -> list[str]:
    """How far each way to agree is from not agreeing at all with most workers, where that was measured."""
    rows = [row for line in lines_of(results, mode).values() for row in line]
    most = max((row["workers"] for row in rows), default=0)
    lines = limit_lines({"results": [row for row in rows if row["workers"] == most]})
    return [f"On {most} workers: {line[0].lower()}{line[1:]}" for line in lines]


def _cells(row: dict[str, Any]) -> dict[str, str]:
    scaling = row["scaling"]
    step = ((row.get("split") or {}).get("mean") or {}).get("step_s")
    is_one = row["workers"] == 1
    return {
        "strategy": escape(row["label"]),
        "N": str(row["workers"]),
        "ms/step": f"{milliseconds(row['iteration_s']['mean'])}{_plus_minus(row)}",
        "speed-up": DASH if scaling["speedup"] is None else f"{scaling['speedup']:.2f}x",
        "eff.": share(scaling["efficiency"]),
        "samples/s": f"{row['samples_per_s']:,.0f}",
        **{name: _part(scaling[key], step) for name, key in _PARTS.items()},
        "beyond": DASH if is_one else _short(scaling["beyond_ideal_s"]),
        "comm ms": _short(scaling["communication_s"]),
    }


_PARTS = {"compute": "compute_s", "comm": "communication_s", "wait": "waiting_s"}


def _part(seconds: float | None, step: float | None) -> str:
    return DASH if seconds is None or not step else share(seconds / step)


def _short(seconds: float | None) -> str:
    """Milliseconds with as many digits as fit."""
    if seconds is None:
        return DASH
    return f"{1000 * seconds:.2f}" if abs(seconds) < 0.1 else f"{1000 * seconds:.0f}"


def _plus_minus(row: dict[str, Any]) -> str:
    bounds = row["iteration_mean_s_interval95"]
    if not bounds:
        return ""
    return f" \N{PLUS-MINUS SIGN}{50 * (bounds[1] - bounds[0]) / row['iteration_s']['mean']:.0f} %"


def _ideals(results: list[dict[str, Any]]) -> str:
    return " or ".join(f"{ideal_name(mode)} ({mode})" for mode in modes_of(results))
