"""Execution of one run: train under one strategy, and store the result in a folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import DivergedError, PacelineError, RunError, WorkerError
from paceline.interrupts import deferred
from paceline.launch.base import Task, WorkerPool
from paceline.measure.environment import environment
from paceline.recipe import Recipe
from paceline.results import (
    DIVERGED,
    DONE,
    FAILED,
    INTERRUPTED,
    RUNNING,
    SCHEMA,
    RunRecord,
    RunResult,
    as_stored,
    changed,
    convert_reports,
)
from paceline.results.worker_report import WorkerReport
from paceline.runs import Folder, write_run
from paceline.runs.recovery import recover_measurements
from paceline.study.entries import Entry
from paceline.study.resumption import CHECKPOINTS, Resumption, find_resumption, without_ending_faults
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
    restarts: int = 0,
) -> RunResult | None:
    """Train under one strategy, store the run in `folder` if one is passed, and return the result.

    The folder is locked until this function returns. Whatever ends the run, the folder keeps the measurements and has
    the status. With `resume`, `folder` is the reopened folder of an unfinished run, which continues from its
    checkpoint. After the failure of a worker, training continues from the newest checkpoint with new workers, up to
    `restarts` times. Return None in all processes but the main one, which alone receives the workers' reports. If
    training stopped because a loss or gradient was not finite, raise DivergedError.
    """
    recipe = entry.recipe(recipe)
    earlier = resume or Resumption(attempt=0)
    facts = environment()  # read before the run adds load to the machine
    begun_s = time.perf_counter()
    record = RunRecord(
        schema=SCHEMA,
        kind="run",
        name=recipe.name,
        started=earlier.started or time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        status=RUNNING,
    )
    with folder or nullcontext():
        try:
            path = None
            if folder is not None:
                folder.begin(recipe, changed(record, label=entry.label))
                folder.write_json("environment.json", facts)
                folder.make_subfolder(CHECKPOINTS)
                path = folder.path
            answers = _train(launcher, recipe, entry, path, earlier, on_event=on_event, restarts=restarts)
            if not launcher.is_main:
                return None
            total_s = earlier.run_s + time.perf_counter() - begun_s
            workers = convert_reports(answers, WorkerReport)
            analysis = analyse_run(recipe, workers, path)
            result = as_stored(run_result(recipe, entry, workers, total_s, analysis))
            diverged = next((worker.diverged for worker in workers if worker.diverged), "")
            if diverged:
                record = changed(record, status=DIVERGED, error=diverged, label=entry.label)
            else:
                record = changed(record, status=DONE)
            if folder is not None:
                with deferred():
                    write_run(folder, changed(record, result=result), workers)
        except BaseException as error:
            if folder is not None and folder.is_begun:
                with deferred():
                    _store_unfinished(folder, recipe, changed(record, label=entry.label), error)
            raise
    if diverged:
        raise _diverged_error(diverged, folder)
    return result


def _diverged_error(reason: str, folder: Folder | None) -> DivergedError:
    error = DivergedError(reason, is_orderly=True)
    if folder is not None:
        error.add_note(f"the run is stored as {DIVERGED}: {folder.path}")
    return error


def _train(
    launcher: WorkerPool,
    recipe: Recipe,
    entry: Entry,
    folder: Path | None,
    resume: Resumption,
    *,
    on_event: Callable[[Event], None],
    restarts: int,
) -> list[Any]:
    """Train, and return the workers' reports. After the failure of a worker, continue up to `restarts` times."""
    for number in range(restarts + 1):
        for text in resume.skipped:
            on_event({"kind": "warning", "text": text})
        try:
            return launcher.run(training_task(recipe, entry, folder, resume), on_event)
        except WorkerError as error:
            if number == restarts:
                raise
            recipe = without_ending_faults(recipe)  # a fault that was injected on purpose happens once
            if folder is not None:
                recover_measurements(folder, holds_lock=True)
                resume = find_resumption(folder, recipe)
            text = f"{error}; restart {number + 1} of {restarts}, from step {resume.step}"
            on_event({"kind": "warning", "text": text})
    raise AssertionError("the last attempt returns or raises")


def training_task(
    recipe: Recipe, entry: Entry, folder: Path | None, resume: Resumption | None = None, **arguments: Any
) -> Task:
    """Return the task that trains under the strategy of `entry`. If `folder` is set, workers write their files to it.

    `recipe` must be the result of `entry.recipe`. `arguments` are further arguments of the training job.
    """
    checkpoint, place = "", CheckpointPlace()
    if folder is not None and resume is not None:
        checkpoint = str((folder / CHECKPOINTS / "final.safetensors").resolve())
        place = resume.place(folder / CHECKPOINTS)
    return Task(
        train_job,
        {
            "recipe": recipe,
            "strategy": entry.spec,
            "folder": str(folder.resolve()) if folder is not None else "",
            "checkpoint": checkpoint,
            "checkpoints": msgspec.to_builtins(place),
            **arguments,
        },
        num_workers=entry.num_workers,
        num_servers=entry.num_servers,
        serve=serve_job,
        comm=recipe.comm,
        device=recipe.device,
        threads=recipe.threads,
        timeout_s=recipe.timeout_s,
    )


def _store_unfinished(folder: Folder, recipe: Recipe, record: RunRecord, error: BaseException) -> None:
    """Store a run that an error has ended. If the disk is full, the status stays `running`, but without a lock."""
    record = changed(record, status=INTERRUPTED)
    if not isinstance(error, KeyboardInterrupt):
        reason = str(error) if isinstance(error, PacelineError) else f"{type(error).__name__}: {error}"
        record = changed(record, status=DIVERGED if isinstance(error, DivergedError) else FAILED, error=reason)
    try:
        folder.write_content(record)
        recover_measurements(folder.path, holds_lock=True)
        error.add_note(f"the run is stored as {record.status}: {folder.path}")
        if recipe.train.checkpoint_interval is not None:
            error.add_note(f"continue with paceline resume {folder.path}")
    except RunError as failure:
        error.add_note(f"the run's folder is incomplete ({failure}): {folder.path}")


def run_folder(out: Path, name: str, launcher: WorkerPool) -> Folder | None:
    """Name the folder of a run. Return None in all processes but the main one, which alone stores runs."""
    return Folder(out, name) if launcher.is_main else None
