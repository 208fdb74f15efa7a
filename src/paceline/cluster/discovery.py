"""Find running clusters and the processes inside their nodes, and end those processes by id.

There is no registry file that could be lost or outdated. The layout of a cluster is on its keeper's command line. A
process is inside a cluster if its network namespace has the cluster's interface or its cgroup has the cluster's name.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.cluster.cgroups import labelled_groups, members
from paceline.cluster.layout import INTERFACE, ClusterLayout
from paceline.results.commands import ListedCluster


def describe(keeper: Keeper) -> ListedCluster:
    """Return a cluster as `paceline cluster list` shows it."""
    plan = keeper.plan
    return ListedCluster(
        name=plan.name,
        asked=plan.asked,
        addresses=[plan.address(index) for index in range(len(plan.nodes))],
        is_ready=keeper.is_ready,
        keeper=keeper.pid,
        parent=plan.parent or None,
        processes=sorted(processes_inside(plan.name, but=keeper.pid)),
        cgroups=plan.group_folders(),
    )


MODULE = "paceline.cluster.keeper"
GRACE_S = 1.0  # between SIGTERM and SIGKILL
END_S = 10.0


@dataclass(frozen=True)
class Keeper:
    """A process that holds the namespaces of a cluster."""

    pid: int
    plan: ClusterLayout
    is_ready: bool


def living_keepers() -> list[Keeper]:
    """Return the running keepers that are visible to this user, sorted by cluster name."""
    found: dict[int, Keeper] = {}
    for pid in _pids():
        plan = _kept_by(pid)
        if plan is not None:
            found[pid] = Keeper(pid, plan, _read(f"/proc/{pid}/comm").strip() == ready_name(plan))
    # Between fork and exec, a child of a keeper has the keeper's command line.
    alone = [keeper for keeper in found.values() if _parent_of(keeper.pid) not in found]
    return sorted(alone, key=lambda keeper: (keeper.plan.name, keeper.pid))


def ready_name(plan: ClusterLayout) -> str:
    """Return the process name of a keeper whose cluster is built."""
    return f"{INTERFACE}{plan.name}"


def processes_inside(name: str, *, but: int = 0) -> set[int]:
    """Return the processes in the cluster's networks and cgroups, except `but` and this process."""
    found = {pid for folder in labelled_groups().get(name, []) for pid in members(folder)}
    found |= {pid for pid, owner in clusters_by_process().items() if owner == name}
    return found - {but, os.getpid()}


def names_inside() -> set[str]:
    """Return the names of clusters with a process inside, whether or not their keeper runs."""
    return set(clusters_by_process().values())


def end_processes(name: str, *, but: int = 0) -> int:
    """End all processes inside a cluster and return their number; raise OSError if some do not end."""
    ended: set[int] = set()
    asked: set[int] = set()
    started = math.inf  # the time of the first search: a search is slow on a busy machine
    while inside := processes_inside(name, but=but):
        started = min(started, time.monotonic())
        is_polite = time.monotonic() < started + GRACE_S
        if time.monotonic() > started + END_S:
            raise OSError(f"processes {', '.join(map(str, sorted(inside)))} of cluster {name} do not end")
        for pid in inside - (asked if is_polite else set()):
            _end(pid, name, signal.SIGTERM if is_polite else signal.SIGKILL)
        asked |= inside
        ended |= inside
        time.sleep(0.02)
    return len(ended)


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Wait for a process to end; return whether it ended within `timeout_s`."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def _end(pid: int, name: str, number: signal.Signals) -> None:
    """Signal a process if it is still inside the cluster; its id may have been reused."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if pid in processes_inside(name):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def clusters_by_process() -> dict[int, str]:
    """Return the cluster of every process that is in a node's network."""
    own = _network_of(os.getpid())
    by_network: dict[str, str] = {own: ""}
    found = {}
    for pid in _pids():
        network = _network_of(pid)
        if network and network not in by_network:
            by_network[network] = _label_in(_read(f"/proc/{pid}/net/dev"))
        if by_network.get(network):
            found[pid] = by_network[network]
    return found


def _label_in(interfaces: str) -> str:
    """Return the cluster whose interface a `/proc/PID/net/dev` lists, or an empty string."""
    for line in interfaces.splitlines()[2:]:
        device = line.partition(":")[0].strip()
        if device.startswith(INTERFACE) and device.count("-") == 2:
            return device.split("-")[1]
    return ""


def _network_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""  # ended, or another user's


def _kept_by(pid: int) -> ClusterLayout | None:
    words = _read(f"/proc/{pid}/cmdline").split("\0")
    if MODULE not in words[1:4]:
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError):  # not a layout
        return ClusterLayout.from_json(words[words.index(MODULE) + 1])
    return None


def _parent_of(pid: int) -> int:
    after_name = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(after_name[1]) if len(after_name) > 1 else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # the process has ended


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())
