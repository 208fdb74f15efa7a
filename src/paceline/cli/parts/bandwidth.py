"""What `bench` measured, as a table that fits a terminal of 100 columns."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.cli.parts.view import DASH, make_table
from paceline.study.bench import human_bytes, short_name

DISPENSABLE = ("p90", "p95", "algbw", "check")  # on a narrow terminal; what is wrong is said at the end, too


def bandwidth_table(outcome: dict[str, Any], console: Console) -> Table:
    """One row per operation, size, comm and place of the result; denser, then with fewer columns, to fit."""
    choices: list[tuple[int, tuple[str, ...]]] = [(1, ()), (1, ("p90",)), (0, ("p90",)), (0, DISPENSABLE)]
    tables = [_table(outcome, gap=gap, without=without) for gap, without in choices]
    unlimited = console.options.update(width=1000)  # what a table would like, not what it gets
    fitting = (table for table in tables if console.measure(table, options=unlimited).maximum <= console.width)
    return next(fitting, tables[-1])


def _table(outcome: dict[str, Any], *, gap: int = 1, without: tuple[str, ...] = ()) -> Table:
    rows = [_cells(row, outcome["reference"]) for row in outcome["results"]]
    versus = f"x {short_name(outcome['reference'])}"
    columns = [name for name in rows[0] if name not in without and (name != versus or is_comparison(outcome))]
    table = make_table(*columns, text=("comm", "result"))
    table.padding = (0, gap, 0, 0)
    for column in table.columns:
        column.no_wrap = True
    groups = [(row["op"], row["bytes"]) for row in outcome["results"]]
    for index, row in enumerate(rows):
        here, after = groups[index], groups[min(index + 1, len(rows) - 1)]
        is_end = here[0] != after[0] or (here != after and groups.count(here) > 1)
        table.add_row(*(row[name] for name in columns), end_section=is_end)
    return table


def _cells(row: dict[str, Any], reference: str) -> dict[str, str]:
    return {
        "op": row["op"],
        "comm": escape(short_name(row["comm"])),
        "result": row["result"],
        "bytes": human_bytes(row["bytes"]),
        "p50": duration(row["time_s"]["p50"]),
        "p90": duration(row["time_s"]["p90"]),
        "p95": duration(row["time_s"]["p95"]),
        "algbw": gigabytes(row["algbw_bytes_per_s"]),
        "busbw": gigabytes(row["busbw_bytes_per_s"]),
        "% copy": f"{row['percent_of_copy_limit']:.1f}",
        f"x {short_name(reference)}": _speedup(row, reference),
        "check": {True: "[green]ok[/green]", False: "[bold red]wrong[/bold red]", None: DASH}[row["correct"]],
    }


def _speedup(row: dict[str, Any], reference: str) -> str:
    if row["comm"] == reference and row["result"] == "private":
        return f"{DASH}  "
    interval = row["speedup"]["interval95"]
    is_tie = interval is not None and interval[0] <= 1 <= interval[1]
    return f"{row['speedup']['value']:.2f} {'~' if is_tie else ' '}"


def explanation(outcome: dict[str, Any]) -> list[str]:
    """What the columns mean."""
    lines = [
        "p50, p90, p95: the slowest worker of each iteration. algbw = bytes / p50; busbw as nccl-tests; GB/s.",
        f"% copy: busbw over what each worker copies, all at once: {gigabytes(outcome['copy_limit_bytes_per_s'])} GB/s "
        "at the largest size.",
    ]
    if is_comparison(outcome):
        reference = short_name(outcome["reference"])
        lines.append(f"x {reference}: {reference}'s time over this one, round by round; ~ no difference within 95 %.")
    return lines


def is_comparison(outcome: dict[str, Any]) -> bool:
    """Whether anything was done in more than one way."""
    return len(outcome["results"]) > len({(row["op"], row["bytes"]) for row in outcome["results"]})


def duration(seconds: float) -> str:
    """Three digits, in the unit that suits."""
    for unit, scale in (("\N{MICRO SIGN}s", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{_three(seconds * scale)} {unit}"
    return f"{_three(seconds)} s"


def gigabytes(bytes_per_s: float) -> str:
    return _three(bytes_per_s / 1e9)


def _three(value: float) -> str:
    if value == 0:
        return "0"
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.0995 else 4
    return f"{value:.{decimals}f}"
