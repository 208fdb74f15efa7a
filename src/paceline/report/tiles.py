"""The few figures that a reader takes away from a glance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.report.numbers import accuracy, amount, duration, times
from paceline.report.points import Result, fastest_row


@dataclass(frozen=True)
class Tile:
    name: str
    value: str
    note: str


def tiles(results: Sequence[Result]) -> list[Tile]:
    """Of the fastest, or of the only one; none where results cannot be compared."""
    row = fastest_row(results)
    if row is None:
        return []
    bounds = row.get("iteration_mean_s_interval95")
    interval = f"{duration(max(bounds[0], 0.0))} to {duration(bounds[1])}" if bounds else "one repeat"
    found = [Tile("Time per iteration", duration(row["iteration_s"]["mean"]), f"{row['label']}, {interval}")]
    found.append(Tile("Samples per second", f"{row['samples_per_s']:,.0f}", f"on {_workers(row)}"))
    if row.get("speedup") is not None and row["workers"] > 1:
        note = f"over one worker, efficiency {row['efficiency'] * 100:.0f} %"
        found.append(Tile("Speed-up", f"{times(row['speedup'])} \N{MULTIPLICATION SIGN}", note))
    mean = (row.get("split") or {}).get("mean") or {}
    if mean.get("overlap_fraction") is not None:
        found.append(Tile("Communication hidden", f"{mean['overlap_fraction'] * 100:.0f} %", "under computing"))
    if mean.get("step_s"):
        found.append(
            Tile(
                "Waiting",
                f"{(mean.get('waiting_s') or 0) / mean['step_s'] * 100:.0f} %",
                "of a step, for a late worker",
            )
        )
    if row["final"]["test_accuracy"] is not None:
        found.append(Tile("Test accuracy", accuracy(row["final"]["test_accuracy"]), "at the end"))
    if row["workers"] > 1:
        sent = max(worker["sent_bytes"] for worker in row["per_worker"])
        found.append(Tile("Sent per worker", amount(sent), "over the run, at most"))
    return found


def _workers(row: Result) -> str:
    return f"{row['workers']} worker{'' if row['workers'] == 1 else 's'}"
