"""The study interface: a plan of cells, and a function from measured cells to a result.

A study is one file with one class. The engine (`study/engine.py`) interleaves its cells, stores the study after every
cell, resumes interrupted studies, and calls `result` with everything measured so far.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from paceline.launch.base import WorkerPool
from paceline.recipe import ClusterConfig, Recipe
from paceline.results import Json, Overhead, Row, RunResult, StudyResult
from paceline.study.entries import Entry
from paceline.study.run_results import combine
from paceline.train.context import Event

Launch = Callable[[int, ClusterConfig], AbstractContextManager[WorkerPool]]  # number of processes, emulated nodes


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a study: a recipe under one strategy. Repeats of the same work share a key."""

    key: str
    recipe: Recipe  # with the seed of this repeat
    entry: Entry
    folder_name: str  # of the run, inside the study's folder
    progress_label: str = ""  # label of the entry in progress messages; default: its own
    repeat: int = 0
    has_folder: bool = True  # whether the run is stored in a folder of its own; otherwise only its result is stored

    @property
    def seed(self) -> int:
        return self.recipe.seed

    @property
    def progress_entry(self) -> Entry:
        return replace(self.entry, label=self.progress_label or self.entry.label)


@dataclass(frozen=True)
class CellFailure:
    """A cell without a measurement: refused before it started, or failed while running."""

    cell: Cell
    reason: str
    is_refused: bool = False


@dataclass
class Progress:
    """Everything measured so far. Written by the engine, read by studies."""

    results: dict[str, dict[int, RunResult]] = field(default_factory=dict)  # by key, by repeat
    failures: dict[str, CellFailure] = field(default_factory=dict)  # by key
    overhead: tuple[str, Overhead] | None = None  # label of the probed strategy, and its profiling overhead
    cautions: list[str] = field(default_factory=list)

    def add(self, cell: Cell, result: RunResult) -> None:
        self.results.setdefault(cell.key, {})[cell.repeat] = result

    def has(self, cell: Cell) -> bool:
        return cell.repeat in self.results.get(cell.key, {})

    def results_of(self, key: str) -> list[RunResult]:
        """Return the results of one key, in order of repeats."""
        return [result for _, result in sorted(self.results.get(key, {}).items())]


@dataclass(frozen=True, kw_only=True)
class OverheadProbe:
    """Request for a short run at the end of a study that measures the profiling overhead."""

    recipe: Recipe
    entries: Sequence[Entry]
    num_steps: int  # of the whole study


class StudyListener:
    """Progress callbacks of a study; all do nothing by default."""

    def planned(self, cells: Sequence[Cell]) -> None:
        """Called with the cells that run next, without those already measured."""

    def started(self, entry: Entry, repeat: int) -> None: ...

    def event(self, entry: Entry, event: Event) -> None: ...

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None: ...

    def stage_done(self, result: StudyResult) -> None:
        """Called when all cells of a stage have run."""


class Study(ABC):
    """Base class of studies. A subclass sets its name, result type and policies."""

    name: ClassVar[str] = ""
    result_type: ClassVar[type[StudyResult]]
    # Whether every repeat has its own seed. Set by studies that judge accuracy, which depends on the seed. Otherwise
    # repeats differ only by noise of the machine, which is what a confidence interval of times should show.
    varies_seed: ClassVar[bool] = False
    # Whether the study continues after a cell failed. Its key is not tried again until the study is resumed.
    continues_after_failure: ClassVar[bool] = False
    # Whether every cell starts new processes, so that no run inherits the memory of another.
    has_own_processes: ClassVar[bool] = False
    # Fields of the result that hold the request: studies with equal values are the same study.
    request_keys: ClassVar[tuple[str, ...]] = ("recipe", "repeats")
    repeat_mark: ClassVar[str] = "-"  # separates the repeat number in a folder name

    recipe: Recipe
    repeats: int

    @property
    @abstractmethod
    def num_processes(self) -> int:
        """Number of processes that the largest cell needs."""

    @abstractmethod
    def cells(self) -> list[Cell]:
        """Return the cells of the first stage, repeated with `repeat_cells`."""

    def next_cells(self, progress: Progress) -> list[Cell]:
        """Return the cells of the next stage; none if the study is complete."""
        del progress
        return []

    @abstractmethod
    def result(self, header: StudyResult, progress: Progress) -> StudyResult:
        """Return the result of everything measured so far, complete or not; see `make_result`."""

    @classmethod
    @abstractmethod
    def from_stored(cls, stored: StudyResult, *, num_hosts: int = 1) -> Study:
        """Recreate the study that a stored result belongs to."""

    @property
    def title(self) -> str:
        """Name of the study, used in its folder name."""
        return self.recipe.name

    @property
    def stored_recipe(self) -> Json:
        return self.recipe.to_dict()

    def refusal(self, cell: Cell) -> str:
        """Return why a cell cannot run now, or an empty string. Called just before the cell starts."""
        del cell
        return ""

    def probe(self, progress: Progress) -> OverheadProbe | None:
        """Return the run that measures the profiling overhead; None if the study does not report it."""
        del progress
        return None

    def begin(self, launcher: WorkerPool | None, stored: StudyResult | None) -> None:
        """Do work before the first cell. `stored` is the result so far of a resumed study."""

    def end(self, folder: Path, progress: Progress) -> None:
        """Do work after the last cell, such as writing more files to the study's folder."""

    def repeat_cells(self, cells: Sequence[Cell], repeats: int) -> list[Cell]:
        """Repeat every cell, with the seed and the folder name of each repeat."""
        return [self._repeat_cell(cell, repeat) for repeat in range(repeats) for cell in cells]

    def _repeat_cell(self, cell: Cell, repeat: int) -> Cell:
        recipe = cell.recipe
        if self.varies_seed and repeat:
            recipe = recipe.replace({"seed": recipe.seed + repeat})
        return replace(
            cell, repeat=repeat, recipe=recipe, folder_name=f"{cell.folder_name}{self.repeat_mark}{repeat + 1}"
        )


S = TypeVar("S", bound=StudyResult)


def make_result(result_type: type[S], header: StudyResult, **fields: Any) -> S:
    """Return a study's result from the header and the fields that the study adds or replaces."""
    return result_type(**{**header, **fields})


def fair_rows(measured: Iterable[Sequence[RunResult]]) -> list[Row]:
    """Combine repeats to rows, using as many repeats as every row has, because rows are compared pairwise."""
    measured = [results for results in measured if results]
    common = min((len(results) for results in measured), default=0)
    return [combine(results[:common]) for results in measured]
