"""The contract of studies: a plan of cells, and a function from measured cells to a result.

A study is one file with one class. The engine (`study/engine.py`) runs it: it interleaves the cells, stores after every
one of them, goes on where an interrupted study was, and calls `result` with everything measured so far.
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
    shown: Entry | None = None  # the entry under the label that progress shows; the entry itself unless given
    repeat: int = 0
    keeps_run: bool = True  # whether the run gets a folder; else the study keeps only its result

    @property
    def seed(self) -> int:
        return self.recipe.seed

    @property
    def as_shown(self) -> Entry:
        return self.shown or self.entry


@dataclass(frozen=True)
class CellFailure:
    """A cell that could not be measured: refused before it started, or failed while it ran."""

    cell: Cell
    reason: str
    is_refused: bool = False


@dataclass
class Progress:
    """Everything measured so far. The engine owns it, studies read it."""

    results: dict[str, dict[int, RunResult]] = field(default_factory=dict)  # by key, by repeat
    failures: dict[str, CellFailure] = field(default_factory=dict)  # by key
    overhead: tuple[str, Overhead] | None = None  # the label that was probed, and the cost of measuring
    cautions: list[str] = field(default_factory=list)

    def add(self, cell: Cell, result: RunResult) -> None:
        self.results.setdefault(cell.key, {})[cell.repeat] = result

    def has(self, cell: Cell) -> bool:
        return cell.repeat in self.results.get(cell.key, {})

    def of(self, key: str) -> list[RunResult]:
        """The results of one key in the order of its repeats."""
        return [result for _, result in sorted(self.results.get(key, {}).items())]


@dataclass(frozen=True, kw_only=True)
class OverheadProbe:
    """A short run at the end that measures the cost of measuring."""

    recipe: Recipe
    entries: Sequence[Entry]
    num_steps: int  # of the whole study


class StudyListener:
    """Progress callbacks of a study; all of them do nothing by default."""

    def planned(self, cells: Sequence[Cell]) -> None:
        """These cells run next; cells that were measured before are not among them."""

    def started(self, entry: Entry, repeat: int) -> None: ...

    def event(self, entry: Entry, event: Event) -> None: ...

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None: ...

    def stage_done(self, result: StudyResult) -> None:
        """All cells that were planned together have run."""


class Study(ABC):
    """One kind of study. A subclass names itself, its result and its policies."""

    name: ClassVar[str] = ""
    result_type: ClassVar[type[StudyResult]]
    # Whether repeats have seeds of their own. Without it, repeats differ only by what disturbs the machine, which is
    # what an interval of times should show. With it they also show how much accuracy depends on the seed: studies
    # that judge accuracy set it.
    varies_seed: ClassVar[bool] = False
    # Whether the other cells go on after one failed. Its key is not tried again, except by a resumed study.
    goes_on: ClassVar[bool] = False
    # Whether every cell starts processes of its own, so that no run inherits the memory of another.
    has_own_processes: ClassVar[bool] = False
    # Fields of the result that say what was asked for: two studies that agree in them are the same study.
    request_keys: ClassVar[tuple[str, ...]] = ("recipe", "repeats")
    repeat_mark: ClassVar[str] = "-"  # before the number of a repeat in a folder's name

    recipe: Recipe
    repeats: int

    @property
    @abstractmethod
    def num_processes(self) -> int:
        """Processes that the largest cell needs."""

    @abstractmethod
    def cells(self) -> list[Cell]:
        """The cells of the first stage, made by `repeated`."""

    def next_cells(self, progress: Progress) -> list[Cell]:
        """The cells of the next stage, once all before have run; none where the study is complete."""
        del progress
        return []

    @abstractmethod
    def result(self, header: StudyResult, progress: Progress) -> StudyResult:
        """The result from everything measured so far, whether that is all or not; see `make_result`."""

    @classmethod
    @abstractmethod
    def resumed(cls, stored: StudyResult, *, num_hosts: int = 1) -> Study:
        """The study that a stored result belongs to."""

    @property
    def title(self) -> str:
        """Names the study's folder."""
        return self.recipe.name

    @property
    def stored_recipe(self) -> Json:
        return self.recipe.to_dict()

    def refusal(self, cell: Cell) -> str:
        """Why a cell cannot run now; empty where it can. Called just before it would start."""
        del cell
        return ""

    def probe(self, progress: Progress) -> OverheadProbe | None:
        """What to measure the cost of measuring with; None where the study does not show it."""
        del progress
        return None

    def begin(self, launcher: WorkerPool | None, stored: StudyResult | None) -> None:
        """Work before the first cell. `stored` is the result so far of a study that is resumed."""

    def end(self, folder: Path, progress: Progress) -> None:
        """Work after the last cell; the study's folder may get more files."""

    def repeated(self, cells: Sequence[Cell], repeats: int) -> list[Cell]:
        """Every cell so many times, with the seed and the folder name of each repeat."""
        return [self._at(cell, repeat) for repeat in range(repeats) for cell in cells]

    def _at(self, cell: Cell, repeat: int) -> Cell:
        recipe = cell.recipe
        if self.varies_seed and repeat:
            recipe = recipe.replace({"seed": recipe.seed + repeat})
        return replace(
            cell, repeat=repeat, recipe=recipe, folder_name=f"{cell.folder_name}{self.repeat_mark}{repeat + 1}"
        )


S = TypeVar("S", bound=StudyResult)


def make_result(kind: type[S], header: StudyResult, **fields: Any) -> S:
    """A study's result: the header, and the fields that the study adds or overrules."""
    return kind(**{**header, **fields})


def fair_rows(measured: Iterable[Sequence[RunResult]]) -> list[Row]:
    """One row for each that has results, of as many repeats as all of them have: rows are compared in pairs."""
    found = [results for results in measured if results]
    common = min((len(results) for results in found), default=0)
    return [combine(list(results[:common])) for results in found]
