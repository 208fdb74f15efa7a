"""The scale study (`paceline scale`): run strategies with several numbers of workers, and compare them with one worker.

A point is one strategy with one number of workers in one mode. Strong scaling keeps the global batch size for all
numbers of workers, and weak scaling keeps the batch size per worker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import UsageError, unknown
from paceline.recipe import Recipe
from paceline.results import FAILED, Failure, Point, Row, StudyResult, changed
from paceline.results.study import ScaleResult
from paceline.strategies import StrategySpec
from paceline.study.base import Cell, OverheadProbe, Progress, Study, make_result
from paceline.study.entries import ONE_WORKER, Entry, check_not_repeated, make_entry
from paceline.study.preflight import ModelFacts, preflight
from paceline.study.run_results import combine
from paceline.study.scale_analysis import MODES, STRONG, WEAK, add_scaling, paying
from paceline.text import file_name_of

BOTH = "both"

Work = tuple[str, int, int]  # the strategy's label, number of workers, global batch size


@dataclass(frozen=True)
class ScalePoint:
    """One strategy with one number of workers in one mode: strong or weak scaling."""

    mode: str
    recipe: Recipe  # with the batch size that the mode sets for this number of workers
    entry: Entry

    @property
    def values(self) -> Point:
        return {"workers": self.entry.num_workers, "mode": self.mode}

    @property
    def work(self) -> Work:
        """Key of the measurement of this point. Points of different modes with equal keys share one measurement."""
        return self.entry.label, self.entry.num_workers, self.recipe.batch_size


@dataclass(frozen=True)
class Job:
    """One measurement of a scale study, and the points (in strong or weak scaling) that share the measurement."""

    points: tuple[ScalePoint, ...]

    @property
    def work(self) -> Work:
        return self.points[0].work

    @property
    def entry(self) -> Entry:
        return self.points[0].entry

    @property
    def cell(self) -> Cell:
        label, num_workers, batch_size = self.work
        return Cell(
            key=work_key(self.work),
            recipe=self.points[0].recipe,
            entry=self.entry,
            progress_label=self._progress_label,
            folder_name=f"{file_name_of(label)}-workers{num_workers}-batch{batch_size}",
        )

    @property
    def _progress_label(self) -> str:
        modes = " and ".join(point.mode for point in self.points)
        workers = "" if self.entry.label == ONE_WORKER else f" on {self.entry.num_workers}"
        return f"{self.entry.label}{workers}, {modes}"


def work_key(work: Work) -> str:
    """Return the text that identifies a measurement among the runs of the study."""
    label, num_workers, batch_size = work
    return f"{label} on {num_workers}, batch {batch_size}"


@dataclass(frozen=True, kw_only=True)
class Scale(Study):
    """Study of strategies with several numbers of workers, in strong scaling, weak scaling or both.

    `points` lists the combinations of strategy, number of workers and mode that run, and `refused` those that cannot.
    """

    name: ClassVar[str] = "scale"
    result_type: ClassVar[type[StudyResult]] = ScaleResult
    continues_after_failure: ClassVar[bool] = True
    request_keys: ClassVar[tuple[str, ...]] = ("recipe", "repeats", "workers", "modes")

    recipe: Recipe
    workers: tuple[int, ...]  # without 1, which is always measured
    modes: tuple[str, ...]
    points: tuple[ScalePoint, ...]
    refused: tuple[Failure, ...]
    facts: ModelFacts
    repeats: int = 1

    @classmethod
    def prepare(cls, recipe: Recipe, workers: Sequence[int], modes: Sequence[str], *, repeats: int = 1) -> Scale:
        """Check the request, and create the study. `recipe.workers` must be the largest of `workers`."""
        assert recipe.workers == max(workers), "the recipe has the largest number of workers"
        texts = [text for text in recipe.strategies if text != ONE_WORKER]
        if not texts:
            raise UsageError(f"recipe {recipe.name!r} has no strategies to scale; add --strategies")
        numbers = tuple(number for number in workers if number > 1)
        _check_nodes(recipe, numbers)
        refused: list[Failure] = []
        points_by_strategy = [_points_of_strategy(text, recipe, numbers, modes, refused) for text in texts]
        check_not_repeated([of_strategy[0].entry for of_strategy in points_by_strategy])
        references = [_point(make_entry(ONE_WORKER, recipe), recipe, mode) for mode in modes]
        points = (*references, *(point for of_strategy in points_by_strategy for point in of_strategy))
        # With the most workers, batches are largest and steps fewest. If these runs are valid, all runs are valid.
        facts = preflight(recipe, [of_strategy[-1].entry for of_strategy in points_by_strategy])
        return cls(
            recipe=recipe,
            workers=numbers,
            modes=tuple(modes),
            points=points,
            refused=tuple(refused),
            facts=facts,
            repeats=repeats,
        )

    @classmethod
    def from_stored(cls, stored: StudyResult, *, num_hosts: int = 1) -> Scale:
        del num_hosts  # only needed to choose a comm, which the stored recipe already names
        assert isinstance(stored, ScaleResult)
        recipe = Recipe.from_dict(stored.recipe)
        return cls.prepare(recipe, stored.workers, list(stored.modes), repeats=stored.repeats or 1)

    @property
    def jobs(self) -> list[Job]:
        """All measurements in the order in which they run, from few workers to many."""
        by_work: dict[Work, list[ScalePoint]] = {}
        for point in sorted(self.points, key=lambda point: point.entry.num_workers):
            by_work.setdefault(point.work, []).append(point)
        return [Job(tuple(points)) for points in by_work.values()]

    @property
    def points_in_table_order(self) -> list[ScalePoint]:
        """All points, sorted by mode, then by strategy, then by number of workers."""
        labels = list(dict.fromkeys(point.entry.label for point in self.points))

        def place(point: ScalePoint) -> tuple[int, int, int]:
            return self.modes.index(point.mode), labels.index(point.entry.label), point.entry.num_workers

        return sorted(self.points, key=place)

    @property
    def constant_batches(self) -> dict[str, dict[str, int]]:
        """Batch size that each mode keeps constant, such as `{"strong": {"batch_size": 256}}`.

        Strong scaling keeps the global batch size, and weak scaling the batch size per worker.
        """
        sizes = {STRONG: {"batch_size": self.recipe.batch_size}, WEAK: {"worker_batch_size": worker_batch(self.recipe)}}
        return {mode: sizes[mode] for mode in self.modes}

    @property
    def num_processes(self) -> int:
        return max(point.entry.num_processes for point in self.points)

    def cells(self) -> list[Cell]:
        return self.repeat_cells([job.cell for job in self.jobs], self.repeats)

    def probe(self, progress: Progress) -> OverheadProbe | None:
        """Request a measurement of the profiling overhead with the largest number of workers.

        Strategies that failed with that number of workers are left out. Return None if all strategies failed.
        """
        largest = [job for job in self.jobs if job.entry.num_workers == self.recipe.workers]
        entries = [job.entry for job in largest if job.cell.key not in progress.failures]
        if not entries:
            return None
        entries = list({entry.label: entry for entry in entries}.values())
        num_steps = self.facts.total_steps * len(self.jobs) * self.repeats
        return OverheadProbe(recipe=self.recipe, entries=entries, num_steps=num_steps)

    def result(self, header: StudyResult, progress: Progress) -> ScaleResult:
        rows = add_scaling(
            [
                self._row(point, progress)
                for point in self.points_in_table_order
                if progress.results_of(work_key(point.work))
            ]
        )
        if not rows and len(progress.failures) == len(self.jobs):
            header = changed(header, status=FAILED, error="every point failed")
        return make_result(
            ScaleResult,
            header,
            workers=[1, *self.workers],
            modes=self.constant_batches,
            num_points=len(self.points),
            refused=list(self.refused),
            failed=self._failed(progress),
            results=rows,
            paying=paying(rows),
        )

    def _row(self, point: ScalePoint, progress: Progress) -> Row:
        row = combine(progress.results_of(work_key(point.work)))
        probed = None if progress.overhead is None else (progress.overhead[0], self.recipe.workers, self.modes[0])
        overhead = (
            progress.overhead[1] if progress.overhead and probed == (row.label, row.workers, point.mode) else None
        )
        return changed(row, point=point.values, batch_size=point.recipe.batch_size, measuring=overhead)

    def _failed(self, progress: Progress) -> list[Failure]:
        points = {job.cell.key: job.points for job in self.jobs}
        return [
            Failure(label=point.entry.label, point=point.values, repeat=failure.cell.repeat + 1, error=failure.reason)
            for key, failure in progress.failures.items()
            for point in points[key]
        ]


def parse_workers(text: str) -> tuple[int, ...]:
    """Parse numbers of workers such as `1,2,3,4` or `1-4`. Return them sorted and without repetitions."""
    numbers: set[int] = set()
    for word in (word.strip() for word in text.split(",")):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise UsageError(f"--workers {text!r} is not a list of numbers of workers such as 1,2,3,4 or 1-4")
        if last - first > 1000:
            raise UsageError(
                f"--workers {text!r} names {last - first + 1} numbers of workers; list only those to measure"
            )
        numbers.update(range(first, last + 1))
    if numbers == {1}:
        raise UsageError("--workers 1 shows no scaling, because one worker is always measured; add larger numbers")
    return tuple(sorted(numbers))


def parse_mode(text: str) -> tuple[str, ...]:
    if text not in (*MODES, BOTH):
        raise unknown("--mode", text, (*MODES, BOTH))
    return MODES if text == BOTH else (text,)


def worker_batch(recipe: Recipe) -> int:
    """Return the batch size per worker in weak scaling.

    The recipe may set this batch size. Otherwise it is the global batch size divided by the largest number of workers.
    """
    return recipe.train.worker_batch_size or recipe.batch_size // recipe.workers


def _check_nodes(recipe: Recipe, numbers: Sequence[int]) -> None:
    nodes = recipe.cluster.nodes
    if nodes > 1 and numbers[-1] > nodes:
        raise UsageError(
            f"--workers {numbers[-1]} is more than the {nodes} nodes of the cluster, so workers would share nodes; "
            f"use up to {nodes} workers, or --cluster nodes={numbers[-1]}"
        )


def _points_of_strategy(
    text: str, recipe: Recipe, numbers: Sequence[int], modes: Sequence[str], refused: list[Failure]
) -> list[ScalePoint]:
    """Return the points of one strategy (numbers of workers and modes) that can run. Raise UsageError if none can.

    Points that cannot run are appended to `refused`, with the reasons.
    """
    spec = StrategySpec.parse(text, recipe.codec)
    spec.build()
    points: list[ScalePoint] = []
    reasons: list[str] = []
    for number in numbers:
        try:
            entry = make_entry(text, _strong_recipe(recipe, number))
            _check_servers(entry, recipe.cluster.nodes)
        except UsageError as error:
            reasons.append(str(error))
            refused += [
                Failure(label=str(spec), point={"workers": number, "mode": mode}, reason=str(error)) for mode in modes
            ]
            continue
        points += [_point(entry, recipe, mode) for mode in modes]
    if not points:
        numbers_text = ", ".join(map(str, numbers))
        raise UsageError(f"strategy {text!r} cannot run with {numbers_text} workers: {reasons[0]}")
    return points


def _check_servers(entry: Entry, nodes: int) -> None:
    if nodes > 1 and entry.num_processes > nodes:
        servers = "1 server" if entry.num_servers == 1 else f"{entry.num_servers} servers"
        needed = f"{entry.num_workers} workers and {servers} need {entry.num_processes} nodes"
        raise UsageError(
            f"{needed}, but the cluster has {nodes}; use fewer workers, or --cluster nodes={entry.num_processes}"
        )


def _point(entry: Entry, recipe: Recipe, mode: str) -> ScalePoint:
    number = entry.num_workers
    if mode == STRONG:
        return ScalePoint(mode, _strong_recipe(recipe, number), entry)
    changes = {"workers": number, "train.worker_batch_size": worker_batch(recipe)}
    return ScalePoint(mode, recipe.replace({**changes, "name": recipe.name, "description": recipe.description}), entry)


def _strong_recipe(recipe: Recipe, number: int) -> Recipe:
    changes = {"workers": number, "train.batch_size": recipe.batch_size}
    return recipe.replace({**changes, "name": recipe.name, "description": recipe.description})
