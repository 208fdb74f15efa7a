"""The studies as functions, for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.launch.local import LocalLauncher
from paceline.recipe import DEFAULT_RECIPE, Recipe, load_recipe
from paceline.runs import stamped
from paceline.study import compare as study
from paceline.study.entries import Entry, make_entry, settle_comm
from paceline.study.preflight import preflight
from paceline.study.results import Result
from paceline.study.run import execute, run_folder
from paceline.train.context import Event


def run(recipe: str | Recipe = DEFAULT_RECIPE, *, out: str | Path = "runs", **changes: Any) -> dict[str, Any]:
    """Train a recipe under its strategy; the result, with the run's folder under `folder`.

    Changes are recipe keys with `__` for the dot: `run("lenet5-mnist", strategy="ring", train__epochs=10)`.
    """
    recipe = _recipe(recipe, changes)
    entry = make_entry(recipe.strategy, recipe)
    preflight(recipe, [entry])
    with LocalLauncher(entry.num_processes) as launcher:
        folder = run_folder(Path(out), stamped(f"{recipe.name}-{entry.label}"), launcher)
        result = execute(launcher, recipe, entry, folder=folder, on_event=_ignore)
    assert result is not None
    assert folder is not None
    return {**result, "folder": str(folder.path)}


def compare(
    recipe: str | Recipe = DEFAULT_RECIPE,
    *,
    strategies: Sequence[str] = (),
    repeats: int = 1,
    out: str | Path = "runs",
    **changes: Any,
) -> dict[str, Any]:
    """Train a recipe under several strategies; the study, with its folder under `folder`."""
    if strategies:
        changes["strategies"] = list(strategies)
    recipe = _recipe(recipe, changes)
    entries, _ = study.prepare(recipe)
    with LocalLauncher(max(entry.num_processes for entry in entries)) as launcher:
        outcome = study.compare(recipe, entries, launcher, repeats=repeats, out=Path(out), listener=_Quiet())
    assert outcome is not None
    return {**outcome[0], "folder": str(outcome[1])}


def _recipe(recipe: str | Recipe, changes: dict[str, Any]) -> Recipe:
    base = load_recipe(recipe) if isinstance(recipe, str) else recipe
    return settle_comm(base.replace({key.replace("__", "."): value for key, value in changes.items()}))


def _ignore(event: Event) -> None:
    del event


class _Quiet:
    """Follows a study without a word."""

    def started(self, entry: Entry, repeat: int) -> None: ...

    def event(self, entry: Entry, event: Event) -> None: ...

    def done(self, entry: Entry, repeat: int, result: Result) -> None: ...
