"""Several strategies under one recipe, side by side: interleaved repeats, medians, intervals."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import UsageError
from paceline.launch.base import WorkerPool
from paceline.measure.environment import environment
from paceline.recipe import Recipe
from paceline.runs import SCHEMA, Folder, stamped, store_study
from paceline.study.entries import Entry, make_entries
from paceline.study.measuring import cost_of_measuring
from paceline.study.preflight import Facts, preflight
from paceline.study.results import Result, add_comparisons, combine
from paceline.study.run import execute, run_folder
from paceline.train.context import Event


class Listener(Protocol):
    """Who is told how a study gets on."""

    def started(self, entry: Entry, repeat: int) -> None: ...

    def event(self, entry: Entry, event: Event) -> None: ...

    def done(self, entry: Entry, repeat: int, result: Result) -> None: ...


def prepare(recipe: Recipe) -> tuple[list[Entry], Facts]:
    """Find every mistake in a request before anything starts."""
    if not recipe.strategies:
        raise UsageError(f"recipe {recipe.name!r} names no strategies to compare; give some with --strategies")
    entries = make_entries(recipe.strategies, recipe)
    return entries, preflight(recipe, entries)


def compare(
    recipe: Recipe,
    entries: list[Entry],
    launcher: WorkerPool,
    *,
    repeats: int,
    out: Path,
    listener: Listener,
    total_steps: int = 0,
) -> tuple[dict[str, Any], Path] | None:
    """Run every entry `repeats` times, in turn; the study and its folder, or None where another process reports.

    An interrupted or failed study keeps what was measured until then, and says so. With the steps that a run takes,
    what measuring costs is found out too.
    """
    folder = run_folder(out, stamped(f"compare-{recipe.name}"), launcher)
    study: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "study",
        "study": "compare",
        "name": recipe.name,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "status": "done",
        "recipe": recipe.to_dict(),
        "environment": environment(),
        "repeats": repeats,
    }
    measured: dict[str, list[Result]] = {entry.label: [] for entry in entries}
    started = time.perf_counter()
    try:
        for repeat in range(repeats):
            # Every other round runs backwards, so that a machine that slows down does not slow the same ones.
            for entry in entries if repeat % 2 == 0 else reversed(entries):
                listener.started(entry, repeat)
                inner = Folder(folder.path / "runs", f"{_file_name(entry.label)}-{repeat + 1}") if folder else None
                result = execute(
                    launcher,
                    recipe,
                    entry,
                    folder=inner,
                    on_event=lambda event, e=entry: listener.event(e, event),  # type: ignore[misc]
                )
                if result is not None:
                    measured[entry.label].append(result)
                    listener.done(entry, repeat, result)
        cost = None
        if total_steps:
            num_steps = total_steps * len(entries) * repeats
            cost = cost_of_measuring(launcher, recipe, entries, num_steps=num_steps, out=out)
    except BaseException as error:
        if folder is not None:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            error.__notes__ = []  # the run inside moves with the study
            unfinished = {**study, "status": status, "error": str(error)}
            _, path = _store(folder, unfinished, measured, time.perf_counter() - started)
            error.add_note(f"what was measured until then is kept: {path}")
        raise
    if folder is None:
        return None
    return _store(folder, study, measured, time.perf_counter() - started, cost)


def _store(
    folder: Folder,
    study: dict[str, Any],
    measured: dict[str, list[Result]],
    wall_s: float,
    cost: tuple[str, dict[str, Any]] | None = None,
) -> tuple[dict[str, Any], Path]:
    rows = [values for values in measured.values() if values]
    common = min((len(values) for values in rows), default=0)
    results = [combine(values[:common]) for values in rows]
    if results:
        add_comparisons(results)
    for result in results:
        result["measuring"] = cost[1] if cost is not None and cost[0] == result["label"] else None
    study = {**study, "wall_s": wall_s, "results": results}
    return study, store_study(folder, study)


def _file_name(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_.=+" else "_" for c in label)
