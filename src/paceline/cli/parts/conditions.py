"""What was done to a run on purpose, or left out, so that its figures are not those of a plain one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from paceline.errors import UsageError
from paceline.measure.inject import Injection
from paceline.runs import name_of


def show_conditions(
    console: Console, recipe: Mapping[str, Any], results: Sequence[Mapping[str, Any]], *, of: str = ""
) -> None:
    """Say them, of one of several by its name."""
    for line in condition_lines(recipe, results):
        console.print(f"{of}: {line}" if of else line, style="yellow", markup=False)


def condition_lines(recipe: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each; the recipe as plain values."""
    measure = recipe.get("measure", {})
    lines = [_injected(text, results) for text in measure.get("inject", ())]
    if measure.get("profile"):
        lines.append(f"Steps {measure['profile']} were profiled (--profile): they are slower, and counted.")
    if measure.get("spans") is False:
        nobody = ", so that nobody can be found to be slow" if measure.get("inject") else ""
        lines.append(f"Where the time of a step went was not recorded (--no-measure){nobody}.")
    return lines


def is_disturbed(recipe: Mapping[str, Any]) -> bool:
    return bool(recipe.get("measure", {}).get("inject"))


def _injected(text: str, results: Sequence[Mapping[str, Any]]) -> str:
    try:
        one = Injection.parse(text)
    except UsageError:  # of a newer version, perhaps
        return f"On purpose: --inject {text}."
    done = {"slow": "slowed down", "kill": "killed", "hang": "hung"}[one.kind]
    without = [name_of(result) for result in results if result["workers"] <= one.rank]
    untouched = f" {', '.join(without)}: without a worker {one.rank}, so not touched." if without else ""
    return f"Worker {one.rank} was {done} on purpose (--inject {text}).{untouched}"
