"""Workers of a study that decides on the way what to run next: on this host, or on the recipe's emulated nodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager

from paceline.cli.parts.session import launched
from paceline.errors import UsageError
from paceline.launch.base import Launcher
from paceline.launch.local import Nodes
from paceline.recipe import ClusterConfig
from paceline.study.place import NOT_HERE


def started(num_processes: int, cluster: ClusterConfig) -> AbstractContextManager[Launcher]:
    """A launcher; its workers are gone when the block ends, and an interruption is a sentence."""
    if not cluster.nodes:
        return launched(num_processes, Nodes())
    if "cluster" not in inspect.signature(launched).parameters:
        raise UsageError(f"{cluster.nodes} emulated nodes were asked for, but {NOT_HERE}; leave --cluster out")
    on_nodes: Callable[..., AbstractContextManager[Launcher]] = launched
    return on_nodes(num_processes, Nodes(), cluster=cluster)
