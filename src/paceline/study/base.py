"""Base class of studies such as compare, scale and sweep, and the values that studies exchange with the engine.

A study plans its training runs. One planned run is called a cell: one recipe, one strategy and one seed. A study such
as tune, which chooses runs by earlier results, plans its runs in several stages. Each study is one class in a file or
folder of its own. The engine (`study/engine.py`) interleaves the repeats of all cells, stores the study after every
cell, resumes interrupted studies, and calls `Study.result` with everything measured so far.
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

# A function that starts worker processes. Its arguments are the number of processes and the emulated nodes.
Launch = Callable[[int, ClusterConfig], AbstractContextManager[WorkerPool]]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One planned run of a study: a recipe under one strategy. The repeats of a run are cells with equal keys."""

    key: str
    recipe: Recipe  # with the seed of this repeat
    entry: Entry
    folder_name: str  # name of the run's folder inside the study's folder
    progress_label: str = ""  # replaces the entry's label in progress messages, if set
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
    """A cell (planned run) that has no measurement: it was refused before it started, or it failed while running."""

    cell: Cell
    reason: str
    is_refused: bool = False
    is_divergence: bool = False


@dataclass
class Progress:
    """Everything that a study has measured so far. The engine fills it in, and `Study` methods read it."""

    results: dict[str, dict[int, RunResult]] = field(default_factory=dict)  # by the cell's key, then by repeat
    failures: dict[str, CellFailure] = field(default_factory=dict)  # by the cell's key
    overhead: tuple[str, Overhead] | None = None  # label of the measured strategy, and its profiling overhead
    cautions: list[str] = field(default_factory=list)

    def add(self, cell: Cell, result: RunResult) -> None:
        self.results.setdefault(cell.key, {})[cell.repeat] = result

    def has(self, cell: Cell) -> bool:
        return cell.repeat in self.results.get(cell.key, {})

    def results_of(self, key: str) -> list[RunResult]:
        """Return the results of all repeats of the cell (planned run) with this key, in order of repeats."""
        return [result for _, result in sorted(self.results.get(key, {}).items())]


@dataclass(frozen=True, kw_only=True)
class OverheadProbe:
    """Request to measure, in a short run at the end of a study, how much profiling slows training.

    The run trains under the strategy of `entries` that has the most communication operations per step.
    """

    recipe: Recipe
    entries: Sequence[Entry]
    num_steps: int  # training steps of all runs of the study together


class StudyListener:
    """Callbacks that report the progress of a study. All do nothing by default."""

    def planned(self, cells: Sequence[Cell]) -> None:
        """Receive the cells (planned runs) that run next, without those that are already measured."""

    def started(self, entry: Entry, repeat: int) -> None: ...

    def event(self, entry: Entry, event: Event) -> None: ...

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None: ...

    def stage_done(self, result: StudyResult) -> None:
        """Receive the study's result so far, after all cells (planned runs) of a stage have run."""


class Study(ABC):
    """Base class of studies. A subclass sets the class variables, and plans the study's cells (planned runs)."""

    name: ClassVar[str] = ""
    result_type: ClassVar[type[StudyResult]]
    # Whether every repeat has its own seed. Studies that judge accuracy need this, because accuracy depends on the
    # seed. In other studies all repeats have the same seed, so that their times differ only by noise of the machine.
    varies_seed: ClassVar[bool] = False
    # Whether the study continues after a cell failed. Other repeats of that cell wait until the study is resumed.
    continues_after_failure: ClassVar[bool] = False
    # Whether the study at least continues after a cell whose training diverged.
    continues_after_divergence: ClassVar[bool] = False
    # Whether every cell starts new processes, so that no run inherits the memory of another.
    has_own_processes: ClassVar[bool] = False
    # Names of the result's fields that hold the user's request. A new study resumes an unfinished one only if the
    # values of all these fields are equal in both.
    request_keys: ClassVar[tuple[str, ...]] = ("recipe", "repeats")
    repeat_mark: ClassVar[str] = "-"  # precedes the number of the repeat in a folder name

    recipe: Recipe
    repeats: int

    @property
    @abstractmethod
    def num_processes(self) -> int:
        """Number of processes (workers and servers) that the largest cell (planned run) needs."""

    @abstractmethod
    def cells(self) -> list[Cell]:
        """Return the cells (planned runs) of the first stage, including their repeats."""

    def next_cells(self, progress: Progress) -> list[Cell]:
        """Return the cells (planned runs) of the next stage, or an empty list if the study is complete."""
        del progress
        return []

    @abstractmethod
    def result(self, header: StudyResult, progress: Progress) -> StudyResult:
        """Return the study's result from everything measured so far, even if the study is not complete.

        `header` has the fields that all studies share. `make_result` adds the study's own fields to it.
        """

    @classmethod
    @abstractmethod
    def from_stored(cls, stored: StudyResult, *, num_hosts: int = 1) -> Study:
        """Recreate the study from its stored result, so that it can be resumed."""

    @property
    def title(self) -> str:
        """Title of the study, which becomes part of its folder's name."""
        return self.recipe.name

    @property
    def stored_recipe(self) -> Json:
        return self.recipe.to_dict()

    def refusal(self, cell: Cell) -> str:
        """Return why a cell (planned run) cannot run now, or an empty string if it can.

        The engine calls this just before the cell starts.
        """
        del cell
        return ""

    def probe(self, progress: Progress) -> OverheadProbe | None:
        """Return a request to measure the profiling overhead, or None if the study does not report the overhead."""
        del progress
        return None

    def begin(self, launcher: WorkerPool | None, stored: StudyResult | None) -> None:
        """Prepare the study before its first cell (planned run).

        `launcher` is None if every cell starts its own processes. `stored` is the result so far if the study is
        resumed, and otherwise None.
        """

    def end(self, folder: Path, progress: Progress) -> None:
        """Finish the study after its last cell (planned run), for example by writing more files to its folder."""

    def repeat_cells(self, cells: Sequence[Cell], repeats: int) -> list[Cell]:
        """Return `repeats` copies of every cell (planned run), each with the seed and folder name of its repeat."""
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
    """Create a study's result from the fields in `header` and the study's own `fields`, which take precedence."""
    return result_type(**{**header, **fields})


def rows_of_common_repeats(measured: Iterable[Sequence[RunResult]]) -> list[Row]:
    """Return one table row per planned run. `measured` has, for each planned run, the results of its repeats.

    A run without results gets no row. Rows are compared repeat by repeat, so all rows use the same number of repeats:
    if a run has more repeats than another, its last repeats are left out.
    """
    measured = [results for results in measured if results]
    common = min((len(results) for results in measured), default=0)
    return [combine(results[:common]) for results in measured]
