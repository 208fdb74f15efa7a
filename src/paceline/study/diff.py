"""Two runs or studies side by side: what became slower, and whether that can be told at all."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.measure.bootstrap import block_ratio
from paceline.measure.stats import Ratio, unpaired_ratio
from paceline.recipe import Recipe
from paceline.runs import SCHEMA, name_of, read, recipe_of, results_of, run_folders, worker_files, worker_lines

Row = dict[str, Any]

PARTS = ("step_s", "compute_s", "communication_s", "overlap_s", "waiting_s", "data_s", "rest_s")
# Facts that are about the moment or the request, not about the machine.
_NOT_THE_MACHINE = {"command", "load_average"}
# Keys that say what was compared, not how; what ran is in the rows.
_NOT_THE_WORK = {"description", "strategy", "strategies"}
CANNOT_TELL, PASSED, FAILED = "cannot tell", "passed", "failed"


@dataclass(frozen=True)
class Side:
    """One of the two."""

    stored: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.stored.get("study") == "quantize":
            raise UsageError(f"{self.name!r} is a quantization: it has stages, and no steps to compare")
        if not self.results:
            ending = self.stored.get("status", "unfinished")
            raise UsageError(f"{self.name!r} has nothing to compare: it is {ending} and measured nothing")

    @property
    def folder(self) -> Path:
        return Path(self.stored["folder"])

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def results(self) -> list[Row]:
        return results_of(self.stored)

    def facts(self) -> Row:
        keys = ("kind", "status", "started")
        return {"name": self.name, "folder": str(self.folder), **{key: self.stored.get(key) for key in keys}}

    def environment(self) -> Row:
        if "environment" in self.stored:
            return dict(self.stored["environment"])
        try:
            return dict(json.loads((self.folder / "environment.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError):
            return {}

    def steps(self, row: Row) -> list[list[float]]:
        """Timed steps of every run of a row, each the mean over its workers; empty where no worker's lines are left.

        Rows of one label may differ in their point: a run belongs to the row that counts its mean.
        """
        found = []
        for folder in run_folders(self.folder):
            result = (self.stored if folder == self.folder else read(folder)).get("result")
            if result is not None and result["label"] == row["label"] and _is_of(result, row):
                found.append(_step_times(folder, result))
        return [steps for steps in found if steps]


def _is_of(result: Row, row: Row) -> bool:
    return not row.get("point") or result["iteration_s"]["mean"] in row["iteration_mean_s_repeats"]


def _step_times(folder: Path, result: Row) -> list[float]:
    workers = [
        [line["iteration_s"] for line in worker_lines(file) if line["kind"] == "step"]
        for file in worker_files(folder).values()
    ]
    first = result["warmup_steps"]
    together = zip(*workers, strict=False)  # workers at their own pace may have made different numbers of steps
    return [statistics.fmean(times) for times in together][first : first + result["timed_steps"]]


def diff(a: Mapping[str, Any], b: Mapping[str, Any], *, most_percent: float | None = None) -> Row:
    """B against A. With `most_percent`, every row is judged: is it slower by more than that?"""
    sides = Side(a), Side(b)
    pairs = _pairs(*sides)
    rows = [_row(sides, pair, most_percent) for pair in pairs]
    in_a, in_b = ([name_of(result) for result in side.results] for side in sides)
    judged = {row["gate"] for row in rows}
    return {
        "schema": SCHEMA,
        "a": sides[0].facts(),
        "b": sides[1].facts(),
        "rows": rows,
        "only_a": [label for label in in_a if label not in {row["labels"][0] for row in rows}],
        "only_b": [label for label in in_b if label not in {row["labels"][1] for row in rows}],
        "recipe": _differing(*(_flat_recipe(side) for side in sides), leave_out=_NOT_THE_WORK),
        "environment": _differing(*(side.environment() for side in sides), leave_out=_NOT_THE_MACHINE),
        "fail_if_slower_percent": most_percent,
        "gate": None
        if most_percent is None
        else next(word for word in (FAILED, CANNOT_TELL, PASSED) if word in judged),
    }


def _pairs(a: Side, b: Side) -> list[tuple[Row, Row]]:
    """Rows of the same label; where each side has a single row, those two, whatever they are called."""
    if len(a.results) == len(b.results) == 1:
        return [(a.results[0], b.results[0])]
    theirs = {name_of(result): result for result in b.results}
    pairs = [(result, theirs[name_of(result)]) for result in a.results if name_of(result) in theirs]
    if not pairs:
        labels = [", ".join(name_of(result) for result in side.results) for side in (a, b)]
        raise UsageError(f"{a.name!r} and {b.name!r} have no strategy in common: {labels[0]} against {labels[1]}")
    return pairs


def _row(sides: tuple[Side, Side], pair: tuple[Row, Row], most_percent: float | None) -> Row:
    def both(key: str) -> list[Any]:
        return [result.get(key) for result in pair]

    labels = [name_of(result) for result in pair]
    times = [result["iteration_s"]["mean"] for result in pair]
    ratio, source = _ratio(sides, pair)
    interval = [ratio.low, ratio.high] if ratio.low is not None and ratio.high is not None else None
    value = times[1] / times[0]
    return {
        "label": labels[0] if labels[0] == labels[1] else f"{labels[0]} to {labels[1]}",
        "labels": labels,
        "workers": both("workers"),
        "iteration_s": times,
        "ratio": value,
        "interval95": interval,
        "interval_from": source if interval else None,
        "verdict": _verdict(interval),
        "gate": None if most_percent is None else _gate(interval, 1 + most_percent / 100),
        "samples_per_s": both("samples_per_s"),
        "test_accuracy": [result["final"]["test_accuracy"] for result in pair],
        "train_loss": [result["final"]["train_loss"] for result in pair],
        "sent_bytes": [max(worker["sent_bytes"] for worker in result["per_worker"]) for result in pair],
        "target": both("target"),
        "split": _split(pair),
    }


def _ratio(sides: tuple[Side, Side], pair: tuple[Row, Row]) -> tuple[Ratio, str]:
    """B's time over A's with an interval, from repeats where both have some, else from the steps of their runs."""
    old, new = (result.get("iteration_mean_s_repeats") or [] for result in pair)
    if min(len(old), len(new)) >= 2:
        return unpaired_ratio(new, old), "repeats"
    steps = [side.steps(result) for side, result in zip(sides, pair, strict=True)]
    if all(steps):
        return block_ratio(steps[1], steps[0]), "steps"
    return Ratio(pair[1]["iteration_s"]["mean"] / pair[0]["iteration_s"]["mean"], None, None), ""


def _verdict(interval: Sequence[float] | None) -> str:
    if interval is None:
        return CANNOT_TELL
    if interval[0] <= 1 <= interval[1]:
        return "no difference"
    return "slower" if interval[0] > 1 else "faster"


def _gate(interval: Sequence[float] | None, most: float) -> str:
    """Failed only where the whole interval is beyond the limit, passed only where it is within."""
    if interval is None or interval[0] <= most < interval[1]:
        return CANNOT_TELL
    return FAILED if interval[0] > most else PASSED


def _split(pair: tuple[Row, Row]) -> dict[str, list[float]] | None:
    """Where the time of a step goes, part by part, if both were measured so."""
    old, new = ((result.get("split") or {}).get("mean") or {} for result in pair)
    measured = [part for part in PARTS if old.get(part) is not None and new.get(part) is not None]
    return {part: [old[part], new[part]] for part in measured} or None


def _flat_recipe(side: Side) -> Row:
    """Every key of the recipe; those that it does not have are as this version sets them."""
    return {**_flat(Recipe().to_dict()), **_flat(recipe_of(side.stored))}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Row:
    flat: Row = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _differing(a: Row, b: Row, *, leave_out: set[str]) -> dict[str, list[Any]]:
    keys = [*a, *(key for key in b if key not in a)]
    return {key: [a.get(key), b.get(key)] for key in keys if key not in leave_out and a.get(key) != b.get(key)}
