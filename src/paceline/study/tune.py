"""Finding bucket size, sync period, codec and strategy for one recipe, by successive halving with accuracy in it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.codecs import TensorSpec
from paceline.data import load_data
from paceline.errors import RunError, UsageError
from paceline.launch.base import WorkerPool
from paceline.measure.environment import environment
from paceline.models import build_model
from paceline.recipe import Recipe
from paceline.runs import SCHEMA, Folder, stamped, store_study
from paceline.study.advice import BEST_FILE, command_for, library_call
from paceline.study.candidates import Candidates, Space, make_candidates, sync_period
from paceline.study.entries import Entry
from paceline.study.halving import Guessing, Margins, Rung, best_of, judge_rung, plan_rungs, survivors
from paceline.study.preflight import Facts, preflight
from paceline.study.results import Result, add_comparisons, combine
from paceline.study.rounds import Failures, Follow, Measured, run_rounds


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before anything starts."""

    candidates: Candidates
    rungs: list[Rung]
    facts: Facts
    margins: Margins
    guessing: Guessing

    @property
    def num_processes(self) -> int:
        return max(entry.num_processes for entry in self.candidates.entries)


def prepare(recipe: Recipe, space: Space, *, margins: Margins, eta: int, repeats: int) -> Plan:
    """Find every mistake in a request before anything starts, and plan the rungs."""
    if recipe.workers < 2:
        raise UsageError("one worker agrees with nobody: tuning needs --workers 2 or more")
    if eta < 2:
        raise UsageError(f"--eta must be 2 or more, not {eta}: one in so many candidates goes on")
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
    guessing = Guessing(num_classes=data.num_classes, num_test_samples=facts.num_test_samples)
    return Plan(candidates, rungs, facts, margins, guessing)


def tune(
    recipe: Recipe,
    plan: Plan,
    launcher: WorkerPool,
    *,
    out: Path,
    follow: Follow,
    on_rung: Callable[[Mapping[str, Any]], None],
) -> tuple[dict[str, Any], Path]:
    """Climb the rungs; the study and its folder. What an interrupted or failed one has measured is kept, and said."""
    folder = Folder(out, stamped(f"tune-{recipe.name}"))
    study = _head(recipe, plan)
    climb = _Climb(recipe, plan, launcher, folder)
    started = time.perf_counter()
    try:
        for rung in plan.rungs:
            table = climb.rung(rung, follow)
            study["rungs"].append(table)
            on_rung(table)
        study["best"] = _best(recipe, study["rungs"][-1], folder)
    except BaseException as error:
        study["status"] = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        study["error"] = str(error)
        error.__notes__ = []  # the run inside moves with the study
        _, path = _store(folder, study, climb.measured, time.perf_counter() - started)
        error.add_note(f"what was measured until then is kept: {path}")
        raise
    return _store(folder, study, climb.measured, time.perf_counter() - started)


class _Climb:
    """Who is left, and what the rung that was run last has measured."""

    def __init__(self, recipe: Recipe, plan: Plan, launcher: WorkerPool, folder: Folder) -> None:
        self._recipe, self._plan, self._launcher, self._folder = recipe, plan, launcher, folder
        self._entries = list(plan.candidates.entries)
        self.measured: Measured = {}

    def rung(self, rung: Rung, follow: Follow) -> dict[str, Any]:
        """Run everybody who is left, judge them, and let go of those that are out."""
        is_last = rung.number == len(self._plan.rungs)
        failures: Failures = {}
        self.measured = {}
        with follow(self._entries, rung.repeats, rung.steps) as listener:
            run_rounds(
                rung_recipe(self._recipe, rung, is_last=is_last),
                self._entries,
                self._launcher,
                repeats=rung.repeats,
                listener=listener,
                measured=self.measured,
                # Only finalists are worth a folder each: early runs are many, and short.
                folder=self._folder.path / "runs" if is_last else None,
                failures=failures,
            )
        reference = self._plan.candidates.reference.label
        if reference in failures:
            raise RunError(f"{reference}, the exact strategy that all are held to, failed: {failures[reference]}")
        self.measured = {label: found for label, found in self.measured.items() if label not in failures}
        table = judge_rung(
            rung,
            self.measured,
            failures,
            reference=reference,
            margins=self._plan.margins,
            guessing=self._plan.guessing,
        )
        left = survivors(table)
        self._entries = [entry for entry in self._entries if entry.label in left]
        return table


def rung_recipe(recipe: Recipe, rung: Rung, *, is_last: bool) -> Recipe:
    """The recipe for so many steps; what is only looked at in the end is left out on the way."""
    quiet: dict[str, Any] = {"train.eval_every": 0, "train.checkpoint_every": 0, "train.log_every": 0}
    quiet |= {"measure.target_accuracy": None, "measure.profile": "", "train.iterations": rung.steps}
    if not is_last:
        quiet |= {"measure.spans": False, "measure.sample_hz": 0.0}
    return recipe.replace(quiet)


def _head(recipe: Recipe, plan: Plan) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": "study",
        "study": "tune",
        "name": recipe.name,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "status": "done",
        "recipe": recipe.replace({"strategies": _labels(plan.candidates.entries)}).to_dict(),
        "environment": environment(),
        "repeats": plan.rungs[-1].repeats,
        "reference": plan.candidates.reference.label,
        "margins": dataclasses.asdict(plan.margins),
        "left_out": plan.candidates.left_out,
        "rungs": [],
        "best": None,
    }


def _labels(entries: Sequence[Entry]) -> list[str]:
    return [entry.label for entry in entries]


def _best(recipe: Recipe, table: Mapping[str, Any], folder: Folder) -> dict[str, Any]:
    """The winner, and how to use it."""
    row = best_of(table)
    chosen = recipe.replace({"strategy": row["label"], "codec": "fp32", "strategies": []})
    folder.write_text(BEST_FILE, chosen.to_toml())
    keys = ("label", "strategy", "options", "codec", "guarantee", "iteration_s", "versus_reference")
    return {
        **{key: row[key] for key in keys},
        **{key: row[key] for key in ("versus_reference_interval95", "lost", "lost_interval95")},
        "judged_by": table["judged_by"],
        "margin": table["margin"],
        "command": command_for(chosen),
        "library": library_call(row["label"], recipe.comm),
    }


def _store(
    folder: Folder, study: dict[str, Any], measured: Mapping[str, list[Result]], wall_s: float
) -> tuple[dict[str, Any], Path]:
    """Results are those of the rung that was run last, of everybody who ran as often as the others."""
    rows = [values for values in measured.values() if values]
    common = min((len(values) for values in rows), default=0)
    results = [combine(values[:common]) for values in rows]
    judged = study["rungs"][-1]["rows"] if study["rungs"] else []
    within = {row["label"]: row.get("is_within", True) for row in judged}
    for result in results:
        result["is_within"] = within.get(result["label"], True)
    if results:
        add_comparisons(results)
    for result in results:
        result["measuring"] = None
    study = {**study, "wall_s": wall_s, "results": results}
    return study, store_study(folder, study)
