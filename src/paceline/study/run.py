"""Execution of one run: train under one strategy, and store the result in a folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import WorkerError
from paceline.launch.base import Task, WorkerPool
from paceline.measure.environment import environment
from paceline.measure.spool import recover
from paceline.recipe import Recipe
from paceline.results import (
    DONE,
    FAILED,
    INTERRUPTED,
    SCHEMA,
    RunRecord,
    RunResult,
    as_stored,
    changed,
    convert_reports,
)
from paceline.results.worker_report import WorkerReport
from paceline.runs import Folder, write_run
from paceline.runs.store import disk_errors
from paceline.study.entries import Entry
from paceline.study.resumption import CHECKPOINTS, Resumption
from paceline.study.run_analysis import analyse_run
from paceline.study.run_results import run_result
from paceline.train.checkpointing import CheckpointPlace
from paceline.train.context import Event
from paceline.train.job import serve_job, train_job


def execute(
    launcher: WorkerPool,
    recipe: Recipe,
    entry: Entry,
    *,
    folder: Folder | None,
    on_event: Callable[[Event], None],
    resume: Resumption | None = None,
) -> RunResult | None:
    """Train under one strategy, store the run in `folder` if one is passed, and return the result.

    With `resume`, `folder` is the reopened folder of an unfinished run, which continues from its checkpoint. Return
    None in all processes but the main one, which alone receives the workers' reports.
    """
    recipe = entry.recipe(recipe)
    earlier = resume or Resumption(attempt=0)
    checkpoint, place = "", CheckpointPlace()
    if folder is not None:
        checkpoints = folder.make_subfolder(CHECKPOINTS)
        checkpoint, place = str((checkpoints / "final.safetensors").resolve()), earlier.place(checkpoints)
        if recipe.train.checkpoint_interval is not None:
            folder.write_text("recipe.toml", recipe.to_toml())  # needed to resume a run whose process was killed
        with disk_errors(folder.path):
            recover(folder.path / "workers")
    for text in earlier.skipped:
        on_event({"kind": "warning", "text": text})
    task = training_task(recipe, entry, folder, checkpoint=checkpoint, checkpoints=msgspec.to_builtins(place))
    facts = environment()  # read before the run adds load to the machine
    started = time.perf_counter()
    record = RunRecord(
        schema=SCHEMA,
        kind="run",
        name=recipe.name,
        started=earlier.started or time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        status=DONE,
    )
    try:
        answers = launcher.run(task, on_event)
    except BaseException as error:
        if folder is not None:
            _store_unfinished(folder, recipe, changed(record, label=entry.label), error)
        raise
    if not launcher.is_main:
        return None
    total_s = earlier.run_s + time.perf_counter() - started
    workers = convert_reports(answers, WorkerReport)
    analysis = analyse_run(recipe, workers, folder.path if folder is not None else None)
    result = as_stored(run_result(recipe, entry, workers, total_s, analysis))
    if folder is not None:
        try:
            write_run(folder, recipe, facts, changed(record, result=result), workers)
            folder.commit()
        except BaseException:
            folder.discard()
            raise
    return result


def training_task(recipe: Recipe, entry: Entry, folder: Folder | None, **arguments: Any) -> Task:
    """Return the task that trains under the strategy of `entry`.

    `recipe` must be the result of `entry.recipe`. `arguments` are further arguments of the training job.
    """
    folder_path = str(folder.path.resolve()) if folder is not None else ""
    return Task(
        train_job,
        {"recipe": recipe, "strategy": entry.spec, "folder": folder_path, **arguments},
        num_workers=entry.num_workers,
        num_servers=entry.num_servers,
        serve=serve_job,
        comm=recipe.comm,
        device=recipe.device,
        threads=recipe.threads,
        timeout_s=recipe.timeout_s,
    )


def _store_unfinished(folder: Folder, recipe: Recipe, record: RunRecord, error: BaseException) -> None:
    """Store a run after an interrupt or the failure of a worker. After other errors, delete the run's folder."""
    if isinstance(error, KeyboardInterrupt):
        record = changed(record, status=INTERRUPTED)
    elif isinstance(error, WorkerError):
        record = changed(record, status=FAILED, error=str(error))
    else:
        folder.discard()
        return
    try:
        with disk_errors(folder.path):
            recover(folder.path / "workers")
        write_run(folder, recipe, environment(), record, [])
        error.add_note(f"the run is stored as {record.status}: {folder.commit()}")
        if recipe.train.checkpoint_interval is not None:
            error.add_note(f"continue with paceline resume {folder.path}")
    except BaseException:
        folder.discard()
        raise


def run_folder(out: Path, name: str, launcher: WorkerPool) -> Folder | None:
    """Create the folder of a run. Return None in all processes but the main one, which alone stores runs."""
    return Folder(out, name) if launcher.is_main else None
