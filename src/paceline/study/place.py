"""Whether this machine can emulate the nodes that a recipe asks for."""

from __future__ import annotations

from paceline.errors import RunError, UsageError
from paceline.launch.base import Request, Task
from paceline.launch.emulated import Emulated
from paceline.recipe import ClusterConfig, Recipe
from paceline.train.context import Context, ignore_event


def without_cluster(recipe: Recipe) -> Recipe:
    """The same recipe on plain processes."""
    usual = ClusterConfig()
    return recipe.replace({f"cluster.{key}": getattr(usual, key) for key in vars(usual)})


def reason_against_cluster(recipe: Recipe) -> str:
    """Why the recipe's cluster cannot be used here, found by building it once; empty when it can."""
    try:
        with Emulated(Request(cluster=recipe.cluster)).open(1) as pool:
            pool.run(Task(_do_nothing, timeout_s=recipe.timeout_s), ignore_event)
    except (UsageError, RunError) as error:
        return str(error)
    return ""


def _do_nothing(context: Context) -> int:
    return context.comm.rank
