"""Read published experiments from TOML files, and plan the runs that repeat them on this machine.

A point is one combination of settings that an experiment varies, such as the number of workers. If a point names no
strategies, the experiment's own strategies are used.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import torch

from paceline.data.published import PUBLISHED, PublishedDataset, data_directory
from paceline.errors import UsageError, unknown
from paceline.recipe import Changes, Recipe, load_recipe
from paceline.results.value import Json
from paceline.study.entries import Entry, make_entries, settle_comm
from paceline.study.preflight import preflight, reason_against_cluster, without_cluster

Point = Changes  # recipe keys and their values; `strategies` replaces the experiment's strategies at this point


@dataclass(frozen=True, kw_only=True)
class ExperimentRow:
    """One row of a published table. `ours` names the strategy or quantization stage that repeats it in Paceline."""

    name: str
    ours: str
    point: Point = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)  # published values: a number, numbers by rank, or text


@dataclass(frozen=True, kw_only=True)
class ExperimentTable:
    """A published table, its source, and a note on its conditions (hardware, number of workers, batch size)."""

    source: str
    setting: str
    rows: tuple[ExperimentRow, ...]


@dataclass(frozen=True, kw_only=True)
class Length:
    """The short or the full form of an experiment: data, strategies, repeats and changes to the recipe."""

    is_whole: bool  # whether training sees as many samples as the published experiment
    data: tuple[str, ...]  # data sets in order of preference; the first available one is used
    strategies: tuple[str, ...]
    repeats: int
    changes: Mapping[str, Any] = field(default_factory=dict)  # recipe keys and their values
    stand_in: Mapping[str, Any] = field(default_factory=dict)  # further recipe changes if data are synthetic
    unset: tuple[str, ...] = ()  # recipe keys that get their defaults back
    points: tuple[Point, ...] = ({},)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A published experiment as its TOML file describes it."""

    name: str
    title: str
    recipe: str
    epoch_samples: int  # training samples per epoch of the published experiment
    quantities: tuple[str, ...]  # keys of the compared quantities in QUANTITIES of figures.py
    short: Length
    full: Length
    published: tuple[ExperimentTable, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    cluster: Mapping[str, Any] = field(default_factory=dict)  # emulated nodes, used if this machine supports them
    cluster_note: str = ""  # what the emulated nodes are for
    proof: tuple[str, ...] = ()  # strategies that are checked for exactness
    target_accuracy: float | None = None  # accuracy at which training counts as converged
    shows_load: bool = False  # whether to report each worker's resources
    quantizes: bool = False  # whether to quantize the model of the first run, with one row per stage

    def length(self, *, full: bool) -> Length:
        return self.full if full else self.short


def experiment_names() -> dict[str, str]:
    """Return the title of every experiment, by the experiment's name."""
    return {name: load_experiment(name).title for name in _files()}


def load_experiment(name: str) -> Experiment:
    """Load the experiment with this name. Raise UsageError if there is none."""
    files = _files()
    if name not in files:
        raise unknown("experiment", name, files)
    values = tomllib.loads(files[name].read_text(encoding="utf-8"))
    values |= {key: _length(values[key]) for key in ("short", "full")}
    values["published"] = tuple(_published(table) for table in values["published"])
    for key in ("quantities", "proof"):
        values[key] = tuple(values.get(key, ()))
    return Experiment(**values)


def _files() -> dict[str, Traversable]:
    folder = resources.files("paceline.study.reproduce") / "experiments"
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda e: e.name)
    return {entry.name.removesuffix(".toml"): entry for entry in found}


def _length(values: Json) -> Length:
    for key in ("data", "strategies", "unset", "points"):
        if key in values:
            values[key] = tuple(values[key])
    return Length(**values)


def _published(values: Json) -> ExperimentTable:
    rows = []
    for row in values.pop("rows"):
        named = {key: row.pop(key) for key in ("name", "ours", "point") if key in row}
        rows.append(ExperimentRow(**named, figures=row))
    return ExperimentTable(**values, rows=tuple(rows))


SYNTHETIC = "synthetic:"


@dataclass(frozen=True)
class Part:
    """The runs of an experiment at one point (combination of settings): a recipe, and the strategies to run."""

    point: Point
    recipe: Recipe
    entries: list[Entry]
    total_steps: int


@dataclass(frozen=True)
class ExperimentPlan:
    """The runs that repeat an experiment on this machine."""

    experiment: Experiment
    length: Length
    parts: list[Part]
    compares_accuracy: bool
    notes: list[str]  # sentences about the data, nodes and number of steps, which the report shows with the results

    @property
    def recipe(self) -> Recipe:
        return self.parts[0].recipe

    @property
    def num_processes(self) -> int:
        return max(entry.num_processes for part in self.parts for entry in part.entries)


def plan_experiment(
    experiment: Experiment, *, full: bool = False, data_dir: str = "", device: str = "cpu", on_cluster: bool = True
) -> ExperimentPlan:
    """Choose data and emulated nodes that this machine has, and plan and check the runs of an experiment."""
    length = experiment.length(full=full)
    data, data_notes = _choose_data(length, data_dir)
    recipe = _base_recipe(experiment, length, data, data_dir, device)
    recipe, node_notes = _choose_nodes(experiment, recipe, on_cluster=on_cluster)
    points, device_notes = _points_with_gpus(length.points, device)
    parts = _parts(recipe, length, points)
    is_real = not data.startswith(SYNTHETIC)
    short = [] if length.is_whole else [_subset_note(experiment, parts[0])]
    return ExperimentPlan(
        experiment,
        length,
        parts,
        compares_accuracy=is_real and length.is_whole,
        notes=[*short, *data_notes, *node_notes, *device_notes],
    )


def _base_recipe(experiment: Experiment, length: Length, data: str, data_dir: str, device: str) -> Recipe:
    recipe = load_recipe(experiment.recipe)
    if data != recipe.data.name:
        recipe = recipe.replace({"data.name": data})
    recipe = recipe.replace(dict.fromkeys(length.unset))
    changes: Changes = {**experiment.changes, **length.changes, "device": device, "data.download": False}
    if data_dir:
        changes["data.dir"] = data_dir
    if data.startswith(SYNTHETIC):
        changes |= length.stand_in
    recipe = recipe.replace({**changes, "strategies": list(length.strategies)})
    return recipe.replace({"name": experiment.name, "description": experiment.title})


def _choose_data(length: Length, data_dir: str) -> tuple[str, list[str]]:
    """Return the name of the first data set that is available here, and a note if it is not the published one.

    Raise UsageError if none of the experiment's data sets is available.
    """
    published_name = length.data[0]
    directory = data_directory(data_dir)
    for name in length.data:
        published = PUBLISHED.get(name)
        if published is None or _is_downloaded(published, directory):
            break
    else:
        raise UsageError(f"none of {', '.join(length.data)} is in {directory}; set the data folder with --data-dir")
    if name == published_name:
        return name, []
    if name.startswith(SYNTHETIC):
        words = f"synthetic data of the same shape ({name}) is used to measure times; accuracy is not compared"
    else:
        words = f"its subset {name}, included in the package, is used instead"
    return name, [f"{published_name} is not in the data folder (--data-dir): {words}."]


def _is_downloaded(published: PublishedDataset, directory: Path) -> bool:
    """Return whether a directory has all files of a data set, or one of its archives."""
    whole = any((directory / archive).is_file() for archive in published.archive)
    return whole or len(published.find(directory)) == len(published.files)


def _choose_nodes(experiment: Experiment, recipe: Recipe, *, on_cluster: bool) -> tuple[Recipe, list[str]]:
    """Return the recipe with or without the emulated nodes of the experiment, and a note about the choice.

    Nodes are emulated if `on_cluster` is set and this machine supports them. The list of notes is empty if the
    experiment has no emulated nodes.
    """
    if not experiment.cluster:
        return settle_comm(recipe), []
    emulated = recipe.replace({f"cluster.{key}": value for key, value in experiment.cluster.items()})
    note = f", {experiment.cluster_note}" if experiment.cluster_note else ""
    nodes = f"{emulated.cluster.nodes} emulated nodes ({emulated.cluster}){note}"
    reason = reason_against_cluster(emulated) if on_cluster else "--no-cluster was given"
    if not reason:
        return settle_comm(emulated), [f"Workers ran on {nodes}."]
    note = f"Workers ran as plain processes of this host, not on {nodes}: {reason.rstrip('.')}."
    return settle_comm(without_cluster(recipe)), [note]


def _points_with_gpus(points: tuple[Point, ...], device: str) -> tuple[list[Point], list[str]]:
    """Leave out points with more workers than this machine has GPUs. Return the others, and a note if any is left out.

    If `device` is not `cuda`, return all points. Raise UsageError if every point would be left out.
    """
    if device != "cuda":
        return list(points), []
    num_gpus = torch.cuda.device_count()
    found = [point for point in points if point.get("workers", 1) <= num_gpus]
    if not found:
        raise UsageError(f"every point of the experiment needs more than the {num_gpus} GPUs here; use --device cpu")
    left = len(points) - len(found)
    return found, [f"{left} points need more than the {num_gpus} GPUs here and were left out."] if left else []


def _parts(recipe: Recipe, length: Length, points: list[Point]) -> list[Part]:
    """Plan the runs of every point (combination of settings).

    Model and data are the same at every point, so one preflight check is enough for all points.
    """
    recipes = [recipe.replace({"strategies": list(length.strategies), **point}) for point in points]
    entries = [make_entries(one.strategies, one) for one in recipes]
    largest = max(recipes, key=lambda one: one.batch_size)
    facts = preflight(largest, [entry for some in entries for entry in some])
    changes = [{key: value for key, value in point.items() if key != "strategies"} for point in points]
    return [
        Part(point, one, some, one.num_steps(facts.num_train_samples))
        for point, one, some in zip(changes, recipes, entries, strict=True)
    ]


def _subset_note(experiment: Experiment, part: Part) -> str:
    steps_per_epoch = -(-experiment.epoch_samples // part.recipe.batch_size)
    return (
        f"Only a subset was run: {part.total_steps} steps per row (an epoch of the first row has {steps_per_epoch}"
        "). Epoch times are extrapolated from the mean step time; accuracy is not compared. --full runs the whole "
        "experiment."
    )
