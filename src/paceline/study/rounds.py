"""Rounds of runs: every entry once per round, in turn, each round with a seed of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from paceline.errors import WorkerError
from paceline.launch.base import WorkerPool
from paceline.recipe import Recipe
from paceline.runs import Folder
from paceline.study.compare import Listener
from paceline.study.entries import Entry
from paceline.study.results import Result
from paceline.study.run import execute

Measured = dict[str, list[Result]]  # by label, in the order of the rounds
Failures = dict[str, str]  # by label, why
# Makes a listener for some entries that run so many times for so many steps; told when they are done.
Follow = Callable[[list[Entry], int, int], AbstractContextManager[Listener]]


def run_rounds(
    recipe: Recipe,
    entries: Sequence[Entry],
    launcher: WorkerPool,
    *,
    repeats: int,
    listener: Listener,
    measured: Measured,
    folder: Path | None = None,
    name: str = "",
    failures: Failures | None = None,
) -> None:
    """Run every entry `repeats` times and put what was measured into `measured`, as soon as it is there.

    Runs are stored in `folder`, where there is one, under names that begin with `name`. Where `failures` is given, an
    entry whose worker fails is noted there and not run again; otherwise the failure is raised.
    """
    for repeat in range(repeats):
        seeded = recipe.replace({"seed": recipe.seed + repeat})
        # Every other round runs backwards, so that a machine that slows down does not slow the same ones.
        for entry in entries if repeat % 2 == 0 else reversed(entries):
            if failures is not None and entry.label in failures:
                continue
            listener.started(entry, repeat)
            inner = Folder(folder, f"{name}{file_name(entry.label)}-{repeat + 1}") if folder else None
            try:
                result = execute(
                    launcher,
                    seeded,
                    entry,
                    folder=inner,
                    on_event=lambda event, e=entry: listener.event(e, event),  # type: ignore[misc]
                )
            except WorkerError as error:
                if failures is None:
                    raise
                failures[entry.label] = str(error)
                continue
            assert result is not None, "rounds are run by the process that reports"
            measured.setdefault(entry.label, []).append(result)
            listener.done(entry, repeat, result)


def file_name(label: str) -> str:
    """A label as part of a file's name."""
    return "".join(c if c.isalnum() or c in "-_.=+" else "_" for c in label)
