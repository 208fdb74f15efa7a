"""Instructions for using a recipe: the command line and the library call."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from paceline.recipe import Changes, ClusterConfig, Recipe, builtin_recipes, recipe_keys
from paceline.results.study import Best

BEST_FILE = "best.toml"
SAME_RUN = ("name", "description", "strategies")  # keys that do not affect a run
MOST_OPTIONS = 8  # with more, `paceline run best.toml` is easier to read


def command_for(recipe: Recipe) -> str | None:
    """Return `paceline run` with a built-in recipe and options; None if that takes too many options."""
    bases = [(name, _changes(base, recipe)) for name, base in builtin_recipes().items()]
    usable = [(name, changes) for name, changes in bases if changes is not None and len(changes) <= MOST_OPTIONS]
    if not usable:
        return None
    name, changes = min(usable, key=lambda pair: len(pair[1]))
    return " ".join(["paceline run", name, *_words(changes)])


def command_in(best: Best, folder: str | Path) -> str:
    """Return the command that runs the winner of a stored study."""
    return best.command or f"paceline run {shlex.quote(str(Path(folder) / BEST_FILE))}"


def library_call(strategy: str, comm: str) -> str:
    """Return the lines that give a training loop this strategy and comm."""
    wrap = f'model, optimizer = paceline.parallel(model, optimizer, strategy="{strategy}")'
    return f'paceline.init(comm="{comm}")\n{wrap}'


def _changes(base: Recipe, recipe: Recipe) -> Changes | None:
    """Return the changes from one recipe to another; None if options cannot express them."""
    keys = [key for key, _ in recipe_keys() if key not in SAME_RUN]
    changes = {key: _value(recipe, key) for key in keys if _value(recipe, key) != _value(base, key)}
    changes = {key: value for key, value in changes.items() if value is not None}
    made = base.replace(changes)
    return changes if all(_value(made, key) == _value(recipe, key) for key in keys) else None


def _value(recipe: Recipe, key: str) -> Any:
    section, dot, name = key.partition(".")
    return getattr(getattr(recipe, section), name) if dot else getattr(recipe, section)


def _words(changes: Changes) -> list[str]:
    fields = dict(recipe_keys())
    words = []
    cluster = {key.partition(".")[2]: value for key, value in changes.items() if key.startswith("cluster.")}
    if cluster:
        words.append(f"--cluster {shlex.quote(str(ClusterConfig(**cluster)))}")
    for key, value in changes.items():
        flag = fields[key].metadata["flag"]
        if key.startswith("cluster."):
            continue
        if isinstance(value, bool):
            yes, _, no = flag.partition("/")
            words.append(yes if value else no)
        elif isinstance(value, tuple):
            words += [f"{flag} {shlex.quote(item)}" for item in value]
        else:
            words.append(f"{flag} {shlex.quote(str(value))}")
    return words
