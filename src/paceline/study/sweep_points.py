"""Axes and points of a sweep: parse `KEY=V1,V2,...`, and build one recipe per combination of values and remedy."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import UsageError, unknown
from paceline.parsing import first_repeated, read_toml_value
from paceline.recipe import Changes, Recipe, key_type, recipe_keys
from paceline.results import Point
from paceline.results.study import AxisValues
from paceline.strategies import StrategySpec
from paceline.study.entries import Entry, make_entry, settle_comm
from paceline.study.remedies import NO_REMEDY, Remedy
from paceline.text import file_name_of

STRATEGY_OPTION = "strategy."
NOT_VARIED = {
    "name": "it only names a run",
    "description": "it only describes a run",
    "strategies": "a sweep runs one strategy per point; vary strategy, or use paceline compare",
}
# Iteration times of points that differ in one of these cannot be compared.
WORK = ("model.name", "data.name", "data.image_size")
NOTHING = "none"


@dataclass(frozen=True)
class SweepAxis:
    """One key and the values that it takes, in order."""

    key: str  # dotted, or strategy.OPTION
    values: tuple[Any, ...]

    def values_of(self) -> AxisValues:
        """Return the axis as stored in the result."""
        return AxisValues(key=self.key, values=[_plain(value) for value in self.values])

    @staticmethod
    def from_values(stored: AxisValues) -> SweepAxis:
        return SweepAxis(
            stored.key, tuple(tuple(value) if isinstance(value, list) else value for value in stored.values)
        )


def parse_vary(words: Sequence[str]) -> list[SweepAxis]:
    """Parse the values of --vary."""
    axes = [_axis(word) for word in words]
    keys = [axis.key for axis in axes]
    twice = first_repeated(keys)
    if twice:
        raise UsageError(f"--vary names {twice} twice; put all its values into one --vary")
    return axes


def make_axes(vary: Mapping[str, Sequence[Any]]) -> list[SweepAxis]:
    """Build axes from Python values."""
    return [
        SweepAxis(resolve_key(name), tuple(tuple(value) if isinstance(value, list) else value for value in values))
        for name, values in vary.items()
    ]


def _axis(word: str) -> SweepAxis:
    name, equals, text = word.partition("=")
    if not equals or not text:
        raise UsageError(f"--vary {word!r} is not KEY=V1,V2,...; an example: --vary batch-size=32,128,512")
    key = resolve_key(name)
    # Values that are lists contain commas, so semicolons separate them.
    pieces = [piece.strip() for piece in text.split(";" if _is_list(key) else ",")]
    values = tuple(_value(key, piece) for piece in pieces)
    twice = next((piece for piece, value in zip(pieces, values, strict=True) if values.count(value) > 1), None)
    if twice is not None:
        raise UsageError(f"--vary {name} has {twice!r} twice; remove one")
    return SweepAxis(key, values)


def resolve_key(name: str) -> str:
    """Return the recipe key for `train.batch_size`, for its option name `batch-size`, or for `strategy.OPTION`."""
    wanted = name.strip().removeprefix("--").replace("-", "_")
    if wanted.startswith(STRATEGY_OPTION):
        return wanted
    known = _names()
    if wanted not in known:
        raise unknown("key to vary", name, [*known, "strategy.OPTION"])
    key = known[wanted]
    if key in NOT_VARIED:
        raise UsageError(f"--vary {name}: {NOT_VARIED[key]}")
    return key


def _names() -> dict[str, str]:
    """Map every key and every option name to its key; keys take precedence over option names."""
    found = {}
    for key, field in recipe_keys():
        flag = field.metadata["flag"].partition("/")[0].removeprefix("--").replace("-", "_")
        if flag:
            found[flag] = key
    return found | {key: key for key, _ in recipe_keys()}


def _type(key: str) -> tuple[Any, bool]:
    """Return the type of a key's values, and whether the key may be unset."""
    hint = key_type(key)
    if isinstance(hint, types.UnionType):
        return next(part for part in hint.__args__ if part is not type(None)), True
    return hint, False


def _is_list(key: str) -> bool:
    return not key.startswith(STRATEGY_OPTION) and typing.get_origin(_type(key)[0]) is tuple


def _value(key: str, text: str) -> Any:
    """Parse a value; the recipe validates it later."""
    if not key.startswith(STRATEGY_OPTION):
        hint, may_be_unset = _type(key)
        if _is_list(key):
            return () if text in ("", NOTHING) else (text,)
        if text == NOTHING and may_be_unset:
            return None
        if hint is str:
            default = dict(recipe_keys())[key].default
            return "" if text == NOTHING and default == "" else text
    return read_toml_value(text, f"--vary {key}")


def varied(recipe: Recipe, choice: Mapping[str, Any]) -> Recipe:
    """Return the recipe with one value of every axis."""
    changes = {key: _plain(value) for key, value in choice.items() if not key.startswith(STRATEGY_OPTION)}
    options = {
        key.removeprefix(STRATEGY_OPTION): value_text(value) for key, value in choice.items() if key not in changes
    }
    if options:
        text = changes.get("strategy", recipe.strategy)
        spec = StrategySpec.parse(text, changes.get("codec", recipe.codec))
        kept = [(name, value) for name, value in spec.options if name not in options]
        spec = StrategySpec(spec.name, (*kept, *options.items()), spec.codec)
        changes |= {"strategy": str(spec), "codec": spec.codec}
    return recipe.replace(changes)


def label_of(choice: Mapping[str, Any]) -> str:
    """Format a choice, for example `batch_size 128, lr 0.1`."""
    return ", ".join(
        value_text(value) if key == "strategy" else f"{short_key(key, choice)} {value_text(value)}"
        for key, value in choice.items()
    )


def short_key(key: str, among: Mapping[str, Any]) -> str:
    """Return a key without its section, unless the name is ambiguous; `model.name` becomes `model`."""
    section, _, name = key.rpartition(".")
    if name == "name" and section:
        return section
    namesakes = [other for other in among if other.rpartition(".")[2] == name]
    return key if len(namesakes) > 1 else name


def value_text(value: Any) -> str:
    """Format a value as it is written on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return " plus ".join(str(item) for item in value) or NOTHING
    return NOTHING if value is None or value == "" else str(value)


def is_same_work(recipes: Sequence[Recipe]) -> bool:
    """Whether an iteration does the same work under every recipe, so that times can be compared."""
    return len({(*(_at(recipe, key) for key in WORK), recipe.batch_size) for recipe in recipes}) == 1


def _at(recipe: Recipe, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(recipe, section), name)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


BATCH_KEYS = {"train.batch_size", "train.worker_batch_size"}
LONGEST_NAME = 80  # characters of a folder's name


@dataclass(frozen=True)
class SweepPoint:
    """One recipe of a sweep. If it cannot run, `reason` is set and `entry` is None."""

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
        """A stable name, unique to this point."""
        name = file_name_of(self.label.replace(", ", ","))
        digest = hashlib.sha256(self.label.encode()).hexdigest()[:8]
        return f"{name[:LONGEST_NAME]}-{digest}"

    @property
    def values(self) -> Point:
        """The choice as stored in the result."""
        return {key: _plain(value) for key, value in self.choice.items()}


def make_points(
    recipe: Recipe, axes: Sequence[SweepAxis], remedies: Sequence[Remedy] = (), *, num_hosts: int = 1
) -> list[SweepPoint]:
    """Return every point of the grid; the last axis varies fastest.

    A value that is invalid at every point raises UsageError. A combination that is invalid only with some values of
    other keys is returned as a point with a reason.
    """
    if not axes:
        raise UsageError("a sweep needs a key to vary; add --vary KEY=V1,V2,..., such as --vary batch-size=32,128,512")
    if remedies and not BATCH_KEYS & {axis.key for axis in axes}:
        raise UsageError("remedies need a varied batch size; add --vary batch-size=... or --vary worker-batch-size=...")
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
