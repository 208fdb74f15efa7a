"""How to use the strategy that wins `paceline tune`: the command that runs it, and the calls for a training loop."""

from __future__ import annotations

import shlex
from operator import attrgetter
from pathlib import Path

from paceline.recipe import Changes, ClusterConfig, Recipe, builtin_recipes, recipe_keys
from paceline.results.study import Best

BEST_FILE = "best.toml"
NOT_RUN = ("name", "description", "strategies")  # recipe keys that do not affect a run
MOST_OPTIONS = 8  # with more options, `paceline run best.toml` is easier to read


def command_for(recipe: Recipe) -> str | None:
    """Return a `paceline run` command for a recipe: the closest built-in recipe, and options for the keys that differ.

    Return None if no built-in recipe can be used, because more than MOST_OPTIONS keys differ, or because options cannot
    express the differences.
    """
    bases = [(name, _changes_between(base, recipe)) for name, base in builtin_recipes().items()]
    usable = [(name, changes) for name, changes in bases if changes is not None and len(changes) <= MOST_OPTIONS]
    if not usable:
        return None
    name, changes = min(usable, key=lambda pair: len(pair[1]))
    return " ".join(["paceline run", name, *_as_options(changes)])


def command_in(best: Best, folder: str | Path) -> str:
    """Return the command that runs `best`, the winner of a stored tune study. `folder` is the folder of that study."""
    return best.command or f"paceline run {shlex.quote(str(Path(folder) / BEST_FILE))}"


def library_call(strategy: str, comm: str) -> str:
    """Return the lines of Python that make a training loop use this strategy and comm (communication backend)."""
    wrap = f'model, optimizer = paceline.parallel(model, optimizer, strategy="{strategy}")'
    return f'paceline.init(comm="{comm}")\n{wrap}'


def _changes_between(base: Recipe, recipe: Recipe) -> Changes | None:
    """Return the recipe keys that must change so that `base` becomes `recipe`, with their new values.

    Keys in NOT_RUN are ignored. Return None if command-line options cannot express the changes, for example because a
    key would have to be unset.
    """
    keys = [key for key, _ in recipe_keys() if key not in NOT_RUN]
    wanted, given = ({key: attrgetter(key)(one) for key in keys} for one in (recipe, base))
    changes = {key: value for key, value in wanted.items() if value is not None and value != given[key]}
    changed_recipe = base.replace(changes)
    return changes if all(attrgetter(key)(changed_recipe) == value for key, value in wanted.items()) else None


def _as_options(changes: Changes) -> list[str]:
    """Return recipe changes as command-line options. Keys of the section `cluster` become one `--cluster` option."""
    fields = dict(recipe_keys())
    words = []
    cluster = {key.partition(".")[2]: value for key, value in changes.items() if key.startswith("cluster.")}
    if cluster:
        words.append(f"--cluster {shlex.quote(str(ClusterConfig(**cluster)))}")
    for key, value in changes.items():
        if key.startswith("cluster."):
            continue
        flag = fields[key].metadata["flag"]
        if isinstance(value, bool):
            yes, _, no = flag.partition("/")
            words.append(yes if value else no)
        elif isinstance(value, tuple):
            words += [f"{flag} {shlex.quote(item)}" for item in value]
        else:
            words.append(f"{flag} {shlex.quote(str(value))}")
    return words
