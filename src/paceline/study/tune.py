"""The tune study (`paceline tune`): find the fastest candidate that loses little accuracy.

A candidate is a strategy with a bucket size, a synchronisation period and a codec.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paceline.codecs import TensorSpec
from paceline.data import load_data
from paceline.durable_files import write_durably
from paceline.errors import RunError, UsageError
from paceline.models import build_model
from paceline.recipe import Changes, Recipe
from paceline.results import Json, Row, StudyResult, changed
from paceline.results.study import Best, RungResult, TuneResult
from paceline.runs.store import disk_errors
from paceline.study.advice import BEST_FILE, command_for, library_call
from paceline.study.base import Cell, Progress, Study, make_result, rows_of_common_repeats
from paceline.study.candidates import Candidates, Space, make_candidates, sync_period
from paceline.study.entries import Entry
from paceline.study.halving import Guessing, Margins, Rung, best_candidate, judge_rung, plan_rungs, survivors
from paceline.study.preflight import ModelFacts, preflight
from paceline.study.run_results import compare_rows
from paceline.text import file_name_of


@dataclass(frozen=True, kw_only=True)
class Tune(Study):
    """Study that runs candidates in rungs (rounds of successive halving).

    Each rung runs fewer candidates for more steps than the one before.
    """

    name: ClassVar[str] = "tune"
    result_type: ClassVar[type[StudyResult]] = TuneResult
    varies_seed: ClassVar[bool] = True  # the accuracy loss of a candidate is judged over seeds
    continues_after_failure: ClassVar[bool] = True
    request_keys: ClassVar[tuple[str, ...]] = ("recipe", "repeats", "margins", "request")

    recipe: Recipe
    space: Space
    eta: int
    candidates: Candidates
    rungs: tuple[Rung, ...]
    facts: ModelFacts
    margins: Margins
    guessing: Guessing
    repeats: int  # in the last rung

    @classmethod
    def prepare(cls, recipe: Recipe, space: Space, *, margins: Margins, eta: int, repeats: int) -> Tune:
        """Check the request, choose the candidates, and plan the rungs (rounds of successive halving)."""
        if recipe.workers < 2:
            raise UsageError("tuning needs --workers 2 or more, because one worker does not synchronise")
        if eta < 2:
            raise UsageError(f"--eta must be 2 or more, not {eta}, because each rung keeps one in eta candidates")
        facts = preflight(recipe)
        data = load_data(recipe.data, seed=recipe.seed)
        model = build_model(recipe.model.name, data)
        tensors = [TensorSpec.of(parameter) for parameter in model.parameters() if parameter.requires_grad]
        candidates = make_candidates(space, recipe, tensors)
        rungs = plan_rungs(
            len(candidates.entries),
            total_steps=facts.total_steps,
            eta=eta,
            repeats=repeats,
            warmup=recipe.train.warmup_iterations,
            period=sync_period(candidates.entries),
        )
        return cls(
            recipe=recipe,
            space=space,
            eta=eta,
            candidates=candidates,
            rungs=tuple(rungs),
            facts=facts,
            margins=margins,
            guessing=Guessing(num_classes=data.num_classes, num_test_samples=facts.num_test_samples),
            repeats=repeats,
        )

    @classmethod
    def from_stored(cls, stored: StudyResult, *, num_hosts: int = 1) -> Tune:
        del num_hosts  # only needed to choose a comm, which the stored recipe already names
        assert isinstance(stored, TuneResult)
        if stored.request is None:
            raise UsageError(
                "an older version stored this study without its search space, so it cannot be resumed; start it again"
            )
        request = dict(stored.request)
        eta = int(request.pop("eta"))
        return cls.prepare(
            Recipe.from_dict(stored.recipe),
            Space(**{name: tuple(values) for name, values in request.items()}),
            margins=Margins(**stored.margins),
            eta=eta,
            repeats=stored.repeats or 1,
        )

    @property
    def num_processes(self) -> int:
        return max(entry.num_processes for entry in self.candidates.entries)

    @property
    def stored_recipe(self) -> Json:
        return self.recipe.replace({"strategies": [entry.label for entry in self.candidates.entries]}).to_dict()

    def cells(self) -> list[Cell]:
        return self._cells(self.rungs[0], self.candidates.entries)

    def next_cells(self, progress: Progress) -> list[Cell]:
        tables = self._rung_tables(progress)
        if len(tables) == len(self.rungs):
            return []
        rung, reference = self.rungs[len(tables)], self.candidates.reference.label
        failure = progress.failures.get(_cell_key(rung, reference))
        if failure is not None:
            raise RunError(
                f"the reference strategy {reference} failed, so nothing can be compared with it: {failure.reason}"
            )
        return self._cells(rung, self._remaining(tables))

    def result(self, header: StudyResult, progress: Progress) -> TuneResult:
        tables = self._rung_tables(progress)
        return make_result(
            TuneResult,
            header,
            repeats=self.rungs[-1].repeats,
            reference=self.candidates.reference.label,
            margins=dataclasses.asdict(self.margins),
            left_out=self.candidates.left_out,
            request={name: list(values) for name, values in dataclasses.asdict(self.space).items()} | {"eta": self.eta},
            rungs=tables,
            best=self._best(tables[-1]) if len(tables) == len(self.rungs) else None,
            results=self._rows(tables, progress),
        )

    def end(self, folder: Path, progress: Progress) -> None:
        """Write the recipe of the winner into the study's folder."""
        best = best_candidate(self._rung_tables(progress)[-1])
        with disk_errors(folder / BEST_FILE):
            write_durably(folder / BEST_FILE, self._recipe_of(best.label).to_toml().encode())

    def _cells(self, rung: Rung, entries: Sequence[Entry]) -> list[Cell]:
        is_last = rung is self.rungs[-1]
        recipe = rung_recipe(self.recipe, rung, is_last=is_last)
        cells = [
            Cell(
                key=_cell_key(rung, entry.label),
                recipe=recipe,
                entry=entry,
                folder_name=file_name_of(entry.label if is_last else f"rung{rung.number}-{entry.label}"),
                has_folder=is_last,  # the short runs of early rungs are too many for folders of their own
            )
            for entry in entries
        ]
        return self.repeat_cells(cells, rung.repeats)

    def _rung_tables(self, progress: Progress) -> list[RungResult]:
        """Return one table for every complete rung (round), with the outcomes of its candidates."""
        tables: list[RungResult] = []
        reference = self.candidates.reference.label
        for rung in self.rungs:
            labels = [entry.label for entry in self._remaining(tables)]
            failures = {label: progress.failures.get(_cell_key(rung, label)) for label in labels}
            failed = {label: failure.reason for label, failure in failures.items() if failure is not None}
            measured = {label: progress.results_of(_cell_key(rung, label)) for label in labels if label not in failed}
            if reference in failed or any(len(results) < rung.repeats for results in measured.values()):
                break
            tables.append(
                judge_rung(rung, measured, failed, reference=reference, margins=self.margins, guessing=self.guessing)
            )
        return tables

    def _remaining(self, tables: Sequence[RungResult]) -> list[Entry]:
        """Return the candidates that run in the next rung (round). `tables` are those of the complete rungs."""
        if not tables:
            return list(self.candidates.entries)
        passed = survivors(tables[-1])
        return [entry for entry in self.candidates.entries if entry.label in passed]

    def _rows(self, tables: Sequence[RungResult], progress: Progress) -> list[Row]:
        """Return a row for each measured candidate of the latest rung (round) in which any candidate was measured.

        The rows are compared with each other.
        """
        labels = [entry.label for entry in self.candidates.entries]
        keys_by_rung = [[_cell_key(rung, label) for label in labels] for rung in reversed(self.rungs)]
        keys = next((keys for keys in keys_by_rung if any(map(progress.results_of, keys))), [])
        judged = tables[-1].rows if tables else []
        within = {row.label: True if row.is_within is None else row.is_within for row in judged}
        rows = rows_of_common_repeats(progress.results_of(key) for key in keys if key not in progress.failures)
        return compare_rows([changed(row, is_within=within.get(row.label, True)) for row in rows])

    def _best(self, table: RungResult) -> Best:
        """Return the winner, the command that runs it, and the library call that uses it."""
        row = best_candidate(table)
        return Best(
            **{key: row[key] for key in ("label", "strategy", "options", "codec", "guarantee", "iteration_s")},
            **{key: row[key] for key in ("versus_reference", "versus_reference_interval95", "lost", "lost_interval95")},
            judged_by=table.judged_by,
            margin=table.margin,
            command=command_for(self._recipe_of(row.label)),
            library=library_call(row.label, self.recipe.comm),
        )

    def _recipe_of(self, label: str) -> Recipe:
        return self.recipe.replace({"strategy": label, "codec": "fp32", "strategies": []})


def rung_recipe(recipe: Recipe, rung: Rung, *, is_last: bool) -> Recipe:
    """Return the recipe for the runs of a rung (round), with the rung's number of steps.

    Models are evaluated only at the end. Rungs before the last do not profile steps or sample resources.
    """
    changes: Changes = {"train.eval_every": 0, "train.checkpoint_every": 0, "train.log_every": 0}
    changes |= {"measure.target_accuracy": None, "measure.profile": "", "train.iterations": rung.steps}
    if not is_last:
        changes |= {"measure.spans": False, "measure.sample_hz": 0.0}
    return recipe.replace(changes)


def _cell_key(rung: Rung, label: str) -> str:
    return f"rung {rung.number}: {label}"
