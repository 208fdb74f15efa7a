"""Find running emulated clusters and the processes inside their nodes, end clusters, and remove leftovers.

There is no registry file that could be lost or outdated. The keeper, the process that holds a cluster's namespaces,
has the layout of the cluster on its command line. A process is inside a cluster if its network namespace has the
cluster's interface or its cgroup has the cluster's name.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.cluster.cgroups import labelled_groups, remove_group
from paceline.cluster.group_files import members
from paceline.cluster.layout import INTERFACE, NAME_PATTERN, ClusterLayout
from paceline.cluster.ownership import is_own_network, is_own_process
from paceline.errors import RunError, UsageError, unknown
from paceline.results.commands import ListedCluster

KEEPER_MODULE = "paceline.cluster.keeper"
_DEVICE = re.compile(f"{INTERFACE}({NAME_PATTERN})-(?:br|[0-9]{{1,3}})")
GRACE_S = 1.0  # seconds between SIGTERM and SIGKILL
END_S = 10.0  # time limit for the processes inside a cluster to end
DOWN_S = 20.0  # time limit for the keeper to end these processes and remove the cgroups


@dataclass(frozen=True)
class Keeper:
    """A process that holds the namespaces of a cluster. `is_ready` is false while the cluster is being built."""

    pid: int
    layout: ClusterLayout
    is_ready: bool


def living_keepers() -> list[Keeper]:
    """Return the keepers (managing processes) of all clusters of this user, sorted by cluster name.

    A process of another user that only looks like a keeper, by its command line, is ignored.
    """
    found: dict[int, Keeper] = {}
    for pid in _pids():
        layout = _layout_of_keeper(pid)
        if layout is not None:
            found[pid] = Keeper(pid, layout, _read(f"/proc/{pid}/comm").strip() == ready_name(layout))
    # Ignore children of a keeper: between fork and exec, a child has the command line of its parent.
    keepers = [keeper for keeper in found.values() if _parent_of(keeper.pid) not in found]
    return sorted(keepers, key=lambda keeper: (keeper.layout.name, keeper.pid))


def find_keeper(name: str, keepers: Iterable[Keeper]) -> Keeper:
    """Return the keeper (managing process) of the cluster named `name`; raise UsageError if there is none."""
    by_name = {keeper.layout.name: keeper for keeper in keepers}
    if not by_name:
        raise UsageError(
            f"there is no cluster {name!r}, because no cluster is up; build one with `paceline cluster up`"
        )
    if name not in by_name:
        raise unknown("cluster", name, by_name)
    return by_name[name]


def ready_name(layout: ClusterLayout) -> str:
    """Return the process name that a cluster's keeper (managing process) takes when the cluster is built."""
    return f"{INTERFACE}{layout.name}"


def describe(keeper: Keeper) -> ListedCluster:
    """Return the facts about a cluster that `paceline cluster list` prints."""
    layout = keeper.layout
    return ListedCluster(
        name=layout.name,
        asked=layout.asked,
        addresses=[layout.address(index) for index in range(len(layout.nodes))],
        is_ready=keeper.is_ready,
        keeper=keeper.pid,
        parent=layout.parent or None,
        processes=sorted(processes_inside(layout.name, excluding=keeper.pid)),
        cgroups=layout.group_folders(),
    )


def processes_inside(name: str, *, excluding: int = 0) -> set[int]:
    """Return the ids of the processes in a cluster's networks and cgroups, except `excluding` and this process."""
    found = {pid for folder in labelled_groups().get(name, []) for pid in members(folder)}
    found |= {pid for pid, cluster in clusters_by_process().items() if cluster == name}
    return found - {excluding, os.getpid()}


def clusters_by_process() -> dict[int, str]:
    """Return the cluster name of every process in a network of this user's nodes, by process id.

    Clusters whose keeper (managing process) has ended are included.
    """
    by_network: dict[str, str] = {_network_of(os.getpid()): ""}
    found = {}
    for pid in _pids():
        network = _network_of(pid)
        if network and network not in by_network:
            name = _cluster_of_interfaces(_read(f"/proc/{pid}/net/dev"))
            by_network[network] = name if name and is_own_network(pid) else ""
        if by_network.get(network):
            found[pid] = by_network[network]
    return found


def _cluster_of_interfaces(interfaces: str) -> str:
    """Find a cluster's interface in the text of `/proc/PID/net/dev`. Return the cluster's name, or an empty string."""
    for line in interfaces.splitlines()[2:]:
        match = _DEVICE.fullmatch(line.partition(":")[0].strip())
        if match:
            return match[1]
    return ""


def _network_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""  # the process has ended, or belongs to another user


def _layout_of_keeper(pid: int) -> ClusterLayout | None:
    """Return the layout on the command line of a process, or None if it does not manage a cluster of this user."""
    words = _read(f"/proc/{pid}/cmdline").split("\0")
    if KEEPER_MODULE not in words[2:4] or words[words.index(KEEPER_MODULE) - 1] != "-m" or not is_own_process(pid):
        return None
    with contextlib.suppress(ValueError, RecursionError, IndexError):  # the argument is not a layout
        return ClusterLayout.from_json(words[words.index(KEEPER_MODULE) + 1])
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


def end_processes(name: str, *, excluding: int = 0) -> int:
    """End all processes inside a cluster, except `excluding` and this process, and return their number.

    Processes get SIGTERM, and SIGKILL after `GRACE_S`. Raises OSError if some do not end within `END_S`.
    """
    ended: set[int] = set()
    started = math.inf  # set after the first search, which is slow on a busy machine
    while inside := processes_inside(name, excluding=excluding):
        started = min(started, time.monotonic())
        is_grace = time.monotonic() < started + GRACE_S
        if time.monotonic() > started + END_S:
            raise OSError(f"processes {', '.join(map(str, sorted(inside)))} of cluster {name} did not end when killed")
        for pid in inside - (ended if is_grace else set()):
            _signal(pid, name, signal.SIGTERM if is_grace else signal.SIGKILL)
        ended |= inside
        time.sleep(0.02)
    return len(ended)


def _signal(pid: int, name: str, number: signal.Signals) -> None:
    """Send a signal to a process if it is still in the cluster: its id may have been reused for another process."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if pid in processes_inside(name):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Wait until a process ends, for at most `timeout_s` seconds. Return whether it ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def take_down(name: str) -> None:
    """Remove a cluster that `paceline cluster up` started, and wait until its keeper has ended.

    Raises UsageError if this user has no such cluster, or if it belongs to a running process. Raises RunError if the
    keeper does not end within `DOWN_S`.
    """
    keeper = find_keeper(name, living_keepers())
    if keeper.layout.parent:
        raise UsageError(
            f"cluster {name} belongs to process {keeper.layout.parent}, which removes it at its end; stop that "
            "process instead"
        )
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(keeper.pid)
        try:
            if _layout_of_keeper(keeper.pid) == keeper.layout:  # its id may have been reused for another process
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        finally:
            os.close(descriptor)
    if not wait_for_end(keeper.pid, DOWN_S):
        raise RunError(f"cluster {name} did not end within {DOWN_S:g} s; its keeper is process {keeper.pid}")


@dataclass(frozen=True)
class Leftovers:
    """The leftovers of one cluster that `prune` removed: the number of processes, and the cgroups.

    The kernel removes the cluster's networks when the last process inside has ended.
    """

    name: str
    num_processes: int
    cgroups: tuple[str, ...]


def prune() -> list[Leftovers]:
    """Remove the leftovers of every cluster whose keeper (managing process) has ended."""
    names = sorted({*labelled_groups(), *clusters_by_process().values()})
    # Keepers are listed after the clusters: a cluster that is just starting has a keeper before it has a cgroup.
    kept = {keeper.layout.name for keeper in living_keepers()}
    return [remove_leftovers(name) for name in names if name not in kept]


def remove_leftovers(name: str) -> Leftovers:
    """End the processes and remove the cgroups of a cluster whose keeper (managing process) has ended."""
    folders = labelled_groups().get(name, [])
    try:
        num_processes = end_processes(name)
        for folder in folders:
            remove_group(folder)
    except OSError as error:
        raise RunError(f"the leftovers of cluster {name} cannot be removed: {error}") from None
    return Leftovers(name, num_processes, tuple(map(str, folders)))
