"""How strategies scale with workers: points in turn, every one of them against one worker of the same code."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from paceline.errors import WorkerError
from paceline.launch.base import WorkerPool
from paceline.measure.environment import environment
from paceline.runs import SCHEMA, Folder, stamped, store_study
from paceline.study.compare import Listener
from paceline.study.measuring import cost_of_measuring
from paceline.study.results import Result, combine
from paceline.study.run import execute, run_folder
from paceline.study.scale_plan import Job, Plan, Point, Work
from paceline.study.scaling import add_scaling, paying

Study = dict[str, Any]


class Rounds:
    """Runs jobs in turn and keeps what each of them gave; one that fails is not tried again, the others go on."""

    def __init__(self, plan: Plan, launcher: WorkerPool, folder: Folder | None, listener: Listener) -> None:
        self._plan, self._launcher, self._folder, self._listener = plan, launcher, folder, listener
        self.measured: dict[Work, list[Result]] = {job.work: [] for job in plan.jobs}
        self.failed: list[dict[str, Any]] = []
        self.cost: tuple[str, dict[str, Any]] | None = None
        self._given_up: set[Work] = set()

    def run(self, repeats: int) -> None:
        jobs = self._plan.jobs
        for repeat in range(repeats):
            # Every other round runs backwards, so that a machine that slows down does not slow the same ones.
            for job in jobs if repeat % 2 == 0 else reversed(jobs):
                if job.work not in self._given_up:
                    self._measure(job, repeat)

    def _measure(self, job: Job, repeat: int) -> None:
        shown = job.shown
        self._listener.started(shown, repeat)
        inner = Folder(self._folder.path / "runs", f"{job.folder_name}-{repeat + 1}") if self._folder else None
        try:
            result = execute(
                self._launcher,
                job.recipe,
                job.entry,
                folder=inner,
                on_event=lambda event: self._listener.event(shown, event),
            )
        except WorkerError as error:
            if not self._launcher.can_go_on:
                raise
            self._given_up.add(job.work)
            points = [point.values for point in job.points]
            self.failed += [_failure(job.entry.label, point, repeat, error) for point in points]
            self._listener.event(shown, {"kind": "warning", "text": f"failed: {error}; the other points go on"})
            return
        if result is not None:
            self.measured[job.work].append(result)
            self._listener.done(shown, repeat, result)

    def measure_measuring(self, repeats: int, out: Path) -> None:
        """What measuring costs with most workers, as a comparison finds it; a failure there loses no point."""
        recipe = self._plan.recipe
        largest = [job for job in self._plan.jobs if job.entry.num_workers == recipe.workers]
        entries = list({job.entry.label: job.entry for job in largest if job.work not in self._given_up}.values())
        if not entries:
            return
        num_steps = self._plan.facts.total_steps * len(self.measured) * repeats
        try:
            self.cost = cost_of_measuring(self._launcher, recipe, entries, num_steps=num_steps, out=out)
        except WorkerError as error:
            if not self._launcher.can_go_on:
                raise
            where = {"workers": recipe.workers, "mode": self._plan.modes[0]}
            self.failed.append(_failure("finding out what measuring costs", where, repeats, error))

    def rows(self) -> list[Result]:
        """A row per point that has a result: mode by mode, strategy by strategy, from few workers to many."""
        found = [self._row(point) for point in self._plan.ordered if self.measured[point.work]]
        add_scaling(found)
        return found

    def _row(self, point: Point) -> Result:
        row = {**combine(self.measured[point.work]), "point": point.values, "batch_size": point.recipe.batch_size}
        tried = (self.cost[0] if self.cost else None, self._plan.recipe.workers, self._plan.modes[0])
        is_tried = tried == (row["label"], row["workers"], point.mode)
        return {**row, "measuring": self.cost[1] if self.cost and is_tried else None}


def scale(
    plan: Plan, launcher: WorkerPool, *, repeats: int, out: Path, listener: Listener
) -> tuple[Study, Path] | None:
    """Run every point `repeats` times, in turn; the study and its folder, or None where another process reports.

    An interrupted or failed study keeps what was measured until then, and says so.
    """
    folder = run_folder(out, stamped(f"scale-{plan.recipe.name}"), launcher)
    study = _head(plan, repeats)
    rounds = Rounds(plan, launcher, folder, listener)
    started = time.perf_counter()
    try:
        rounds.run(repeats)
        rounds.measure_measuring(repeats, out)
    except BaseException as error:
        if folder is not None:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            error.__notes__ = []  # the run inside moves with the study
            study |= {"status": status, "error": str(error), "wall_s": time.perf_counter() - started}
            _, path = _store(folder, study, rounds)
            error.add_note(f"what was measured until then is kept: {path}")
        raise
    if folder is None:
        return None
    if not any(rounds.measured.values()):
        study |= {"status": "failed", "error": "every point failed"}
    return _store(folder, {**study, "wall_s": time.perf_counter() - started}, rounds)


def _head(plan: Plan, repeats: int) -> Study:
    return {
        "schema": SCHEMA,
        "kind": "study",
        "study": "scale",
        "name": plan.recipe.name,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "status": "done",
        "recipe": plan.recipe.to_dict(),
        "environment": environment(),
        "repeats": repeats,
        "workers": [1, *plan.workers],
        "modes": plan.kept,
        "num_points": len(plan.points),
        "refused": list(plan.refused),
    }


def _store(folder: Folder, study: Study, rounds: Rounds) -> tuple[Study, Path]:
    results = rounds.rows()
    study = {**study, "failed": rounds.failed, "results": results, "paying": paying(results)}
    return study, store_study(folder, study)


def _failure(label: str, point: dict[str, Any], repeat: int, error: WorkerError) -> dict[str, Any]:
    return {"label": label, "point": point, "repeat": repeat + 1, "error": str(error)}
