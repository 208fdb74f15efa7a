"""The points of a sweep: one choice from every axis, with and without remedies, each a recipe that can be run."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.errors import UsageError
from paceline.recipe import Changes, Recipe
from paceline.results import Point
from paceline.study.entries import Entry, make_entry, settle_comm
from paceline.study.remedies import NO_REMEDY, Remedy
from paceline.study.vary import Axis, label_of, varied
from paceline.text import file_name_of

BATCH_KEYS = {"train.batch_size", "train.worker_batch_size"}
LONGEST_NAME = 80  # characters of a folder's name


@dataclass(frozen=True)
class SweepPoint:
    """One recipe of a sweep. Where it cannot be run, `reason` says why and there is no entry."""

    choice: Changes
    remedy: str
    recipe: Recipe
    entry: Entry | None
    reason: str = ""

    @property
    def label(self) -> str:
        return ", ".join(part for part in (label_of(self.choice), self.remedy) if part)

    @property
    def folder_name(self) -> str:
        """The same for the same point, and no other's."""
        name = file_name_of(self.label.replace(", ", ","))
        digest = hashlib.sha256(self.label.encode()).hexdigest()[:8]
        return f"{name[:LONGEST_NAME]}-{digest}"

    @property
    def values(self) -> Point:
        """The choice as stored values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in self.choice.items()}


def make_points(
    recipe: Recipe, axes: Sequence[Axis], remedies: Sequence[Remedy] = (), *, num_hosts: int = 1
) -> list[SweepPoint]:
    """Every point of the grid, the last axis running fastest.

    A value that no point can be made of is a mistake in the request, and raised. What is impossible only together
    with some values of other keys is a point with a reason.
    """
    if not axes:
        raise UsageError("a sweep varies something: --vary KEY=V1,V2,..., such as --vary batch-size=32,128,512")
    if remedies and not BATCH_KEYS & {axis.key for axis in axes}:
        raise UsageError("remedies are for large batches: vary batch-size or worker-batch-size with them")
    choices = [
        dict(zip([axis.key for axis in axes], values, strict=True))
        for values in itertools.product(*(axis.values for axis in axes))
    ]
    points = [_point(recipe, choice, remedy, num_hosts) for choice in choices for remedy in (NO_REMEDY, *remedies)]
    for axis in axes:
        for value in axis.values:
            _raise_if_all_fail(points, lambda point, a=axis, v=value: point.choice[a.key] == v)  # type: ignore[misc]
    for remedy in remedies:
        _raise_if_all_fail(points, lambda point, r=remedy: point.remedy == r.name)  # type: ignore[misc]
    return points


def _raise_if_all_fail(points: Sequence[SweepPoint], has: Callable[[SweepPoint], bool]) -> None:
    found = [point for point in points if has(point)]
    if all(point.reason for point in found):
        raise UsageError(f"{found[0].label}: {found[0].reason}")


def _point(recipe: Recipe, choice: Changes, remedy: Remedy, num_hosts: int) -> SweepPoint:
    made = recipe
    try:
        made = settle_comm(remedy.apply(varied(recipe, choice)), num_hosts)
        entry = make_entry(made.strategy, made)
    except UsageError as error:
        return SweepPoint(choice, remedy.name, made, None, str(error))
    point = SweepPoint(choice, remedy.name, made, entry)
    return dataclasses.replace(point, entry=dataclasses.replace(entry, label=point.label))
