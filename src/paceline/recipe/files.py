"""Recipes from files and from words of the command line."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from paceline.errors import UsageError, unknown
from paceline.parsing import read_toml_value
from paceline.recipe.fields import Changes
from paceline.recipe.whole import Recipe, recipe_keys

DEFAULT_RECIPE = "lenet5-mnist"


def load_recipe(name_or_path: str) -> Recipe:
    """A built-in recipe by name, or a TOML file by path."""
    known = builtin_recipes()
    if name_or_path in known:
        return known[name_or_path]
    path = Path(name_or_path).expanduser()
    if path.suffix == ".toml" or path.exists():
        try:
            return Recipe.from_toml(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"recipe {name_or_path!r} cannot be read: {error}") from None
    raise unknown("recipe", name_or_path, known)


def builtin_recipes() -> dict[str, Recipe]:
    folder = resources.files("paceline") / "recipes"
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda e: e.name)
    found = [Recipe.from_toml(entry.read_text(encoding="utf-8"), entry.name) for entry in files]
    return {recipe.name: recipe for recipe in found}


def parse_set(assignments: list[str]) -> Changes:
    """`key=value` words as changes; a value is read as TOML reads it, or else as a string."""
    changes: Changes = {}
    for word in assignments:
        key, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"--set {word!r} is not key=value")
        known = dict(recipe_keys())
        if key not in known:
            raise unknown("recipe key", key, known)
        changes[key] = read_toml_value(text, f"--set {key}")
    return changes
