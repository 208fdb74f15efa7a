"""What a scaling study is going to measure: points, who is refused at which of them, and every mistake found first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.errors import UsageError, unknown
from paceline.recipe import Recipe
from paceline.strategies import StrategySpec
from paceline.study.entries import ONE_WORKER, Entry, make_entry
from paceline.study.preflight import Facts, preflight
from paceline.study.scaling import MODES, STRONG, WEAK
from paceline.text import file_name_of

BOTH = "both"

Work = tuple[str, int, int]  # label, workers, global batch


@dataclass(frozen=True)
class Point:
    """One strategy with so many workers in one mode."""

    mode: str
    recipe: Recipe  # as it runs: so many workers, and the batch that the mode gives them
    entry: Entry

    @property
    def values(self) -> dict[str, Any]:
        return {"workers": self.entry.num_workers, "mode": self.mode}

    @property
    def work(self) -> Work:
        """What is measured. Points of both modes with the same work are measured once."""
        return self.entry.label, self.entry.num_workers, self.recipe.batch_size


@dataclass(frozen=True)
class Job:
    """One piece of work, and the points that it is measured for."""

    points: tuple[Point, ...]

    @property
    def work(self) -> Work:
        return self.points[0].work

    @property
    def recipe(self) -> Recipe:
        return self.points[0].recipe

    @property
    def entry(self) -> Entry:
        return self.points[0].entry

    @property
    def shown(self) -> Entry:
        """The entry under a name that tells it from those with other workers."""
        modes = " and ".join(point.mode for point in self.points)
        number = self.entry.num_workers
        where = "" if self.entry.label == ONE_WORKER else f" on {number}"
        return replace(self.entry, label=f"{self.entry.label}{where}, {modes}")

    @property
    def folder_name(self) -> str:
        label, num_workers, batch_size = self.work
        return f"{file_name_of(label)}-workers{num_workers}-batch{batch_size}"


@dataclass(frozen=True)
class Plan:
    """All points of a study; `recipe` is that of the largest, `refused` those that cannot run, with the reason."""

    recipe: Recipe
    workers: tuple[int, ...]  # those beside the one worker
    modes: tuple[str, ...]
    points: tuple[Point, ...]
    refused: tuple[dict[str, Any], ...]
    facts: Facts

    @property
    def jobs(self) -> list[Job]:
        """In the order in which they run: few workers before many."""
        by_work: dict[Work, list[Point]] = {}
        for point in sorted(self.points, key=lambda point: point.entry.num_workers):
            by_work.setdefault(point.work, []).append(point)
        return [Job(tuple(points)) for points in by_work.values()]

    @property
    def ordered(self) -> list[Point]:
        """In the order in which they are shown: mode by mode, strategy by strategy."""
        labels = list(dict.fromkeys(point.entry.label for point in self.points))

        def place(point: Point) -> tuple[int, int, int]:
            return self.modes.index(point.mode), labels.index(point.entry.label), point.entry.num_workers

        return sorted(self.points, key=place)

    @property
    def kept(self) -> dict[str, dict[str, int]]:
        """What every mode keeps, as stored values."""
        found = {STRONG: {"batch_size": self.recipe.batch_size}, WEAK: {"worker_batch_size": worker_batch(self.recipe)}}
        return {mode: found[mode] for mode in self.modes}

    @property
    def num_processes(self) -> int:
        return max(point.entry.num_processes for point in self.points)


def parse_workers(text: str) -> tuple[int, ...]:
    """`1,2,3,4` or `1-4` as numbers, each once, from few to many."""
    numbers: set[int] = set()
    for word in (word.strip() for word in text.split(",")):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise UsageError(f"--workers {text!r} is not a list of numbers of workers such as 1,2,3,4 or 1-4")
        if last - first > 1000:
            raise UsageError(f"--workers {text!r} names {last - first + 1} numbers of workers; name those to measure")
        numbers.update(range(first, last + 1))
    if numbers == {1}:
        raise UsageError("--workers 1 alone shows no scaling: the one worker is always measured; name larger numbers")
    return tuple(sorted(numbers))


def parse_mode(text: str) -> tuple[str, ...]:
    if text not in (*MODES, BOTH):
        raise unknown("--mode", text, (*MODES, BOTH))
    return MODES if text == BOTH else (text,)


def worker_batch(recipe: Recipe) -> int:
    """The batch that every worker keeps in weak scaling: its own, or its part of the global one with most workers."""
    return recipe.train.worker_batch_size or recipe.batch_size // recipe.workers


def prepare(recipe: Recipe, workers: Sequence[int], modes: Sequence[str]) -> Plan:
    """Find every mistake in a request before anything starts; the recipe is the one of most workers."""
    assert recipe.workers == max(workers), "both modes meet at the largest number of workers"
    texts = [text for text in recipe.strategies if text != ONE_WORKER]
    if not texts:
        raise UsageError(f"recipe {recipe.name!r} names no strategies to scale; give some with --strategies")
    numbers = tuple(number for number in workers if number > 1)
    _check_nodes(recipe, numbers)
    refused: list[dict[str, Any]] = []
    lines = [_line(text, recipe, numbers, modes, refused) for text in texts]
    labels = [line[0].entry.label for line in lines]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise UsageError(f"strategy {twice!r} is named twice")
    references = [_point(make_entry(ONE_WORKER, recipe), recipe, mode) for mode in modes]
    points = (*references, *(point for line in lines for point in line))
    # Most workers have the largest batch and the fewest steps: what works there works with fewer.
    facts = preflight(recipe, [line[-1].entry for line in lines])
    return Plan(recipe, numbers, tuple(modes), points, tuple(refused), facts)


def _check_nodes(recipe: Recipe, numbers: Sequence[int]) -> None:
    nodes = recipe.cluster.nodes
    if nodes > 1 and numbers[-1] > nodes:
        raise UsageError(
            f"--workers {numbers[-1]} is more than the {nodes} nodes of the cluster: workers would share nodes, and "
            f"what a further node brings would not be seen; use up to {nodes}, or --cluster nodes={numbers[-1]}"
        )


def _line(
    text: str, recipe: Recipe, numbers: Sequence[int], modes: Sequence[str], refused: list[dict[str, Any]]
) -> list[Point]:
    """The points of one strategy. Where its words are wrong, or it can run nowhere, that is an error."""
    spec = StrategySpec.parse(text, recipe.codec)
    spec.build()
    found: list[Point] = []
    reasons: list[str] = []
    for number in numbers:
        try:
            entry = make_entry(text, _strong(recipe, number))
            _check_servers(entry, recipe.cluster.nodes)
        except UsageError as error:
            reasons.append(str(error))
            values = [{"workers": number, "mode": mode} for mode in modes]
            refused += [{"label": str(spec), "point": point, "reason": str(error)} for point in values]
            continue
        found += [_point(entry, recipe, mode) for mode in modes]
    if not found:
        listed = ", ".join(map(str, numbers))
        raise UsageError(f"strategy {text!r} can run on none of {listed} workers: {reasons[0]}")
    return found


def _check_servers(entry: Entry, nodes: int) -> None:
    if nodes > 1 and entry.num_processes > nodes:
        servers = "1 server" if entry.num_servers == 1 else f"{entry.num_servers} servers"
        needed = f"{entry.num_workers} workers and {servers} need {entry.num_processes} nodes"
        raise UsageError(f"{needed}, and the cluster has {nodes}")


def _point(entry: Entry, recipe: Recipe, mode: str) -> Point:
    number = entry.num_workers
    if mode == STRONG:
        return Point(mode, _strong(recipe, number), entry)
    changes = {"workers": number, "train.worker_batch_size": worker_batch(recipe)}
    return Point(mode, recipe.replace({**changes, "name": recipe.name, "description": recipe.description}), entry)


def _strong(recipe: Recipe, number: int) -> Recipe:
    changes = {"workers": number, "train.batch_size": recipe.batch_size}
    return recipe.replace({**changes, "name": recipe.name, "description": recipe.description})
