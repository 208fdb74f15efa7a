"""Take clusters down by name, and remove the leftovers of clusters whose keeper is gone."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from paceline.cluster.cgroups import labelled_groups, remove_group
from paceline.cluster.discovery import end_processes, living_keepers, names_inside, wait_for_end
from paceline.errors import RunError, UsageError, unknown

DOWN_S = 20.0


@dataclass(frozen=True)
class Removed:
    """The removed leftovers of a cluster; the kernel removes its networks with the last process inside."""

    name: str
    processes: int
    groups: tuple[str, ...]


def take_down(name: str) -> None:
    """End a kept cluster and wait until its keeper has ended."""
    keepers = {keeper.plan.name: keeper for keeper in living_keepers()}
    if name not in keepers:
        raise (
            unknown("cluster", name, keepers) if keepers else UsageError(f"there is no cluster {name!r}, nor any other")
        )
    keeper = keepers[name]
    if keeper.plan.parent:
        raise UsageError(f"cluster {name} belongs to process {keeper.plan.parent} and ends with it")
    try:
        os.kill(keeper.pid, signal.SIGTERM)
    except PermissionError:
        raise UsageError(f"cluster {name} belongs to another user") from None
    if not wait_for_end(keeper.pid, DOWN_S):
        raise RunError(f"cluster {name} did not end within {DOWN_S:g} s; its keeper is process {keeper.pid}")


def prune() -> list[Removed]:
    """Remove the leftovers of every cluster without a running keeper."""
    found = sorted({*labelled_groups(), *names_inside()})
    # Keepers are listed second: a cluster has a keeper before it has a cgroup.
    kept = {keeper.plan.name for keeper in living_keepers()}
    return [remove_cluster(name) for name in found if name not in kept]


def remove_cluster(name: str) -> Removed:
    """End all processes with the label of a cluster and remove its cgroups."""
    folders = labelled_groups().get(name, [])
    try:
        processes = end_processes(name)
        for folder in folders:
            remove_group(folder)
    except OSError as error:
        raise RunError(f"the leftovers of cluster {name} cannot be removed: {error}") from None
    return Removed(name, processes, tuple(map(str, folders)))
