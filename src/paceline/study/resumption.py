"""Find out how to resume a run that was interrupted: its recipe, and the newest whole checkpoint in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint import find_newest_whole, next_attempt
from paceline.errors import UsageError
from paceline.measure.inject import Injection
from paceline.recipe import Changes, Recipe
from paceline.results import DONE, RUN_FILE, STUDY_FILE, RunRecord, read_file
from paceline.train.checkpointing import CheckpointPlace

CHECKPOINTS = "checkpoints"  # in a run's folder


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """How a run continues: from which step, and what its folder has of the earlier part."""

    step: int = 0  # completed steps; 0 if there is no whole checkpoint
    attempt: int = 1  # how often the run was started before
    run_s: float = 0.0  # duration of the run until the checkpoint
    started: str = ""  # when the run was first started
    skipped: tuple[str, ...] = ()  # a sentence for every newer checkpoint that is not whole

    def place(self, checkpoints: Path) -> CheckpointPlace:
        return CheckpointPlace(folder=str(checkpoints.resolve()), step=self.step, attempt=self.attempt)


def find_resumption(folder: Path, recipe: Recipe) -> Resumption:
    """Return how the run in a folder continues. `recipe` is the recipe with which it continues."""
    record = _record_of(folder)
    found = find_newest_whole(folder / CHECKPOINTS, recipe=recipe.digest)
    return Resumption(
        step=found.header.step if found.header is not None else 0,
        attempt=next_attempt(folder / CHECKPOINTS),
        run_s=found.header.run_s if found.header is not None else 0.0,
        started=record.started if record is not None else "",
        skipped=found.skipped,
    )


def read_unfinished(folder: Path, changes: Changes) -> Recipe:
    """Return the recipe of an unfinished run, with `changes` that do not affect the result.

    Injected faults that ended the run are left out. Raises UsageError if the folder has no run, or if it is finished.
    """
    if (folder / STUDY_FILE).is_file():
        raise UsageError(f"{str(folder)!r} is a study; continue it with `paceline resume {folder.name}`")
    file = folder / "recipe.toml"
    if not file.is_file():
        raise UsageError(f"{str(folder)!r} is not the folder of a run, because it has no recipe.toml; name a run")
    record = _record_of(folder)
    if record is not None and record.status == DONE:
        raise UsageError(f"run {folder.name!r} is finished; `paceline runs show {folder.name}` shows it")
    try:
        recipe = Recipe.from_toml(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error}") from None
    return without_ending_faults(recipe).replace(changes)


def without_ending_faults(recipe: Recipe) -> Recipe:
    """Return the recipe without injected faults that end a run, because they have happened already."""
    lasting = tuple(text for text in recipe.measure.inject if Injection.parse(text).kind == "slow")
    return recipe if lasting == recipe.measure.inject else recipe.replace({"measure.inject": lasting})


def _record_of(folder: Path) -> RunRecord | None:
    """Return the stored run, or None if the process ended before it stored one. Raises Unreadable if it is damaged."""
    if not (folder / RUN_FILE).is_file():
        return None
    content = read_file(folder / RUN_FILE)
    return content if isinstance(content, RunRecord) else None
