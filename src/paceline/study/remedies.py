"""Remedies for the accuracy loss of large batches: extra rows of a sweep for each batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import UsageError, unknown
from paceline.parsing import first_repeated, read_toml_value
from paceline.plugins import split_words
from paceline.recipe import Changes, Recipe, recipe_keys

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
SECTIONS = ("optimizer", "schedule")


@dataclass(frozen=True)
class Remedy:
    """A named set of changes to a recipe."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, recipe: Recipe) -> Recipe:
        """Apply the changes to a recipe. The warm-up takes at most half of the epochs."""
        changes = dict(self.changes)
        epochs = recipe.train.epochs
        if epochs is not None and "schedule.warmup" in changes:
            changes["schedule.warmup"] = min(changes["schedule.warmup"], epochs / 2)
        return recipe.replace(changes)


NO_REMEDY = Remedy("")


def parse_remedies(texts: Sequence[str]) -> list[Remedy]:
    """Parse remedies such as `linear` or `lars:lr=5:warmup=2`."""
    remedies = [_parse(text) for text in texts]
    names = [remedy.name for remedy in remedies]
    twice = first_repeated(names)
    if twice:
        raise UsageError(f"remedy {twice!r} is named twice")
    return remedies


def _parse(text: str) -> Remedy:
    name, options = split_words("remedy", text)
    if name not in REMEDIES:
        raise unknown("remedy", name, REMEDIES)
    changes = dict(REMEDIES[name])
    for option, value in options:
        changes[_key(option)] = read_toml_value(value, f"remedy {name}, option {option}")
    return Remedy(text, changes)


def _key(option: str) -> str:
    """Find a recipe key of the optimiser or the schedule by its last component."""
    known = {
        key.partition(".")[2]: key
        for key, _ in recipe_keys()
        if key.partition(".")[0] in SECTIONS and not key.endswith(".name")
    }
    if option not in known:
        raise unknown("option of a remedy", option, known)
    return known[option]
