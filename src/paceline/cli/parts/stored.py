"""What was measured, as it is shown when it is new and whenever it is looked at again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.cli.parts.conditions import is_disturbed, show_conditions
from paceline.cli.parts.limits import limit_lines, target_lines, target_words
from paceline.cli.parts.quantized import show_quantized
from paceline.cli.parts.reproduced import show_reproduced
from paceline.cli.parts.scaling import show_scaling
from paceline.cli.parts.sweep_view import show_sweep
from paceline.cli.parts.tuned import show_tuning
from paceline.cli.parts.unfinished import show_unfinished
from paceline.cli.parts.view import (
    DASH,
    comparison_table,
    fitted,
    measuring_lines,
    milliseconds,
    percent,
    run_lines,
    straggler_lines,
    unjudged_lines,
    verdict_lines,
    worker_table,
)
from paceline.errors import UsageError
from paceline.recipe import Recipe
from paceline.runs import model_of, recipe_of, results_of, status_of, strategies_of
from paceline.study.quantize.words import last_integer
from paceline.study.results import fastest_of
from paceline.study.scaling import best_of


def show_run(console: Console, result: dict[str, Any]) -> None:
    """The workers of a run, and what is to be said beyond them."""
    console.print(worker_table(result, console.width))
    for line in straggler_lines(result):
        console.print(line, style="bold", markup=False)
    for line in unjudged_lines([result]):
        console.print(line, markup=False)
    target = [f"target          {target_words(result)}"] if result.get("target") else []
    for line in [*run_lines(result), *target]:
        console.print(line)


def show_study(console: Console, study: dict[str, Any]) -> None:
    """The strategies of a study, and what follows from them."""
    if study.get("study") == "tune":
        show_tuning(console, study, study["folder"])
        return
    if study.get("study") == "reproduce":
        show_reproduced(console, study)
        return
    if study.get("study") == "scale":
        show_scaling(console, study)
        return
    console.print(comparison_table(study, console.width))
    warmup = study["results"][0]["warmup_steps"]
    console.print(
        f"ms/step: mean over workers, first {warmup} dropped; test: accuracy; MB sent: by the worker that sent most."
    )
    if any(result.get("split") for result in study["results"]):
        console.print("overlap: communication hidden under compute; waiting: of a step, for a peer that came later.")
    for line in [*verdict_lines(study), *limit_lines(study), *target_lines(study), *measuring_lines(study)]:
        console.print(line)
    for result in study["results"]:
        for line in straggler_lines(result, result["label"]):
            console.print(line, markup=False)
    for line in unjudged_lines(study["results"]):
        console.print(line, markup=False)


def show_stored(console: Console, item: dict[str, Any]) -> None:
    """A stored run or study, again."""
    parts = [Path(item["folder"]).name, item["kind"], item.get("status", ""), item.get("started", "")]
    console.print(", ".join(part for part in parts if part), markup=False, soft_wrap=True)
    if words := _what_ran(recipe_of(item)):
        console.print(words, markup=False)
    if item.get("error"):
        console.print(item["error"], style="yellow", markup=False)
    if item.get("study") == "sweep":
        show_sweep(console, item)
    elif item.get("study") == "quantize":
        show_quantized(console, item)
    elif not results_of(item):
        show_unfinished(console, item)
    elif item["kind"] == "study":
        show_study(console, item)
    else:
        show_run(console, item["result"])
    show_conditions(console, recipe_of(item), results_of(item))


def _what_ran(recipe: Mapping[str, Any]) -> str:
    """Model, data, batch and place of a stored recipe, in words; empty where it has none that we know."""
    try:
        known = Recipe.from_dict(recipe)
    except UsageError:  # of a newer version, perhaps
        return ""
    where = f", on emulated nodes ({known.cluster})" if known.cluster.nodes else ""
    workers = "1 worker" if known.workers == 1 else f"{known.workers} workers"
    return f"{known.model.name} on {known.data.name}, global batch {known.batch_size}, {workers}{where}"


def stored_table(found: Sequence[Mapping[str, Any]], width: int) -> Table:
    """One row per run or study."""
    return fitted(
        [_stored_row(item) for item in found],
        width,
        dispensable=("workers", "kind", "model", "test"),
        text=("kind", "status", "model", "strategy"),
        name_share=1.0,  # a name that is broken over two lines cannot be copied
    )


def _stored_row(item: Mapping[str, Any]) -> dict[str, str]:
    if item.get("study") == "quantize":
        return _quantized_row(item)
    results = results_of(item)
    best = (best_of if item.get("study") == "scale" else fastest_of)(results) if results else None
    return {
        "folder": escape(Path(item["folder"]).name),
        "kind": escape(str(item["kind"])) if item["kind"] != "unreadable" else DASH,
        "status": escape(status_of(item)) + (", inject" if is_disturbed(recipe_of(item)) else ""),
        "model": escape(model_of(item)) or DASH,
        "strategy": escape(_strategy(item, best)) or DASH,
        "workers": str(best["workers"]) if best else DASH,
        "ms/step": milliseconds(best["iteration_s"]["mean"]) if best else DASH,
        "test": percent(best["final"]["test_accuracy"]) if best else DASH,
    }


def _quantized_row(item: Mapping[str, Any]) -> dict[str, str]:
    """Of a model in integers there is an accuracy, and no step."""
    row = last_integer(item) or item["stages"][-1]
    return {
        "folder": escape(Path(item["folder"]).name),
        "kind": escape(str(item["kind"])),
        "status": escape(status_of(item)),
        "model": escape(model_of(item)) or DASH,
        "strategy": escape(row["name"]),
        "workers": DASH,
        "ms/step": DASH,
        "test": percent(row["test_accuracy"]),
    }


def _strategy(item: Mapping[str, Any], best: Mapping[str, Any] | None) -> str:
    """A run's own, also of one that failed; of a study the fastest."""
    if item["kind"] != "study":
        return str(best["label"] if best else item.get("label") or "".join(strategies_of(item)[:1]))
    if best is None:
        return f"{len(strategies_of(item))} asked for"
    return f"fastest: {best['label']}"
