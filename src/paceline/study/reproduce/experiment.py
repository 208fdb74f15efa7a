"""What an experiment is: a recipe, how much of it runs, and what others published. Read from files of the package."""

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

Point = Changes  # `strategies` may name its own


@dataclass(frozen=True, kw_only=True)
class ExperimentRow:
    """One row of somebody else's table; `ours` is the strategy that does the same here."""

    name: str
    ours: str
    point: Point = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)  # numbers, lists of them by rank, or words


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """Somebody else's table: where it is from, and on what it was measured."""

    source: str
    setting: str
    rows: tuple[ExperimentRow, ...]


@dataclass(frozen=True, kw_only=True)
class Length:
    """How much of an experiment runs: the short form, or all of it."""

    is_whole: bool  # whether as many samples are seen as in the published experiment
    data: tuple[str, ...]  # the first of them that is there
    strategies: tuple[str, ...]
    repeats: int
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the recipe
    stand_in: Mapping[str, Any] = field(default_factory=dict)  # more changes where data is made up
    unset: tuple[str, ...] = ()  # keys of the recipe that take their defaults
    points: tuple[Point, ...] = ({},)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    name: str
    title: str
    recipe: str
    epoch_samples: int  # of the published experiment
    quantities: tuple[str, ...]  # what is compared; see figures.py
    short: Length
    full: Length
    published: tuple[PublishedTable, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    cluster: Mapping[str, Any] = field(default_factory=dict)  # emulated nodes, where they can be had
    cluster_note: str = ""  # what the nodes are for
    proof: tuple[str, ...] = ()  # strategies whose replicas are looked at after every synchronisation
    target_accuracy: float | None = None  # when training counts as converged
    shows_load: bool = False  # whether each worker's resources are part of the study
    quantizes: bool = False  # whether the model of the first run is taken to integers, each stage a row

    def length(self, *, full: bool) -> Length:
        return self.full if full else self.short


def experiment_names() -> dict[str, str]:
    """Every experiment with its title."""
    return {name: load_experiment(name).title for name in _files()}


def load_experiment(name: str) -> Experiment:
    """An experiment by name."""
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
