"""The sweep study (`paceline sweep`): vary some settings of a recipe, and run all combinations of their values.

A point is one combination of values, with at most one remedy. A remedy is a named set of recipe changes against the
loss of accuracy with large batches. The axes are the varied settings. See `study/sweep_axes.py`.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from paceline.cluster.support import check_host, examine
from paceline.errors import UsageError
from paceline.recipe import Changes, Recipe
from paceline.results import DONE, FAILED, Failure, MemoryUse, Point, Row, RunResult, StudyResult, changed
from paceline.results.study import SweepResult
from paceline.study.base import Cell, Progress, Study, make_result, rows_of_common_repeats
from paceline.study.entries import Entry, make_entry, settle_comm
from paceline.study.memory_prediction import (
    FootprintKey,
    footprint_key,
    measure_footprints,
    memory_limits,
    memory_refusal,
    predict,
)
from paceline.study.preflight import preflight
from paceline.study.run_results import compare_rows
from paceline.study.sweep_axes import (
    BATCH_KEYS,
    NO_REMEDY,
    Remedy,
    SweepAxis,
    apply_choice,
    choice_label,
    is_same_work,
    make_axes,
    parse_remedies,
    stored_value,
)
from paceline.text import file_name_of
from paceline.train.footprint import Footprint

LONGEST_NAME = 80  # characters of a folder's name


@dataclass(frozen=True)
class SweepPoint:
    """A combination of values of the varied keys, and its recipe.

    If the recipe cannot run, `reason` says why and `entry` is None.
    """

    choice: Changes
    remedy: str
    recipe: Recipe
    entry: Entry | None
    reason: str = ""

    @property
    def label(self) -> str:
        return ", ".join(part for part in (choice_label(self.choice), self.remedy) if part)

    @property
    def folder_name(self) -> str:
        """Folder name of this point's run. It is unique within the sweep, and the same whenever the sweep is run."""
        name = file_name_of(self.label.replace(", ", ","))
        digest = hashlib.sha256(self.label.encode()).hexdigest()[:8]
        return f"{name[:LONGEST_NAME]}-{digest}"

    @property
    def values(self) -> Point:
        """Value of every varied recipe key, in the form in which JSON stores it."""
        return {key: stored_value(value) for key, value in self.choice.items()}


@dataclass(frozen=True, kw_only=True)
class Sweep(Study):
    """Study that runs all combinations of the values of several recipe keys. Every run starts its own processes."""

    name: ClassVar[str] = "sweep"
    result_type: ClassVar[type[StudyResult]] = SweepResult
    continues_after_failure: ClassVar[bool] = True
    has_own_processes: ClassVar[bool] = True
    request_keys: ClassVar[tuple[str, ...]] = ("recipe", "repeats", "vary", "remedies")
    repeat_mark: ClassVar[str] = "-repeat"

    recipe: Recipe
    axes: tuple[SweepAxis, ...]
    remedies: tuple[Remedy, ...]
    points: tuple[SweepPoint, ...]
    footprints: Mapping[FootprintKey, Footprint]
    not_predicted: tuple[str, ...] = ()  # reasons why the memory of some points is not predicted
    repeats: int = 1

    @classmethod
    def prepare(
        cls,
        recipe: Recipe,
        axes: Sequence[SweepAxis],
        remedies: Sequence[Remedy] = (),
        *,
        repeats: int = 1,
        num_hosts: int = 1,
    ) -> Sweep:
        """Check every point (combination of values), and create the study.

        If the runs use only the CPUs of this host, also measure memory footprints, from which peak memory is predicted.
        """
        points = checked_points(recipe, axes, remedies, num_hosts=num_hosts)
        recipes = [point.recipe for point in points if point.entry is not None]
        # Only the main memory of this host is predicted, not the memory of GPUs or other hosts.
        is_on_this_host = recipe.device == "cpu" and num_hosts == 1
        footprints, reasons = measure_footprints(recipes) if is_on_this_host else ({}, [])
        return cls(
            recipe=recipe,
            axes=tuple(axes),
            remedies=tuple(remedies),
            points=tuple(points),
            footprints=footprints,
            not_predicted=tuple(reasons),
            repeats=repeats,
        )

    @classmethod
    def from_stored(cls, stored: StudyResult, *, num_hosts: int = 1) -> Sweep:
        assert isinstance(stored, SweepResult)
        return cls.prepare(
            Recipe.from_dict(stored.recipe),
            make_axes({axis.key: axis.values for axis in stored.vary}),
            parse_remedies(stored.remedies),
            repeats=stored.repeats or 1,
            num_hosts=num_hosts,
        )

    @property
    def num_processes(self) -> int:
        return max(point.entry.num_processes for point in self.points if point.entry is not None)

    def cells(self) -> list[Cell]:
        cells = [
            Cell(key=point.label, recipe=point.recipe, entry=point.entry, folder_name=point.folder_name)
            for point in self.points
            if point.entry is not None
        ]
        return self.repeat_cells(cells, self.repeats)

    def refusal(self, cell: Cell) -> str:
        """Return why a run does not fit into the memory that is available now.

        Return an empty string if the run fits, or if its memory cannot be predicted.
        """
        footprint = self.footprints.get(footprint_key(cell.recipe))
        if footprint is None:
            return ""
        return memory_refusal(footprint, cell.recipe, cell.entry, memory_limits(cell.recipe, cell.entry))

    def result(self, header: StudyResult, progress: Progress) -> SweepResult:
        failures = self._failures(progress)
        failed = next((failure for failure in failures if failure.status == FAILED), None)
        if failed is not None:
            status = FAILED if header.status == DONE else header.status
            header = changed(header, status=status, error=f"{failed.label}: {failed.reason}")
        return make_result(
            SweepResult,
            header,
            wall_s=None,
            vary=[axis.values_of() for axis in self.axes],
            remedies=[remedy.name for remedy in self.remedies],
            num_points=len(self.points),
            results=self._rows(progress),
            failures=failures,
        )

    def _rows(self, progress: Progress) -> list[Row]:
        """Return a row for every measured point (combination of values).

        The rows are compared with each other only if all points do the same work per step.
        """
        done = [point for point in self.points if progress.results_of(point.label)]
        rows = [
            changed(
                row,
                label=point.label,
                point=point.values,
                remedy=point.remedy,
                batch_size=point.recipe.batch_size,
                memory=self._memory(point, progress.results_of(point.label)),
            )
            for row, point in zip(
                rows_of_common_repeats(progress.results_of(point.label) for point in done), done, strict=True
            )
        ]
        return compare_rows(rows) if rows and is_same_work([point.recipe for point in done]) else rows

    def _memory(self, point: SweepPoint, results: Sequence[RunResult]) -> MemoryUse:
        footprint = self.footprints.get(footprint_key(point.recipe))
        peaks = [
            worker.peak_rss_bytes or 0
            for result in results
            if result.resources is not None
            for worker in result.resources.per_worker
        ]
        predicted = predict(footprint, point.recipe, point.entry).to_dict() if footprint and point.entry else None
        return MemoryUse(predicted=predicted, peak_rss_bytes=max(peaks, default=None))

    def _failures(self, progress: Progress) -> list[Failure]:
        """Return the points (combinations of values) that were refused, and those that failed while running.

        A point is refused if its recipe is not valid or if it does not fit into memory.
        """
        failures = []
        for point in self.points:
            failure = progress.failures.get(point.label)
            if point.reason or failure is not None:
                failures.append(
                    Failure(
                        label=point.label,
                        point=point.values,
                        remedy=point.remedy,
                        status="refused" if failure is None or failure.is_refused else FAILED,
                        reason=point.reason if failure is None else failure.reason,
                    )
                )
        return failures


def make_points(
    recipe: Recipe, axes: Sequence[SweepAxis], remedies: Sequence[Remedy] = (), *, num_hosts: int = 1
) -> list[SweepPoint]:
    """Return all points (combinations of values). The last axis (varied key) varies fastest.

    If a point is not valid, its `reason` says why. Raises UsageError if a value or a remedy has no valid point.
    """
    if not axes:
        raise UsageError("a sweep needs a key to vary; add --vary KEY=V1,V2,..., such as --vary batch-size=32,128,512")
    if remedies and not BATCH_KEYS & {axis.key for axis in axes}:
        raise UsageError("remedies need a varied batch size; add --vary batch-size=... or --vary worker-batch-size=...")
    choices = [
        dict(zip([axis.key for axis in axes], values, strict=True))
        for values in itertools.product(*(axis.values for axis in axes))
    ]
    points = [_make_point(recipe, choice, one, num_hosts) for choice in choices for one in (NO_REMEDY, *remedies)]
    for axis in axes:
        for value in axis.values:
            _raise_if_all_refused([point for point in points if point.choice[axis.key] == value])
    for remedy in remedies:
        _raise_if_all_refused([point for point in points if point.remedy == remedy.name])
    return points


def _raise_if_all_refused(points: Sequence[SweepPoint]) -> None:
    if all(point.reason for point in points):
        raise UsageError(f"{points[0].label}: {points[0].reason}")


def _make_point(recipe: Recipe, choice: Changes, remedy: Remedy, num_hosts: int) -> SweepPoint:
    point = SweepPoint(choice, remedy.name, recipe, None)
    try:
        point = replace(point, recipe=settle_comm(remedy.apply(apply_choice(recipe, choice)), num_hosts))
        entry = make_entry(point.recipe.strategy, point.recipe)
    except UsageError as error:
        return replace(point, reason=str(error))
    return replace(point, entry=replace(entry, label=point.label))


def checked_points(
    recipe: Recipe, axes: Sequence[SweepAxis], remedies: Sequence[Remedy], *, num_hosts: int = 1
) -> list[SweepPoint]:
    """Return all points (combinations of values). Raise UsageError if none can run.

    If a point cannot run, its `reason` says why.
    """
    points = []
    host = functools.cache(examine)  # called only if a point has emulated nodes
    for point in make_points(recipe, axes, remedies, num_hosts=num_hosts):
        if point.entry is not None:
            try:
                if point.recipe.cluster.nodes:
                    check_host(host(), point.recipe.cluster)
                preflight(point.recipe, [point.entry])
            except UsageError as error:
                point = replace(point, entry=None, reason=str(error))
        points.append(point)
    if all(point.reason for point in points):
        raise UsageError(
            f"no point of the sweep can run; the reason for the first, {points[0].label}: {points[0].reason}"
        )
    return points
