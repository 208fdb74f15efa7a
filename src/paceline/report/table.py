"""The main table and the tables of workers: what is in each column, for the page and for Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.report.numbers import DASH, accuracy, counted, megabytes, milliseconds, significant, times, whole

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    group: str  # what stands above several columns
    name: str
    text: Callable[[Row], str]
    is_number: bool = True

    @property
    def full_name(self) -> str:
        """For a table with one row of heads."""
        return f"{self.group} {self.name}".strip()


def _interval(result: Row) -> str:
    bounds = result.get("iteration_mean_s_interval95")
    # Few repeats that scatter give an interval that reaches below zero, where no time is.
    return f"{milliseconds(max(bounds[0], 0.0))} to {milliseconds(bounds[1])}" if bounds else DASH


def _versus(result: Row) -> str:
    versus = result.get("versus_fastest")
    if not versus:
        return DASH
    if result.get("role"):  # a limit is no rival
        return str(result["role"])
    if versus["verdict"] == "fastest":
        return "fastest"
    if versus["verdict"] == "no difference":
        return "no difference"
    return f"{times(versus['ratio'])} \N{MULTIPLICATION SIGN}"


def _verdict(result: Row) -> str:
    """Of rivals; what is there for comparison says what it is."""
    return str(result.get("role") or result.get("versus_fastest", {}).get("verdict", DASH))


def _optional(value: float | None) -> str:
    return DASH if value is None else times(value)


def _sent(result: Row) -> str:
    return megabytes(max((row["sent_bytes"] for row in result["per_worker"]), default=None))


def _processes(result: Row) -> str:
    servers = result.get("servers", 0)  # studies from before there were any do not say
    return f"{result['workers']} + {counted(servers, 'server')}" if servers else str(result["workers"])


def _guarantee(result: Row) -> str:
    late = result.get("staleness_updates")
    words = str(result["guarantee"]).lower()
    return f"{words} (mean {significant(late['mean'])}, max {late['max']} updates)" if late else words


COLUMNS = (
    Column("", "Strategy", lambda r: str(r["label"]), is_number=False),
    Column("", "Workers", _processes),
    Column("Iteration, ms", "mean", lambda r: milliseconds(r["iteration_s"]["mean"])),
    Column("Iteration, ms", "95 % interval", _interval),
    Column("Iteration, ms", "p50", lambda r: milliseconds(r["iteration_s"]["p50"])),
    Column("Iteration, ms", "p90", lambda r: milliseconds(r["iteration_s"].get("p90"))),  # older runs have none
    Column("Iteration, ms", "p95", lambda r: milliseconds(r["iteration_s"]["p95"])),
    Column("", "To fastest", _versus),
    Column("", "Speed-up", lambda r: _optional(r.get("speedup"))),
    Column("", "Samples/s", lambda r: whole(r["samples_per_s"])),
    Column("", "Sent, MB", _sent),
    Column("Accuracy", "train", lambda r: accuracy(r["final"]["train_accuracy"])),
    Column("Accuracy", "test", lambda r: accuracy(r["final"]["test_accuracy"])),
    Column("Loss", "train", lambda r: significant(r["final"]["train_loss"])),
    Column("Loss", "test", lambda r: significant(r["final"]["test_loss"])),
    Column("", "Replica drift", lambda r: significant(r["replica_drift"])),
    Column("", "Guarantee", _guarantee, is_number=False),
    Column("Epoch, s", "all", lambda r: significant(r["epoch_s"])),
    Column("Epoch, s", "without data", lambda r: significant(r["epoch_without_data_s"])),
    Column("", "Train, s", lambda r: significant(r["train_s"])),
    Column("", "Comm", lambda r: str(r["comm"]), is_number=False),
)

# The page shows speed in a table of its own, beside the charts of speed.
_SPEED = {"95 % interval", "p50", "p90", "p95", "Speed-up", "Samples/s"}
MAIN_COLUMNS = tuple(
    Column("", "Iteration, ms", column.text) if column.full_name == "Iteration, ms mean" else column
    for column in COLUMNS
    if column.name not in _SPEED
)


def _speedup(result: Row) -> str:
    bounds = result.get("speedup_interval95")
    text = _optional(result.get("speedup"))
    return f"{text} ({times(bounds[0])} to {times(bounds[1])})" if bounds else text


def _ratio(result: Row) -> str:
    versus = result.get("versus_fastest")
    if not versus:
        return DASH
    bounds = versus["interval95"]
    return times(versus["ratio"]) + (f" ({times(bounds[0])} to {times(bounds[1])})" if bounds else "")


def _efficiency(result: Row) -> str:
    value = result.get("efficiency")
    return DASH if value is None else f"{value * 100:.0f} %"


SPEED_COLUMNS = (
    Column("", "Strategy", lambda r: str(r["label"]), is_number=False),
    Column("", "Workers", _processes),
    *(column for column in COLUMNS if column.group == "Iteration, ms"),
    Column("", "Times the fastest", _ratio),
    Column("", "Verdict", _verdict, is_number=False),
    Column("", "Speed-up over one worker", _speedup),
    Column("", "Efficiency", _efficiency),
    Column("", "Samples/s", lambda r: whole(r["samples_per_s"])),
)

WORKER_COLUMNS = (
    Column("", "Rank", lambda w: str(w["rank"])),
    Column("Iteration, ms", "mean", lambda w: milliseconds(w["iteration_s"])),
    Column("Iteration, ms", "p50", lambda w: milliseconds(w["iteration_p50_s"])),
    Column("Iteration, ms", "p90", lambda w: milliseconds(w.get("iteration_p90_s"))),
    Column("Iteration, ms", "p95", lambda w: milliseconds(w["iteration_p95_s"])),
    Column("", "Sent, MB", lambda w: megabytes(w["sent_bytes"])),
    Column("", "Received, MB", lambda w: megabytes(w["received_bytes"])),
    Column("Accuracy", "train", lambda w: accuracy(w["train_accuracy"])),
    Column("Accuracy", "test", lambda w: accuracy(w["test_accuracy"])),
    Column("Loss", "train", lambda w: significant(w["train_loss"])),
    Column("Loss", "test", lambda w: significant(w["test_loss"])),
    Column("", "Parameters", lambda w: str(w["parameter_digest"] or DASH)[:12], is_number=False),
)


def _hidden(result: Row) -> str:
    share = ((result.get("split") or {}).get("mean") or {}).get("overlap_fraction")
    return DASH if share is None else f"{share * 100:.0f} %"


def _waiting(result: Row) -> str:
    mean = (result.get("split") or {}).get("mean") or {}
    return f"{(mean.get('waiting_s') or 0) / mean['step_s'] * 100:.0f} %" if mean.get("step_s") else DASH


# What fits the width of a README: speed, where the time goes, bytes, and what was learnt.
_IN_MARKDOWN = ("Strategy", "Workers", "Iteration, ms mean", "Iteration, ms 95 % interval", "To fastest", "Speed-up")
MARKDOWN_COLUMNS = (
    *(column for column in COLUMNS if column.full_name in _IN_MARKDOWN),
    Column("", "Overlap", _hidden),
    Column("", "Waiting", _waiting),
    *(column for column in COLUMNS if column.full_name in ("Sent, MB", "Accuracy test", "Loss train", "Guarantee")),
)


def markdown_table(results: Sequence[Row]) -> str:
    """The figures that matter most in Markdown, one line per result; the page has all of them."""
    names = [(str(r["label"]), str(r.get("full_label", r["label"]))) for r in results]
    key = [f"\n{_escaped(short)}: {_escaped(full)}\n" for short, full in names if short != full]
    return "".join([markdown_lines(MARKDOWN_COLUMNS, results), *key])


def markdown_lines(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Any columns of any rows as a table in Markdown."""
    lines = [
        _line(column.full_name for column in columns),
        _line("---:" if column.is_number else ":---" for column in columns),
        *(_line(_escaped(column.text(row)) for column in columns) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Labels are the user's text: nothing in them may end a cell or become markup."""
    return re.sub(r"([\\|<>`*_~&$@#\[\]])", r"\\\1", " ".join(text.split()))
