"""Two runs or studies side by side, in the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from paceline.cli.parts.view import DASH, fitted, megabytes, milliseconds, number, percent
from paceline.study.diff import CANNOT_TELL

SOURCES = {
    "repeats": "95 %: from repeats on both sides (Welch's interval of the logarithms).",
    "steps": "95 %: from the steps within the runs, drawn again in blocks; it does not see how much one run differs "
    "from the next, as --repeats would.",
}


def show_diff(console: Console, found: dict[str, Any]) -> None:
    """All that differs, the times first."""
    for key in ("a", "b"):
        side = found[key]
        words = ", ".join(str(side[name]) for name in ("kind", "status", "started") if side[name])
        console.print(f"{key.upper()}  {side['name']} ({words})", markup=False, soft_wrap=True)
    console.print(fitted([_times(row) for row in found["rows"]], console.width, dispensable=("B/A", "ms A")))
    for source in dict.fromkeys(row["interval_from"] for row in found["rows"] if row["interval_from"]):
        console.print(SOURCES[source], markup=False)
    console.print(fitted([_outcome(row) for row in found["rows"]], console.width, dispensable=("loss A", "loss B")))
    _show_split(console, found["rows"])
    for key, side in (("only_a", "A"), ("only_b", "B")):
        if found[key]:
            console.print(f"Only in {side}: {', '.join(found[key])}.", markup=False)
    _show_facts(console, "recipe", found["recipe"])
    _show_facts(console, "machine", found["environment"])
    if not found["recipe"] and not found["environment"]:
        console.print("Same recipe, same machine.")


def _times(row: dict[str, Any]) -> dict[str, str]:
    bounds = row["interval95"]
    return {
        "strategy": escape(row["label"]),
        "ms A": milliseconds(row["iteration_s"][0]),
        "ms B": milliseconds(row["iteration_s"][1]),
        "B/A": f"{row['ratio']:.3f}",
        "change": f"{100 * (row['ratio'] - 1):+.1f} %",
        "95 %": f"{100 * (bounds[0] - 1):+.1f} to {100 * (bounds[1] - 1):+.1f} %" if bounds else DASH,
        "B is": row["verdict"],
    }


def _outcome(row: dict[str, Any]) -> dict[str, str]:
    accuracies, losses, sent = row["test_accuracy"], row["train_loss"], row["sent_bytes"]
    cells = {"strategy": escape(row["label"])}
    cells |= {f"test {side}": percent(value) for side, value in zip("AB", accuracies, strict=True)}
    cells |= {f"loss {side}": number(value, 3) for side, value in zip("AB", losses, strict=True)}
    cells |= {f"MB sent {side}": megabytes(value) for side, value in zip("AB", sent, strict=True)}
    return cells


def _show_split(console: Console, rows: list[dict[str, Any]]) -> None:
    """Where the time of a step goes, in milliseconds, of rows that were measured so on both sides."""
    measured = [row for row in rows if row["split"]]
    if not measured:
        return
    cells = []
    for row in measured:
        for index, side in enumerate("AB"):
            parts = {part.removesuffix("_s"): milliseconds(pair[index]) for part, pair in row["split"].items()}
            cells.append({"ms of a step": f"{escape(row['label'])} {side}", **parts})
    console.print(fitted(cells, console.width, dispensable=("rest",)))


def _show_facts(console: Console, name: str, facts: dict[str, list[Any]]) -> None:
    if facts:
        rows = [{name: escape(key), "A": _text(pair[0]), "B": _text(pair[1])} for key, pair in facts.items()]
        console.print(fitted(rows, console.width, text=("A", "B")))


def _text(value: Any) -> str:
    if value is None:
        return "unset"
    return escape(", ".join(map(str, value)) if isinstance(value, list) else str(value)) or DASH


def gate_lines(found: dict[str, Any]) -> list[str]:
    """What the gate says of every row."""
    limit = f"{found['fail_if_slower_percent']:g} %"
    words = {"failed": f"is slower by more than {limit}", "passed": f"is not slower by more than {limit}"}
    words[CANNOT_TELL] = f"cannot tell whether it is slower by more than {limit}: more repeats or steps would"
    return [f"{row['label']}: {words[row['gate']]}." for row in found["rows"]]
