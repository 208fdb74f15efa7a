"""Running an experiment: its points one after the other, then ours beside what was published."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.launch.base import WorkerPool
from paceline.measure.environment import environment
from paceline.runs import SCHEMA, Folder, stamped, store_study
from paceline.study.entries import Entry
from paceline.study.reproduce.beside import columns, side_by_side
from paceline.study.reproduce.figures import Scope, our_figures
from paceline.study.reproduce.integers import integer_rows
from paceline.study.reproduce.load import load_of
from paceline.study.reproduce.plan import Part, Plan
from paceline.study.reproduce.proof import prove
from paceline.study.results import add_comparisons, combine
from paceline.study.rounds import Follow, Measured, file_name, run_rounds


def reproduce(
    plan: Plan, launcher: WorkerPool, *, out: Path, follow: Follow, repeats: int | None = None
) -> tuple[dict[str, Any], Path]:
    """Run every point; the study and its folder. What an interrupted or failed one has measured is kept, and said."""
    folder = Folder(out, stamped(f"reproduce-{plan.experiment.name}"))
    repeats = repeats or plan.length.repeats
    study = _head(plan, repeats)
    measured = [Measured() for _ in plan.parts]
    started = time.perf_counter()
    try:
        if plan.experiment.proof:
            study["proof"] = prove(plan.recipe, plan.experiment.proof, launcher)
        for part, found in zip(plan.parts, measured, strict=True):
            with follow(part.entries, repeats, part.total_steps) as listener:
                run_rounds(
                    part.recipe,
                    part.entries,
                    launcher,
                    repeats=repeats,
                    listener=listener,
                    measured=found,
                    folder=folder.path / "runs",
                    name=_prefix(part),
                )
        stages = integer_rows(plan, folder.path) if plan.experiment.quantizes else []
    except BaseException as error:
        study["status"] = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        study["error"] = str(error)
        error.__notes__ = []  # the run inside moves with the study
        _, path = _store(folder, study, plan, measured, time.perf_counter() - started)
        error.add_note(f"what was measured until then is kept: {path}")
        raise
    return _store(folder, study, plan, measured, time.perf_counter() - started, stages)


def _prefix(part: Part) -> str:
    """What tells the runs of one point from those of another."""
    words = [f"{key.rpartition('.')[2]}={value}" for key, value in part.point.items()]
    return file_name("-".join([*words, ""])) if words else ""


def _head(plan: Plan, repeats: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": "study",
        "study": "reproduce",
        "name": plan.experiment.name,
        "title": plan.experiment.title,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "status": "done",
        "recipe": plan.recipe.to_dict(),
        "environment": environment(),
        "repeats": repeats,
        "notes": plan.notes,
        "quantities": columns(plan.experiment),
        "proof": [],
    }


def results_of_parts(plan: Plan, measured: list[Measured]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Combined results, and our rows of the comparison, in the same order."""
    parts = {key_of(part, entry): (part, entry) for part in plan.parts for entry in part.entries}
    runs = {
        key_of(part, entry): found[entry.label]
        for part, found in zip(plan.parts, measured, strict=True)
        for entry in part.entries
        if found.get(entry.label)
    }
    sizes = {key: part.recipe.batch_size for key, (part, _) in parts.items()}
    scope = Scope(plan.experiment, runs, sizes, plan.compares_accuracy)
    results, rows = [], []
    for key, repeats in runs.items():
        part, entry = parts[key]
        result = {**combine(repeats), "measuring": None}
        results.append({**result, "point": part.point} if part.point else result)
        rows.append(
            {
                "key": key,
                "label": entry.label,
                "point": part.point,
                "is_first_point": part is plan.parts[0],
                "workers": entry.num_workers,
                "steps": repeats[0]["steps"],
                "figures": our_figures(key, repeats, scope),
                "load": load_of(repeats[0]) if plan.experiment.shows_load else [],
            }
        )
    if len(set(sizes.values())) == 1 and results:
        add_comparisons(results)  # of one batch size; else an iteration is another piece of work in every row
    return results, rows


def key_of(part: Part, entry: Entry) -> str:
    """A row's name within the study."""
    words = [f"{key.rpartition('.')[2]} {value}" for key, value in part.point.items()]
    return ", ".join([entry.label, *words])


def _store(
    folder: Folder,
    study: dict[str, Any],
    plan: Plan,
    measured: list[Measured],
    wall_s: float,
    stages: Sequence[dict[str, Any]] = (),
) -> tuple[dict[str, Any], Path]:
    # Repeats are compared in pairs: as many of each as all of a point have.
    for found in measured:
        common = min((len(values) for values in found.values()), default=0)
        for label in found:
            found[label] = found[label][:common]
    results, rows = results_of_parts(plan, measured)
    rows += stages
    study |= {"wall_s": wall_s, "results": results, "ours": rows}
    study["published"] = side_by_side(plan.experiment, rows)
    return study, store_study(folder, study)
