"""Plan of an experiment: the recipes to run, the data, emulated nodes or plain processes, and notes for the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.data.published import PUBLISHED, PublishedDataset, data_directory
from paceline.errors import UsageError
from paceline.recipe import Changes, Recipe, load_recipe
from paceline.study.entries import Entry, make_entries, settle_comm
from paceline.study.preflight import preflight, reason_against_cluster, without_cluster
from paceline.study.reproduce.experiment import Experiment, Length, Point

SYNTHETIC = "synthetic:"


@dataclass(frozen=True)
class Part:
    """One point of the experiment: a recipe and its strategies."""

    point: Point
    recipe: Recipe
    entries: list[Entry]
    total_steps: int


@dataclass(frozen=True)
class ExperimentPlan:
    experiment: Experiment
    length: Length
    parts: list[Part]
    compares_accuracy: bool
    notes: list[str]  # sentences that qualify all figures

    @property
    def recipe(self) -> Recipe:
        return self.parts[0].recipe

    @property
    def num_processes(self) -> int:
        return max(entry.num_processes for part in self.parts for entry in part.entries)


def prepare(
    experiment: Experiment, *, full: bool = False, data_dir: str = "", device: str = "cpu", on_cluster: bool = True
) -> ExperimentPlan:
    """Choose data and nodes by what is available, and validate the plan."""
    length = experiment.length(full=full)
    data, data_notes = _choose_data(length, data_dir)
    recipe = _base(experiment, length, data, data_dir, device)
    recipe, place_notes = _choose_place(experiment, recipe, on_cluster=on_cluster)
    points, device_notes = _possible(length.points, device)
    parts = _parts(recipe, length, points)
    is_real = not data.startswith(SYNTHETIC)
    short = [] if length.is_whole else [_subset_note(experiment, parts[0])]
    return ExperimentPlan(
        experiment,
        length,
        parts,
        compares_accuracy=is_real and length.is_whole,
        notes=[*short, *data_notes, *place_notes, *device_notes],
    )


def _base(experiment: Experiment, length: Length, data: str, data_dir: str, device: str) -> Recipe:
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
    """Return the first available data set, with a note if it is not the published one."""
    wanted = length.data[0]
    directory = data_directory(data_dir)
    for name in length.data:
        published = PUBLISHED.get(name)
        if published is None or _is_there(published, directory):
            break
    else:
        raise UsageError(f"none of {', '.join(length.data)} is in {directory}; set the data folder with --data-dir")
    if name == wanted:
        return name, []
    if name.startswith(SYNTHETIC):
        words = f"synthetic data of the same shape ({name}) is used for times, and accuracy is not compared"
    else:
        words = f"{name}, a part of it that comes with the package, is used instead"
    return name, [f"{wanted} is not in the data folder (--data-dir): {words}."]


def _is_there(published: PublishedDataset, directory: Path) -> bool:
    """Whether all files of a data set, or one of its archives, are in a directory."""
    whole = any((directory / archive).is_file() for archive in published.archive)
    return whole or len(published.find(directory)) == len(published.files)


def _choose_place(experiment: Experiment, recipe: Recipe, *, on_cluster: bool) -> tuple[Recipe, list[str]]:
    """Use emulated nodes if the experiment has them and this machine supports them, with a note."""
    if not experiment.cluster:
        return settle_comm(recipe), []
    wanted = recipe.replace({f"cluster.{key}": value for key, value in experiment.cluster.items()})
    note = f", {experiment.cluster_note}" if experiment.cluster_note else ""
    what = f"{wanted.cluster.nodes} emulated nodes ({wanted.cluster}){note}"
    reason = reason_against_cluster(wanted) if on_cluster else "--no-cluster was given"
    if not reason:
        return settle_comm(wanted), [f"Workers ran on {what}."]
    reason = reason.rstrip(".")
    return settle_comm(without_cluster(recipe)), [
        f"Workers ran as plain processes of this host, not on {what}: {reason}."
    ]


def _possible(points: tuple[Point, ...], device: str) -> tuple[list[Point], list[str]]:
    """Drop points with more workers than GPUs, since every worker needs a GPU of its own."""
    if device != "cuda":
        return list(points), []
    num_gpus = torch.cuda.device_count()
    found = [point for point in points if point.get("workers", 1) <= num_gpus]
    if not found:
        raise UsageError(f"every point of the experiment needs more than the {num_gpus} GPUs here; use --device cpu")
    left = len(points) - len(found)
    return found, [f"{left} points need more than the {num_gpus} GPUs here and were left out."] if left else []


def _parts(recipe: Recipe, length: Length, points: list[Point]) -> list[Part]:
    """Build the parts. Model and data are the same at every point, so one preflight covers all."""
    recipes = [_at(recipe, length, point) for point in points]
    entries = [make_entries(one.strategies, one) for one in recipes]
    largest = max(recipes, key=lambda one: one.batch_size)
    facts = preflight(largest, [entry for some in entries for entry in some])
    return [
        Part(_changes(point), one, some, one.num_steps(facts.num_train_samples))
        for point, one, some in zip(points, recipes, entries, strict=True)
    ]


def _at(recipe: Recipe, length: Length, point: Point) -> Recipe:
    return recipe.replace({**_changes(point), "strategies": list(point.get("strategies", length.strategies))})


def _changes(point: Point) -> Point:
    """Return the recipe changes of a point."""
    return {key: value for key, value in point.items() if key != "strategies"}


def _subset_note(experiment: Experiment, part: Part) -> str:
    per_epoch = -(-experiment.epoch_samples // part.recipe.batch_size)
    return (
        f"A subset: {part.total_steps} iterations of each row, where an epoch is {per_epoch} in the first; times of "
        "epochs are extrapolated from the mean iteration, and accuracy is not compared. --full runs all of it."
    )
