"""Where the workers of a study are started: on this host, or on the nodes of the recipe's emulated cluster."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from paceline.errors import RunError, UsageError
from paceline.launch.base import Launcher, Task
from paceline.launch.local import LocalLauncher
from paceline.recipe import ClusterConfig, Recipe
from paceline.train.context import Context

NOT_HERE = "this version of paceline starts workers as plain processes of this host only"


def local_launcher(num_processes: int, cluster: ClusterConfig) -> Launcher:
    """Workers of this host, on the cluster's nodes where the recipe has some."""
    if not cluster.nodes:
        return LocalLauncher(num_processes)
    if "cluster" not in inspect.signature(LocalLauncher.__init__).parameters:
        raise UsageError(f"{cluster.nodes} emulated nodes were asked for, but {NOT_HERE}; leave --cluster out")
    on_nodes: Callable[..., Launcher] = LocalLauncher
    return on_nodes(num_processes, cluster=cluster)


def num_nodes_of(recipe: Recipe) -> int:
    """Nodes that workers are spread over: shared memory does not reach from one to another."""
    return max(min(recipe.cluster.nodes, recipe.workers), 1)


def without_cluster(recipe: Recipe) -> Recipe:
    """The same recipe on plain processes."""
    usual = ClusterConfig()
    return recipe.replace({f"cluster.{key}": getattr(usual, key) for key in vars(usual)})


def reason_against_cluster(recipe: Recipe) -> str:
    """Why the recipe's cluster cannot be used here, found by building it once; empty when it can."""
    try:
        with local_launcher(1, recipe.cluster) as launcher:
            launcher.run(Task(_do_nothing, comm=recipe.comm, timeout_s=recipe.timeout_s), _ignore)
    except (UsageError, RunError) as error:
        return str(error)
    return ""


def _do_nothing(context: Context) -> int:
    return context.comm.rank


def _ignore(event: dict[str, object]) -> None:
    del event
