"""From folders to what one page shows: reads runs and studies and puts several of them side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.recipe import Recipe, recipe_keys
from paceline.report.labels import key_text, named, value_text
from paceline.report.numbers import counted, listed
from paceline.report.points import with_roles
from paceline.report.sweep import failures_in_words
from paceline.runs import list_runs, read
from paceline.study.results import add_comparisons, combine
from paceline.worker_files import worker_files, worker_lines

# What may differ between runs that are still one comparison: the subject itself, names, and where files lie.
SUBJECT = {"name", "description", "strategy", "strategies", "codec", "workers", "timeout_s", "data.dir"}
SUBJECT |= {"data.download", "train.log_every", "train.worker_batch_size"}
SUBJECT |= {"measure.profile", "measure.sample_hz"}
# What makes an iteration a different piece of work, so that its time says nothing about the strategy.
WORK = ("model.name", "data.name", "data.image_size", "train.batch_size")


@dataclass(frozen=True)
class Source:
    """One folder."""

    name: str
    kind: str
    started: str
    status: str
    error: str
    recipe: Recipe
    environment: Mapping[str, Any]
    asked_repeats: int
    results: list[dict[str, Any]]
    stored: Mapping[str, Any]  # all of its file

    @property
    def study(self) -> str:
        """Which kind of study it is; empty for a run."""
        return str(self.stored.get("study", "compare")) if self.kind == "study" else ""


@dataclass(frozen=True)
class Material:
    """What a page is made of; the first source speaks for all where they are the same."""

    sources: list[Source]
    results: list[dict[str, Any]]
    differing: dict[str, list[str]]  # recipe key: its values
    left_out: list[str]  # sentences

    @property
    def recipe(self) -> Recipe:
        return self.sources[0].recipe

    @property
    def environment(self) -> Mapping[str, Any]:
        return self.sources[0].environment


def collect(paths: Sequence[Path]) -> Material:
    """Read every folder; what never got to a result is left out, and said."""
    sources, left_out = [], []
    values = [value for path in paths for value in _values(path)]
    for value in values:
        name = Path(value["folder"]).name
        if value["kind"] == "unreadable":
            left_out.append(f"{name} is left out: {value['reason']}.")
            continue
        try:
            source = _source(value, name)
        except UsageError as error:
            if len(values) == 1:
                raise
            left_out.append(f"{name} is left out: {error}.")
            continue
        if source.study == "quantize" and len(values) > 1:
            left_out.append(f"{name} is left out: a quantization has a page of its own, with no steps to compare.")
        elif source.results or source.study == "quantize":
            sources.append(source)
        else:
            left_out.append(f"{name} is left out: it {_ending(source)} {_reached(value)}.")
    if not sources:
        reasons = f": {' '.join(left_out)}" if left_out else ""
        raise UsageError(f"there is nothing to report{reasons or '; name the folder of a run or of a study'}")
    differing = _differing([source.recipe for source in sources])
    return Material(sources, with_roles(_side_by_side(sources, differing)), differing, left_out)


def notices(material: Material) -> list[str]:
    """What a reader has to know before any figure."""
    found = list(material.left_out)
    for source in material.sources:
        if source.status != "done":
            num_asked = source.stored.get("num_points") or max(len(source.recipe.strategies), len(source.results))
            subject = f"This {source.kind}" if len(material.sources) == 1 else source.name
            found.append(
                f"{subject} {_ending(source)}. What was measured until then: {len(source.results)} of "
                f"{counted(num_asked, 'row')}, {source.results[0]['repeats']} of "
                f"{counted(source.asked_repeats, 'repeat')}."
            )
        found += failures_in_words(source.stored.get("failures", [])) if source.study == "sweep" else []
    if len(material.sources) > 1:
        found.append(
            f"Put together from {len(material.sources)} folders: they were not measured in turn, so a machine that "
            "was slower for a while may have slowed some and not others."
        )
    for key, values in material.differing.items():
        found.append(f"The recipes differ in {key}: {listed(values)}.")
    machines = {str(source.environment.get("processor")) for source in material.sources}
    if len(machines) > 1:
        found.append(f"They were measured on different machines: {listed(sorted(machines))}.")
    return found


def _values(path: Path) -> list[dict[str, Any]]:
    """A run, a study, or everything in a folder of them."""
    try:
        return [read(path)]
    except UsageError:
        values = list_runs(path)
        if not values:
            raise
        return values


def _source(value: Mapping[str, Any], name: str) -> Source:
    folder = Path(value["folder"])
    is_study = value["kind"] == "study"
    try:
        if is_study:
            recipe, environment = Recipe.from_dict(value["recipe"]), value["environment"]
        else:
            recipe = Recipe.from_toml((folder / "recipe.toml").read_text(encoding="utf-8"))
            environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
        found = value["results"] if is_study else [combine([value["result"]])] if "result" in value else []
        return Source(
            name=name,
            kind=value["kind"],
            started=value["started"],
            status=value["status"],
            error=value.get("error", ""),
            recipe=recipe,
            environment=environment,
            asked_repeats=value.get("repeats", 1),
            results=[dict(result) for result in found],
            stored=value,
        )
    except (OSError, KeyError, ValueError, RecursionError) as error:
        raise UsageError(f"{name!r} is damaged: {error}") from None


def _ending(source: Source) -> str:
    reason = f": {source.error.splitlines()[0].rstrip('.')}" if source.error else ""
    return "was interrupted" if source.status == "interrupted" else f"failed{reason}"


def _reached(value: Mapping[str, Any]) -> str:
    """How far the workers of a run without a result came, by their own files."""
    if value["kind"] == "study":
        return "before any of its runs was done"
    try:
        steps = [_last_step(file) for file in worker_files(Path(value["folder"])).values()]
    except UsageError as error:
        return f"before there was a result ({error})"
    last = [step for step in steps if step >= 0]
    if not last:
        return "before anything was measured"
    reached = f"step {last[0]}" if len(set(last)) == 1 else f"steps {min(last)} to {max(last)}"
    return f"before there was a result; its workers came to the end of {reached}, which `paceline trace` shows"


def _last_step(file: Path) -> int:
    return max((line["step"] for line in worker_lines(file) if line["kind"] == "step"), default=-1)


def _differing(recipes: Sequence[Recipe]) -> dict[str, list[str]]:
    """The keys in which recipes differ that should not, each with its values."""
    found = {}
    for key, _ in recipe_keys():
        if key not in SUBJECT:
            values = list(dict.fromkeys(value_text(recipe, key) for recipe in recipes))
            if len(values) > 1:
                found[key] = values
    return found


def _side_by_side(sources: Sequence[Source], differing: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All results as rows of one table; runs of the same thing become its repeats."""
    if len(sources) == 1:
        return named([(result, _point_notes(result)) for result in sources[0].results])
    groups: dict[tuple[str, ...], list[tuple[dict[str, Any], Source]]] = {}
    for number, source in enumerate(sources):
        for result in source.results:
            same = [value_text(source.recipe, key) for key in differing]
            alone = "" if source.kind == "run" else str(number)  # a study has counted its repeats itself
            point = json.dumps(result.get("point"))
            group_key = (result["label"], str(result["workers"]), alone, point, *same)
            groups.setdefault(group_key, []).append((result, source))
    rows = []
    for group in groups.values():
        first, source = group[0]
        row = combine([result for result, _ in group]) if len(group) > 1 else first
        notes = {key_text(key): value_text(source.recipe, key) for key in differing}
        rows.append((dict(row), {**notes, **_point_notes(row), "from": source.name}))
    results = named(rows)
    for result in results:
        for key in ("versus_fastest", "speedup", "efficiency"):
            result.pop(key, None)
    if not any(key in differing for key in WORK) and not any(result.get("point") for result in results):
        _compare(results)
    return results


def _point_notes(result: Mapping[str, Any]) -> dict[str, str]:
    """What tells a study's point from others, the number of workers apart, which a name has anyway."""
    return {key_text(key): str(value) for key, value in (result.get("point") or {}).items() if key != "workers"}


def _compare(results: list[dict[str, Any]]) -> None:
    """Compare rows with as many repeats as all of them have: repeats are compared in pairs."""
    common = min(len(result["iteration_mean_s_repeats"]) for result in results)
    shortened = [{**r, "iteration_mean_s_repeats": r["iteration_mean_s_repeats"][:common]} for r in results]
    add_comparisons(shortened)
    for result, compared in zip(results, shortened, strict=True):
        keys = ("versus_fastest", "versus_none", "speedup", "efficiency")
        result.update({key: compared[key] for key in keys if key in compared})
