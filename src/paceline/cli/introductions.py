"""The lines that introduce a study before it starts."""

from __future__ import annotations

from rich.console import Console

from paceline.present.numbers import counted
from paceline.present.scaling_findings import batch_words, refused_words
from paceline.present.studies.tune import rung_words
from paceline.recipe import Recipe
from paceline.results.study import TuneResult
from paceline.study.compare import Compare
from paceline.study.entries import Entry
from paceline.study.memory_prediction import amount, footprint_key, predict
from paceline.study.preflight import ModelFacts
from paceline.study.reproduce import Reproduce
from paceline.study.scale import Scale
from paceline.study.sweep import Sweep
from paceline.study.tune import Tune


def introduce_run(console: Console, recipe: Recipe, entry: Entry, facts: ModelFacts, where: str) -> None:
    _say(
        console,
        f"{_what(recipe, facts)}, {processes_of(entry)}, global batch {recipe.batch_size}, {facts.total_steps} steps "
        f"under {entry.label}, comm {recipe.comm}{where}",
    )


def introduce_compare(console: Console, study: Compare, where: str) -> None:
    recipe, facts = study.recipe, study.facts
    _say(
        console,
        f"{_what(recipe, facts)}, global batch {recipe.batch_size}, {facts.total_steps} steps, {recipe.workers} "
        f"workers, comm {recipe.comm}{where}",
    )
    for entry in study.entries:
        if entry.num_servers:
            _say(console, f"{entry.label}: {processes_of(entry)}")


def introduce_scale(console: Console, study: Scale, where: str) -> None:
    numbers = ", ".join(map(str, (1, *study.workers)))
    times = "" if study.repeats == 1 else f", {study.repeats} times each"
    _say(
        console,
        f"{_what(study.recipe, study.facts)}, {numbers} workers{where}, comm {study.recipe.comm}; "
        f"{len(study.jobs)} runs{times}",
    )
    for mode in study.modes:
        _say(console, f"{mode}: {batch_words(study.constant_batches, mode)}")
    for one in study.refused:
        _say(console, refused_words(one), "yellow")


def introduce_sweep(console: Console, study: Sweep, where: str) -> None:
    """The grid, and how much memory its points are predicted to need."""
    recipe = study.recipe
    axes = ", ".join(f"{axis.key} ({len(axis.values)} values)" for axis in study.axes)
    _say(
        console,
        f"{recipe.name}: {recipe.model.name} on {recipe.data.name}, {recipe.workers} workers{where}, "
        f"{len(study.points)} points over {axes}, {len(study.points) * study.repeats} runs",
    )
    for reason in study.not_predicted:
        _say(console, reason, "yellow")
    needs = [
        predict(study.footprints[footprint_key(point.recipe)], point.recipe, point.entry).total_bytes
        for point in study.points
        if point.entry is not None and footprint_key(point.recipe) in study.footprints
    ]
    if needs:
        span = amount(max(needs)) if min(needs) == max(needs) else f"{amount(min(needs))} to {amount(max(needs))}"
        _say(console, f"predicted memory of all workers together: {span}")


def introduce_tune(console: Console, study: Tune, where: str) -> None:
    recipe, left_out = study.recipe, study.candidates.left_out
    _say(
        console,
        f"{_what(recipe, study.facts)}, global batch {recipe.batch_size}, {recipe.workers} workers, comm "
        f"{recipe.comm}{where}",
    )
    steps = ", ".join(f"{rung.steps} steps x {rung.repeats}" for rung in study.rungs)
    rule = f"within {study.margins.points:g} points of {study.candidates.reference.label} after equal samples"
    _say(console, f"{len(study.candidates.entries)} candidates, rungs of {steps}; {rule}")
    for reason in dict.fromkeys(left_out.values()):
        labels = ", ".join(label for label in left_out if left_out[label] == reason)
        _say(console, f"left out: {labels}: {reason}", "dim")


def introduce_reproduce(console: Console, study: Reproduce, where: str) -> None:
    del where  # in the notes
    _say(console, f"{study.plan.experiment.name}: {study.plan.experiment.title}")
    for note in study.plan.notes:
        _say(console, note, "yellow")


def rung_line(result: TuneResult) -> str:
    """The rung that was just completed, in one sentence."""
    return rung_words(result.rungs[-1]) if result.rungs else ""


def processes_of(entry: Entry) -> str:
    """Workers, and which ranks are servers."""
    workers = counted(entry.num_workers, "worker")
    if not entry.num_servers:
        return workers
    first, last = entry.num_workers, entry.num_processes - 1
    ranks = f"1 server (rank {first})" if first == last else f"{entry.num_servers} servers (ranks {first} to {last})"
    return f"{workers} and {ranks}"


def _what(recipe: Recipe, facts: ModelFacts) -> str:
    return (
        f"{recipe.name}: {recipe.model.name} ({facts.num_parameters:,} parameters) on {recipe.data.name} "
        f"({facts.num_train_samples:,} samples)"
    )


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False)
