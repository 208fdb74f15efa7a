"""Axes and remedies of `paceline sweep`: parse `--vary KEY=V1,V2,...` and `--remedy`, and apply them to a recipe.

An axis is a recipe key with the values that the sweep gives it. A remedy is a named set of recipe changes against the
loss of accuracy with large batches.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from paceline.errors import UsageError, unknown
from paceline.parsing import first_repeated, read_toml_value
from paceline.plugins import split_words
from paceline.recipe import Changes, Recipe, key_type, recipe_keys
from paceline.results.study import AxisValues
from paceline.strategies import StrategySpec

STRATEGY_OPTION = "strategy."
NOT_VARIED = {
    "name": "it only names a run",
    "description": "it only describes a run",
    "strategies": "a sweep runs one strategy per point; vary strategy, or use paceline compare",
}
BATCH_KEYS = {"train.batch_size", "train.worker_batch_size"}
# Step times of runs that differ in one of these recipe keys cannot be compared.
WORK = ("model.name", "data.name", "data.image_size")
NOTHING = "none"

WARMUP_EPOCHS = 5.0
# Published settings for images (Goyal et al. 2017; You et al. 2017 and 2020), scaled to a global batch of 256.
REMEDIES: dict[str, Changes] = {
    "linear": {"schedule.scale_lr": "linear", "schedule.warmup": WARMUP_EPOCHS},
    "lars": {
        "optimizer.name": "lars",
        "optimizer.lr": 3.0,
        "optimizer.momentum": 0.9,
        "schedule.scale_lr": "linear",
        "schedule.warmup": WARMUP_EPOCHS,
    },
    "lamb": {
        "optimizer.name": "lamb",
        "optimizer.lr": 0.0035,
        "schedule.scale_lr": "sqrt",
        "schedule.warmup": WARMUP_EPOCHS,
    },
}
REMEDY_SECTIONS = ("optimizer", "schedule")


@dataclass(frozen=True)
class SweepAxis:
    """A recipe key that a sweep varies, and its values in order."""

    key: str  # a recipe key such as optimizer.lr, or strategy.OPTION
    values: tuple[Any, ...]

    def values_of(self) -> AxisValues:
        """Return the key and its values in the form in which the result of the sweep stores them."""
        return AxisValues(key=self.key, values=[stored_value(value) for value in self.values])


def make_axes(vary: Mapping[str, Sequence[Any]]) -> list[SweepAxis]:
    """Create axes from a mapping of keys to their values. The mapping comes from the Python API or a stored result."""
    return [
        SweepAxis(resolve_key(name), tuple(tuple(value) if isinstance(value, list) else value for value in values))
        for name, values in vary.items()
    ]


def parse_vary(words: Sequence[str]) -> list[SweepAxis]:
    """Parse the arguments of all `--vary` options, such as `batch-size=32,128`, into axes."""
    axes = [_parse_axis(word) for word in words]
    repeated = first_repeated([axis.key for axis in axes])
    if repeated:
        raise UsageError(f"--vary names {repeated} twice; put all its values into one --vary")
    return axes


def _parse_axis(word: str) -> SweepAxis:
    name, equals, text = word.partition("=")
    if not equals or not text:
        raise UsageError(f"--vary {word!r} is not KEY=V1,V2,...; an example: --vary batch-size=32,128,512")
    key = resolve_key(name)
    # Values that are lists contain commas, so semicolons separate them.
    pieces = [piece.strip() for piece in text.split(";" if _is_list(key) else ",")]
    values = tuple(_parse_value(key, piece) for piece in pieces)
    repeated = next((piece for piece, value in zip(pieces, values, strict=True) if values.count(value) > 1), None)
    if repeated is not None:
        raise UsageError(f"--vary {name} has {repeated!r} twice; remove one")
    return SweepAxis(key, values)


def resolve_key(name: str) -> str:
    """Return the recipe key that the user means.

    `name` is a recipe key (`train.batch_size`), a command-line option (`batch-size`), or an option of the strategy
    (`strategy.OPTION`). The name of a strategy's option is returned with underscores instead of hyphens.
    """
    normalized = name.strip().removeprefix("--").replace("-", "_")
    if normalized.startswith(STRATEGY_OPTION):
        return normalized
    keys = _keys_by_name()
    if normalized not in keys:
        raise unknown("key to vary", name, [*keys, "strategy.OPTION"])
    key = keys[normalized]
    if key in NOT_VARIED:
        raise UsageError(f"--vary {name}: {NOT_VARIED[key]}")
    return key


def _keys_by_name() -> dict[str, str]:
    """Return the recipe keys by all names that a user may write: the key itself, or its command-line option.

    If the option of one key is spelled like another key, the name means that other key.
    """
    options = {}
    for key, item in recipe_keys():
        flag = item.metadata["flag"].partition("/")[0].removeprefix("--").replace("-", "_")
        if flag:
            options[flag] = key
    return options | {key: key for key, _ in recipe_keys()}


def _type_of(key: str) -> tuple[Any, bool]:
    """Return the type of a recipe key's values, and whether the key may be unset."""
    hint = key_type(key)
    if isinstance(hint, types.UnionType):
        return next(part for part in hint.__args__ if part is not type(None)), True
    return hint, False


def _is_list(key: str) -> bool:
    return not key.startswith(STRATEGY_OPTION) and typing.get_origin(_type_of(key)[0]) is tuple


def _parse_value(key: str, text: str) -> Any:
    """Parse a value of a recipe key. The recipe checks later whether it is valid."""
    if not key.startswith(STRATEGY_OPTION):
        hint, may_be_unset = _type_of(key)
        if _is_list(key):
            return () if text in ("", NOTHING) else (text,)
        if text == NOTHING and may_be_unset:
            return None
        if hint is str:
            default = dict(recipe_keys())[key].default
            return "" if text == NOTHING and default == "" else text
    return read_toml_value(text, f"--vary {key}")


def apply_choice(recipe: Recipe, choice: Mapping[str, Any]) -> Recipe:
    """Return the recipe with the chosen value of every varied key."""
    changes = {key: stored_value(value) for key, value in choice.items() if not key.startswith(STRATEGY_OPTION)}
    options = {
        key.removeprefix(STRATEGY_OPTION): value_text(value) for key, value in choice.items() if key not in changes
    }
    if options:
        text = changes.get("strategy", recipe.strategy)
        spec = StrategySpec.parse(text, changes.get("codec", recipe.codec))
        unchanged = [(name, value) for name, value in spec.options if name not in options]
        spec = StrategySpec(spec.name, (*unchanged, *options.items()), spec.codec)
        changes |= {"strategy": str(spec), "codec": spec.codec}
    return recipe.replace(changes)


def choice_label(choice: Mapping[str, Any]) -> str:
    """Return the chosen values as text, for example `batch_size 128, lr 0.1`."""
    return ", ".join(
        value_text(value) if key == "strategy" else f"{short_key(key, choice)} {value_text(value)}"
        for key, value in choice.items()
    )


def short_key(key: str, among: Mapping[str, Any]) -> str:
    """Return a key without its section, such as `lr` for `optimizer.lr`. `model.name` becomes `model`.

    Return the whole key if another key in `among` has the same name in another section.
    """
    section, _, name = key.rpartition(".")
    if name == "name" and section:
        return section
    namesakes = [other for other in among if other.rpartition(".")[2] == name]
    return key if len(namesakes) > 1 else name


def value_text(value: Any) -> str:
    """Return a value as text, as it is written on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return " plus ".join(str(item) for item in value) or NOTHING
    return NOTHING if value is None or value == "" else str(value)


def stored_value(value: Any) -> Any:
    """Return a value in the form in which JSON stores it: a tuple becomes a list."""
    return list(value) if isinstance(value, tuple) else value


def is_same_work(recipes: Sequence[Recipe]) -> bool:
    """Return whether a training step does the same work under all recipes, so that their times can be compared."""
    return len({(attrgetter(*WORK)(recipe), recipe.batch_size) for recipe in recipes}) == 1


@dataclass(frozen=True)
class Remedy:
    """A named set of recipe changes against the loss of accuracy with large batches."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, recipe: Recipe) -> Recipe:
        """Return the recipe with this remedy's changes.

        If the recipe sets a number of epochs, the warm-up of the learning rate is limited to half of that number.
        """
        changes = dict(self.changes)
        epochs = recipe.train.epochs
        if epochs is not None and "schedule.warmup" in changes:
            changes["schedule.warmup"] = min(changes["schedule.warmup"], epochs / 2)
        return recipe.replace(changes)


NO_REMEDY = Remedy("")


def parse_remedies(texts: Sequence[str]) -> list[Remedy]:
    """Parse remedies such as `linear` or `lars:lr=5:warmup=2`."""
    remedies = [_parse_remedy(text) for text in texts]
    repeated = first_repeated([remedy.name for remedy in remedies])
    if repeated:
        raise UsageError(f"remedy {repeated!r} is named twice; remove one")
    return remedies


def _parse_remedy(text: str) -> Remedy:
    name, options = split_words("remedy", text)
    if name not in REMEDIES:
        raise unknown("remedy", name, REMEDIES)
    keys = {  # recipe keys by their last component
        key.partition(".")[2]: key
        for key, _ in recipe_keys()
        if key.partition(".")[0] in REMEDY_SECTIONS and not key.endswith(".name")
    }
    changes = dict(REMEDIES[name])
    for option, value in options:
        if option not in keys:
            raise unknown("option of a remedy", option, keys)
        changes[keys[option]] = read_toml_value(value, f"remedy {name}, option {option}")
    return Remedy(text, changes)
