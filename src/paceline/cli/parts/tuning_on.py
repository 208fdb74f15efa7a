"""Fine-tuning as a command asks for it: a recipe, a strategy, and who starts the workers."""

from __future__ import annotations

from paceline.cli.session import launched, launcher_for
from paceline.launch.base import Request
from paceline.recipe import ClusterConfig, Recipe
from paceline.study.entries import make_entry, settle_comm
from paceline.study.place import without_cluster
from paceline.study.quantize.finetune import finetune_recipe
from paceline.study.quantize.study import Tuning


def make_tuning(recipe: Recipe, *, steps: int, strategy: str, workers: int | None, lr: float | None) -> Tuning:
    """Every mistake in the words is found here, before anything starts."""
    starter = launcher_for(Request(), ClusterConfig(), only_once="quantize")
    asked: dict[str, str | int | None] = {"strategy": strategy or None, "workers": workers}
    changes = {key: value for key, value in asked.items() if value}
    if workers and recipe.train.worker_batch_size:
        changes["train.batch_size"] = recipe.batch_size  # the global batch stays what it was
    tuned = settle_comm(without_cluster(finetune_recipe(recipe.replace(changes), steps=steps, lr=lr)))
    entry = make_entry(tuned.strategy, tuned)
    return Tuning(tuned, entry, lambda: launched(entry.num_processes, starter))
