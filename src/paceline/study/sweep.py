"""The sweep study: one recipe with some keys varied, one run per point of the grid."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from paceline.cluster.support import check_host, examine
from paceline.errors import UsageError
from paceline.recipe import Recipe
from paceline.results import DONE, FAILED, Failure, MemoryUse, Row, RunResult, StudyResult, changed
from paceline.results.study import SweepResult
from paceline.study.base import Cell, CellFailure, Progress, Study, fair_rows, make_result
from paceline.study.memory_prediction import (
    FootprintKey,
    footprint_key,
    measure_footprints,
    predict,
    reason_against,
    rooms,
)
from paceline.study.preflight import preflight
from paceline.study.remedies import Remedy, parse_remedies
from paceline.study.run_results import compared
from paceline.study.sweep_points import SweepAxis, SweepPoint, is_same_work, make_points
from paceline.train.footprint import Footprint


@dataclass(frozen=True, kw_only=True)
class Sweep(Study):
    """Runs every point of a grid. Points that cannot run have a reason instead of an entry."""

    name: ClassVar[str] = "sweep"
    result_type: ClassVar[type[StudyResult]] = SweepResult
    goes_on: ClassVar[bool] = True
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
        """Validate the request, and predict the memory of every point on this machine."""
        points = checked_points(recipe, axes, remedies, num_hosts=num_hosts)
        able = [point.recipe for point in points if point.entry is not None]
        # The memory of this machine says nothing about GPUs or other hosts.
        is_known = recipe.device == "cpu" and num_hosts == 1
        footprints, reasons = measure_footprints(able) if is_known else ({}, [])
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
    def resumed(cls, stored: StudyResult, *, num_hosts: int = 1) -> Sweep:
        assert isinstance(stored, SweepResult)
        return cls.prepare(
            Recipe.from_dict(stored.recipe),
            [SweepAxis.from_values(axis) for axis in stored.vary],
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
        return self.repeated(cells, self.repeats)

    def refusal(self, cell: Cell) -> str:
        """Return why a point does not fit into the available memory; empty if it fits or has no prediction."""
        footprint = self.footprints.get(footprint_key(cell.recipe))
        if footprint is None:
            return ""
        return reason_against(footprint, cell.recipe, cell.entry, rooms(cell.recipe, cell.entry))

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
        """Rows of the measured points, compared with each other if a step does the same work at every point."""
        done = [point for point in self.points if progress.of(point.label)]
        rows = [
            changed(
                row,
                label=point.label,
                point=point.values,
                remedy=point.remedy,
                batch_size=point.recipe.batch_size,
                memory=self._memory(point, progress.of(point.label)),
            )
            for row, point in zip(fair_rows(progress.of(point.label) for point in done), done, strict=True)
        ]
        return compared(rows) if rows and is_same_work([point.recipe for point in done]) else rows

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
        return [
            Failure(
                label=point.label,
                point=point.values,
                remedy=point.remedy,
                status="refused" if failure is None or failure.is_refused else FAILED,
                reason=point.reason if failure is None else failure.reason,
            )
            for point, failure in self._not_measured(progress)
        ]

    def _not_measured(self, progress: Progress) -> list[tuple[SweepPoint, CellFailure | None]]:
        """Points refused in the plan (without a failure), and points that were refused or failed when they ran."""
        found = [(point, progress.failures.get(point.label)) for point in self.points]
        return [(point, failure) for point, failure in found if point.reason or failure is not None]


def checked_points(
    recipe: Recipe, axes: Sequence[SweepAxis], remedies: Sequence[Remedy], *, num_hosts: int = 1
) -> list[SweepPoint]:
    """Return every point, with a reason if it cannot run; raise UsageError if no point can run."""
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
        raise UsageError(f"no point of the sweep can be run; the first, {points[0].label}: {points[0].reason}")
    return points
