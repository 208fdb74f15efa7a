"""The study engine: runs the cells (planned runs) of any study, and stores the study after every cell.

The engine also resumes interrupted studies.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import DivergedError, PacelineError, RunError, UsageError, WorkerError
from paceline.interrupts import deferred
from paceline.launch.base import WorkerPool
from paceline.measure.environment import environment
from paceline.plugins import digests_of_files
from paceline.results import DIVERGED, DONE, FAILED, INTERRUPTED, RUNNING, SCHEMA, Environment, StudyResult, changed
from paceline.study.base import Cell, CellFailure, Launch, Progress, Study, StudyListener
from paceline.study.overhead import measure_overhead
from paceline.study.resumption import without_ending_faults
from paceline.study.run import execute
from paceline.study.study_folder import StudyFolder, find_unfinished_folder, new_folder, reopen_folder, request_of


@dataclass(frozen=True)
class StudyOutcome:
    """The result of a study, and the folder where the study is stored."""

    result: StudyResult
    folder: Path


def run_study(
    study: Study, launch: Launch, listener: StudyListener, out: Path, *, resume: Path | None = None
) -> StudyOutcome | None:
    """Run every cell (planned run) of a study, and return the study's result and folder.

    Return None in all processes but the main one, which alone receives results. The study is stored in a new folder
    below `out`. If `resume` is the folder of an unfinished study, that study is continued without repeating its
    completed cells. An interrupted or failed study keeps everything measured so far.
    """
    with ExitStack() as stack:
        folder, stored = None, None
        if resume is not None:
            folder, stored = stack.enter_context(reopen_folder(resume))
            _check_same_request(study, stored, resume)
            folder.write(changed(stored, status=RUNNING, error=None))
        launcher = None
        if not study.has_own_processes:
            launcher = stack.enter_context(launch(study.num_processes, study.recipe.cluster))
        is_main = launcher is None or launcher.is_main
        if folder is not None and not is_main:
            raise UsageError("--resume needs a launcher that starts all workers, such as local; leave out --resume")
        header = _Header(study, stored)
        if folder is None and is_main:
            first = header.result(Progress(), RUNNING)
            folder = stack.enter_context(new_folder(out, f"{study.name}-{study.title}", study.recipe, first))
        return _Execution(study, launch, launcher, listener, folder, header).run()


def find_unfinished(study: Study, out: Path) -> Path | None:
    """Return the folder of the newest unfinished study below `out` that has the same request as `study`, or None.

    Raises UsageError if another process is running the study in that folder.
    """
    return find_unfinished_folder(_Header(study).result(Progress(), INTERRUPTED), _request_keys(study), out)


def interleave(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Yield all cells (planned runs) of the first repeat, then all of the second, and so on.

    Every other repeat is in reverse order. Thus a machine that slows down over time does not always slow down the same
    cells.
    """
    rounds: dict[int, list[Cell]] = {}
    for cell in cells:
        rounds.setdefault(cell.repeat, []).append(cell)
    for repeat in sorted(rounds):
        yield from rounds[repeat] if repeat % 2 == 0 else reversed(rounds[repeat])


def _check_same_request(study: Study, stored: StudyResult, folder: Path) -> None:
    """Raise UsageError if the stored study was made for another request than `study`."""
    request = request_of(_Header(study).result(Progress(), INTERRUPTED), _request_keys(study))
    for key, value in request_of(stored, _request_keys(study)).items():
        if value != request[key]:
            raise UsageError(
                f"{str(folder)!r} cannot be resumed: its {key} differs from the current request; "
                "use the options that started it, or leave out --resume"
            )


def _request_keys(study: Study) -> tuple[str, ...]:
    """Return the names of the result's fields that must be equal when a study is resumed.

    In addition to the study's own `request_keys`, these include `code`, which holds digests of the user's own files.
    """
    return (*study.request_keys, "code")


def _names_in(study: Study) -> Iterator[str]:
    """Yield all names in a study that may refer to the user's own files, such as models and data sets."""
    for cell in study.cells():
        recipe = cell.recipe
        yield from (recipe.model.name, recipe.data.name, recipe.train.loss, cell.entry.spec, recipe.comm)


def _status_after(error: BaseException) -> str:
    """Return the status of a study that an error has ended."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return DIVERGED if isinstance(error, DivergedError) else FAILED


class _Header:
    """The fields that the results of all studies share. The method `result` adds the study's own fields."""

    def __init__(self, study: Study, stored: StudyResult | None = None) -> None:
        self._study, self._recipe = study, study.stored_recipe
        self._code = digests_of_files(_names_in(study)) or None
        self._environment: Environment = environment()  # read before the study adds load to the machine
        self._started = stored.started if stored else time.strftime("%Y-%m-%dT%H:%M:%S%z")
        self._wall_s = (stored.wall_s if stored else None) or 0.0
        self._begun_s = time.perf_counter()
        self.stored = stored

    def result(self, progress: Progress, status: str, error: str = "") -> StudyResult:
        header = StudyResult(
            schema=SCHEMA,
            kind="study",
            study=self._study.name,
            name=self._study.title,
            started=self._started,
            status=status,
            recipe=self._recipe,
            environment=self._environment,
            error=error or None,
            repeats=self._study.repeats,
            wall_s=self._wall_s + time.perf_counter() - self._begun_s,
            code=self._code,
            cautions=list(progress.cautions) or None,
        )
        return self._study.result(header, progress)


class _Execution:
    """One execution of a study, from its first cell (planned run) to its last."""

    def __init__(
        self,
        study: Study,
        launch: Launch,
        launcher: WorkerPool | None,
        listener: StudyListener,
        folder: StudyFolder | None,
        header: _Header,
    ) -> None:
        self._study, self._launch, self._launcher, self._listener = study, launch, launcher, listener
        self._folder, self._header = folder, header
        self._progress = Progress()

    def run(self) -> StudyOutcome | None:
        study = self._study
        try:
            study.begin(self._launcher, self._header.stored)
            cells = study.cells()
            while cells:
                self._run_stage(cells)
                cells = study.next_cells(self._progress)
            self._measure_overhead()
            if self._folder is not None:
                study.end(self._folder.path, self._progress)
            result = self._store(DONE)
        except BaseException as error:
            error.__notes__ = []  # these notes name the run's folder, but the user needs the study's
            if self._folder is not None:
                self._store_unfinished(error)
                error.add_note(f"completed runs are kept; continue with --resume {self._folder.path}")
            raise
        if result is None or self._folder is None:
            return None
        return StudyOutcome(result, self._folder.path)

    def _store_unfinished(self, error: BaseException) -> None:
        """Store the study after an error. If the disk is full, it keeps its last stored state and is not locked."""
        try:
            self._store(_status_after(error), str(error))
        except RunError as failure:
            error.add_note(f"its status is not stored: {failure}")

    def _run_stage(self, cells: Sequence[Cell]) -> None:
        """Run the cells (planned runs) of a stage that are not measured yet.

        After a cell has failed, skip its other repeats.
        """
        if self._header.stored is not None and self._folder is not None:
            for cell in cells:
                known = self._folder.result_of(cell)
                if known is not None:
                    self._progress.add(cell, known)
        todo = [cell for cell in cells if not self._progress.has(cell)]
        self._listener.planned(todo)
        for cell in interleave(todo):
            if cell.key not in self._progress.failures:
                self._run_cell(cell)
                self._store(RUNNING)
        study_so_far = self._store(RUNNING)
        if study_so_far is not None:
            self._listener.stage_done(study_so_far)

    def _run_cell(self, cell: Cell) -> None:
        reason = self._study.refusal(cell)
        if reason:
            self._progress.failures[cell.key] = CellFailure(cell, reason, is_refused=True)
            return
        shown = cell.progress_entry
        self._listener.started(shown, cell.repeat)
        folder, resume = self._folder.open_run(cell) if self._folder is not None else (None, None)
        try:
            with self._processes(cell) as launcher:
                result = execute(
                    launcher,
                    cell.recipe if resume is None else without_ending_faults(cell.recipe),
                    cell.entry,
                    folder=folder,
                    on_event=lambda event: self._listener.event(shown, event),
                    resume=resume,
                )
        except PacelineError as error:
            if not self._can_continue_after(error):
                raise
            self._progress.failures[cell.key] = CellFailure(
                cell, str(error), is_divergence=isinstance(error, DivergedError)
            )
            how = "diverged" if isinstance(error, DivergedError) else "failed"
            self._listener.event(shown, {"kind": "warning", "text": f"{how}: {error}; continuing with the others"})
            return
        if result is None or self._folder is None:
            return
        self._folder.store_result(cell, result)
        self._progress.add(cell, result)
        self._listener.done(shown, cell.repeat, result)

    def _processes(self, cell: Cell) -> AbstractContextManager[WorkerPool]:
        if self._launcher is not None:
            return nullcontext(self._launcher)
        return self._launch(cell.entry.num_processes, cell.recipe.cluster)

    def _can_continue_after(self, error: PacelineError) -> bool:
        """Return whether the study can continue after this error.

        The study must allow that (`continues_after_failure`, `continues_after_divergence`). If all runs share one pool
        of worker processes, the error must also come from a worker, and the pool must be able to run another task.
        """
        has_diverged = isinstance(error, DivergedError)
        if not (self._study.continues_after_failure or (has_diverged and self._study.continues_after_divergence)):
            return False
        if self._launcher is None or (isinstance(error, DivergedError) and error.is_orderly):
            return True
        return isinstance(error, WorkerError | DivergedError) and self._launcher.can_go_on

    def _measure_overhead(self) -> None:
        """Measure the profiling overhead if the study reports it. If the measurement fails, add a caution to the study.

        Studies whose cells (planned runs) start their own processes do not measure the overhead.
        """
        probe = self._study.probe(self._progress)
        if probe is None or self._launcher is None:
            return
        try:
            self._progress.overhead = measure_overhead(
                self._launcher,
                probe.recipe,
                probe.entries,
                num_steps=probe.num_steps,
                out=self._folder.path if self._folder is not None else None,
            )
        except PacelineError as error:
            self._progress.cautions.append(f"profiling overhead could not be measured: {error}")

    def _store(self, status: str, error: str = "") -> StudyResult | None:
        if self._folder is None:
            return None
        result = self._header.result(self._progress, status, error)
        with deferred():
            self._folder.write(result)
        return result
