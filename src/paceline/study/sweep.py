"""One recipe with some keys varied: every point of the grid is a run; a sweep that was interrupted goes on."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.cluster.host import check_host, examine
from paceline.errors import PacelineError, UsageError
from paceline.launch.base import WorkerPool
from paceline.measure.environment import environment
from paceline.recipe import Recipe
from paceline.runs import SCHEMA, STUDY_FILE, Folder, finite, list_runs, stamped
from paceline.runs.store import disk_errors
from paceline.study.compare import Listener
from paceline.study.memory import Footprint, footprint_key, measure_footprints, predict, reason_against, rooms
from paceline.study.points import Point, make_points
from paceline.study.preflight import preflight
from paceline.study.remedies import Remedy, parse_remedies
from paceline.study.results import Result, add_comparisons, combine
from paceline.study.run import execute
from paceline.study.vary import Axis, is_same_work

RUNS = "runs"
Launch = Callable[[Point], AbstractContextManager[WorkerPool]]


@dataclass(frozen=True)
class Request:
    """All that a sweep is asked for: the same request again is the same sweep."""

    recipe: Recipe
    axes: Sequence[Axis]
    remedies: Sequence[Remedy] = ()
    repeats: int = 1
    num_hosts: int = 1  # real ones; what this machine's memory can hold says nothing of others'

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.to_dict(),
            "vary": [axis.to_dict() for axis in self.axes],
            "remedies": [remedy.name for remedy in self.remedies],
            "repeats": self.repeats,
        }

    @staticmethod
    def of(study: Mapping[str, Any], num_hosts: int = 1) -> Request:
        """The request that a stored sweep answers."""
        return Request(
            Recipe.from_dict(study["recipe"]),
            [Axis.from_dict(value) for value in study["vary"]],
            parse_remedies(study["remedies"]),
            study["repeats"],
            num_hosts,
        )


@dataclass
class Sweep:
    """Every point with what is known of it; looked up in its folder where some have been run before."""

    request: Request
    points: list[Point]
    footprints: Mapping[tuple[Any, ...], Footprint]
    environment: Mapping[str, Any]
    not_predicted: Sequence[str] = ()  # why the memory of some is not known, in sentences
    folder: Path = Path()
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S%z"))
    measured: dict[str, list[Result]] = field(default_factory=dict)
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.measured |= {point.label: [] for point in self.points}

    @property
    def num_finished(self) -> int:
        return sum(len(self.measured[point.label]) >= self.request.repeats for point in self.points)

    @property
    def num_runs_left(self) -> int:
        """Of points that are not known to be impossible."""
        able = [point for point in self.points if not point.reason]
        return sum(self.request.repeats - len(self.measured[point.label]) for point in able)


def prepare(request: Request) -> list[Point]:
    """Every point, with a reason where it cannot be run; mistakes are found before anything starts."""
    points = []
    host = functools.cache(examine)  # only if somebody asks for nodes
    for point in make_points(request.recipe, request.axes, request.remedies, num_hosts=request.num_hosts):
        if point.entry is not None:
            try:
                if point.recipe.cluster.nodes:
                    check_host(host(), point.recipe.cluster)
                preflight(point.recipe, [point.entry])
            except UsageError as error:
                point = Point(point.choice, point.remedy, point.recipe, None, str(error))
        points.append(point)
    if all(point.reason for point in points):
        raise UsageError(f"no point of the sweep can be run; the first, {points[0].label}: {points[0].reason}")
    return points


def open_sweep(request: Request, *, out: Path, resume: Mapping[str, Any] | None = None) -> Sweep:
    """A new sweep, in a folder that is there from now on; or a stored one, with what it has."""
    points = prepare(request)
    able = [point.recipe for point in points if point.entry is not None]
    is_known = request.recipe.device == "cpu" and request.num_hosts == 1
    footprints, reasons = measure_footprints(able) if is_known else ({}, [])
    sweep = Sweep(request, points, footprints, environment(), not_predicted=reasons)
    if resume is not None:
        sweep.folder, sweep.started = Path(resume["folder"]), resume["started"]
        runs = list_runs(sweep.folder / RUNS)
        for point in points:
            found = [_stored_result(runs, _run_name(point, repeat)) for repeat in range(request.repeats)]
            sweep.measured[point.label] = [result for result in found if result is not None]
        return sweep
    made = Folder(out, stamped(f"sweep-{request.recipe.name}"))
    made.write_text("recipe.toml", request.recipe.to_toml())
    made.make_inner(RUNS)
    sweep.folder = made.path
    store(sweep, "interrupted")  # until it is known better: it may be ended in any way
    sweep.folder = made.commit()
    return sweep


def unfinished(request: Request, out: Path) -> dict[str, Any] | None:
    """The newest stored sweep that answers the same request and did not come to its end."""
    wanted: dict[str, Any] = json.loads(json.dumps(finite(request.facts)))
    begun = [item for item in list_runs(out) if item.get("study") == "sweep" and item.get("status") != "done"]
    same = [item for item in begun if all(item.get(key) == value for key, value in wanted.items())]
    return dict(same[-1]) if same else None


def run_sweep(sweep: Sweep, launch: Launch, listener: Listener) -> dict[str, Any]:
    """Run every point that has not been run; the study. A point that fails is recorded, and the rest goes on.

    Every run has processes of its own, so that none inherits another's memory.
    """
    status = "interrupted"
    try:
        for repeat in range(sweep.request.repeats):
            # Every other round runs backwards, so that a machine that slows down does not slow the same ones.
            for point in sweep.points if repeat % 2 == 0 else reversed(sweep.points):
                if len(sweep.measured[point.label]) <= repeat and point.label not in sweep.failures:
                    _run_point(sweep, point, repeat, launch, listener)
                    store(sweep, "interrupted")
        failed = [failure for failure in sweep.failures.values() if failure["status"] == "failed"]
        status = "failed" if failed else "done"
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        error.__notes__ = [f"what was measured until then is kept; go on with --resume {sweep.folder}"]
        raise
    finally:
        study = store(sweep, status)
    return study


def _run_point(sweep: Sweep, point: Point, repeat: int, launch: Launch, listener: Listener) -> None:
    reason = point.reason or _too_large(sweep, point)
    if reason or point.entry is None:
        sweep.failures[point.label] = {**point.facts, "status": "refused", "reason": reason}
        return
    entry = point.entry
    listener.started(entry, repeat)
    folder = Folder(sweep.folder / RUNS, _run_name(point, repeat))
    try:
        with launch(point) as launcher:
            result = execute(
                launcher, point.recipe, entry, folder=folder, on_event=lambda event: listener.event(entry, event)
            )
    except PacelineError as error:
        sweep.failures[point.label] = {**point.facts, "status": "failed", "reason": str(error)}
        return
    assert result is not None, "a sweep's own process reports"
    result = json.loads(json.dumps(finite(result)))  # as it will be read when the sweep is resumed
    sweep.measured[point.label].append(result)
    listener.done(entry, repeat, result)


def _too_large(sweep: Sweep, point: Point) -> str:
    """Why a point does not fit into the memory that there is now; empty where it does, or nobody knows."""
    footprint = sweep.footprints.get(footprint_key(point.recipe))
    if footprint is None or point.entry is None:
        return ""
    return reason_against(footprint, point.recipe, point.entry, rooms(point.recipe, point.entry))


def store(sweep: Sweep, status: str) -> dict[str, Any]:
    """Write what is known so far, whole or not at all; the study."""
    study: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "study",
        "study": "sweep",
        "name": sweep.request.recipe.name,
        "started": sweep.started,
        "status": status,
        **sweep.request.facts,
        "environment": sweep.environment,
        "num_points": len(sweep.points),
        "results": _rows(sweep),
        "failures": list(sweep.failures.values()),
    }
    failed = [failure for failure in study["failures"] if failure["status"] == "failed"]
    if failed:
        study["error"] = f"{failed[0]['label']}: {failed[0]['reason']}"
    file = sweep.folder / STUDY_FILE
    beside = file.with_name(f".{STUDY_FILE}.part")
    with disk_errors(file):
        beside.write_text(json.dumps(finite(study), indent=1) + "\n", encoding="utf-8")
        beside.replace(file)
    return study


def _rows(sweep: Sweep) -> list[Result]:
    """The points that were measured, each with as many repeats as all of them have; compared where they can be."""
    done = [point for point in sweep.points if sweep.measured[point.label]]
    common = min((len(sweep.measured[point.label]) for point in done), default=0)
    rows = [{**combine(sweep.measured[point.label][:common]), **_beside(sweep, point)} for point in done]
    if rows and is_same_work([point.recipe for point in done]):
        add_comparisons(rows)
    return rows


def _beside(sweep: Sweep, point: Point) -> dict[str, Any]:
    """What a row says besides its figures: where it is in the grid, and its memory as predicted and as measured."""
    footprint = sweep.footprints.get(footprint_key(point.recipe))
    peaks = [
        worker["peak_rss_bytes"] or 0
        for result in sweep.measured[point.label]
        for worker in (result.get("resources") or {"per_worker": []})["per_worker"]
    ]
    predicted = predict(footprint, point.recipe, point.entry).to_dict() if footprint and point.entry else None
    return {
        **point.facts,
        "batch_size": point.recipe.batch_size,
        "memory": {"predicted": predicted, "peak_rss_bytes": max(peaks, default=None)},
    }


def _run_name(point: Point, repeat: int) -> str:
    return f"{point.folder_name}-repeat{repeat + 1}"


def _stored_result(runs: Sequence[Mapping[str, Any]], name: str) -> Result | None:
    """The result of a run that was made before and came to its end; one that failed may lie beside it."""
    for run in runs:
        found = Path(run["folder"]).name
        if (found == name or found.startswith(f"{name}-")) and run.get("status") == "done":
            return dict(run["result"])
    return None
