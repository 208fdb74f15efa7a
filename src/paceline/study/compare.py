"""The compare study (`paceline compare`): train one recipe under several strategies, and compare their times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import DivergedError, UsageError
from paceline.recipe import Recipe
from paceline.results import DIVERGED, Failure, StudyResult, changed
from paceline.results.study import CompareResult
from paceline.study.base import Cell, OverheadProbe, Progress, Study, make_result, rows_of_common_repeats
from paceline.study.entries import Entry, make_entries
from paceline.study.preflight import ModelFacts, preflight
from paceline.study.run_results import compare_rows
from paceline.text import file_name_of


@dataclass(frozen=True, kw_only=True)
class Compare(Study):
    """Study that runs every strategy of a recipe `repeats` times and compares them."""

    name: ClassVar[str] = "compare"
    result_type: ClassVar[type[StudyResult]] = CompareResult
    continues_after_divergence: ClassVar[bool] = True

    recipe: Recipe
    entries: tuple[Entry, ...]
    facts: ModelFacts
    repeats: int = 1

    @classmethod
    def prepare(cls, recipe: Recipe, *, repeats: int = 1) -> Compare:
        """Check the recipe and its strategies, and create the study. Raise UsageError if it cannot run."""
        if not recipe.strategies:
            raise UsageError(f"recipe {recipe.name!r} has no strategies to compare; add --strategies")
        entries = make_entries(recipe.strategies, recipe)
        facts = preflight(recipe, entries)
        return cls(recipe=recipe, entries=tuple(entries), facts=facts, repeats=repeats)

    @classmethod
    def from_stored(cls, stored: StudyResult, *, num_hosts: int = 1) -> Compare:
        del num_hosts  # only needed to choose a comm, which the stored recipe already names
        return cls.prepare(Recipe.from_dict(stored.recipe), repeats=stored.repeats or 1)

    @property
    def num_processes(self) -> int:
        return max(entry.num_processes for entry in self.entries)

    def cells(self) -> list[Cell]:
        cells = [
            Cell(key=entry.label, recipe=self.recipe, entry=entry, folder_name=file_name_of(entry.label))
            for entry in self.entries
        ]
        return self.repeat_cells(cells, self.repeats)

    def next_cells(self, progress: Progress) -> list[Cell]:
        """Return no more cells (planned runs). Raise DivergedError if training diverged under every strategy."""
        if len(progress.failures) == len(self.entries):
            label, failure = next(iter(progress.failures.items()))
            raise DivergedError(f"training diverged under every strategy; {label}: {failure.reason}")
        return []

    def probe(self, progress: Progress) -> OverheadProbe:
        entries = [entry for entry in self.entries if entry.label not in progress.failures]
        num_steps = self.facts.total_steps * len(entries) * self.repeats
        return OverheadProbe(recipe=self.recipe, entries=entries, num_steps=num_steps)

    def result(self, header: StudyResult, progress: Progress) -> CompareResult:
        labels = [entry.label for entry in self.entries if entry.label not in progress.failures]
        rows = compare_rows(rows_of_common_repeats(progress.results_of(label) for label in labels))
        failed = [
            Failure(label=label, status=DIVERGED, repeat=failure.cell.repeat + 1, error=failure.reason)
            for label, failure in progress.failures.items()
        ]
        if progress.overhead is not None:
            label, overhead = progress.overhead
            rows = [changed(row, measuring=overhead) if row.label == label else row for row in rows]
        return make_result(CompareResult, header, results=rows, failed=failed or None)
