"""Experiments from TOML files of the package: a recipe, its short and full form, and the published tables."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from paceline.errors import unknown
from paceline.recipe import Changes
from paceline.results.value import Json

Point = Changes  # may contain its own `strategies`


@dataclass(frozen=True, kw_only=True)
class ExperimentRow:
    """One row of a published table; `ours` is the corresponding strategy."""

    name: str
    ours: str
    point: Point = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)  # numbers, lists of numbers by rank, or text


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A published table with its source and experimental setting."""

    source: str
    setting: str
    rows: tuple[ExperimentRow, ...]


@dataclass(frozen=True, kw_only=True)
class Length:
    """The short or the full form of an experiment."""

    is_whole: bool  # whether training sees as many samples as the published experiment
    data: tuple[str, ...]  # data sets in order of preference; the first available one is used
    strategies: tuple[str, ...]
    repeats: int
    changes: Mapping[str, Any] = field(default_factory=dict)  # to the recipe
    stand_in: Mapping[str, Any] = field(default_factory=dict)  # further changes for synthetic data
    unset: tuple[str, ...] = ()  # recipe keys reset to their defaults
    points: tuple[Point, ...] = ({},)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    name: str
    title: str
    recipe: str
    epoch_samples: int  # of the published experiment
    quantities: tuple[str, ...]  # compared quantities; see figures.py
    short: Length
    full: Length
    published: tuple[PublishedTable, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    cluster: Mapping[str, Any] = field(default_factory=dict)  # emulated nodes, if this machine supports them
    cluster_note: str = ""  # purpose of the nodes
    proof: tuple[str, ...] = ()  # strategies whose replicas are compared after every synchronisation
    target_accuracy: float | None = None  # accuracy at which training counts as converged
    shows_load: bool = False  # whether to report each worker's resources
    quantizes: bool = False  # whether to quantize the model of the first run, with one row per stage

    def length(self, *, full: bool) -> Length:
        return self.full if full else self.short


def experiment_names() -> dict[str, str]:
    """Return the title of every experiment by name."""
    return {name: load_experiment(name).title for name in _files()}


def load_experiment(name: str) -> Experiment:
    """Load an experiment by name."""
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


def _published(values: Json) -> PublishedTable:
    rows = []
    for row in values.pop("rows"):
        named = {key: row.pop(key) for key in ("name", "ours", "point") if key in row}
        rows.append(ExperimentRow(**named, figures=row))
    return PublishedTable(**values, rows=tuple(rows))
