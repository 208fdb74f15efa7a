"""What commands that start workers share: a launcher, and an interruption that ends in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import RunError, UsageError
from paceline.launch.base import Launcher
from paceline.launch.hosts import Hosts, HostsLauncher
from paceline.launch.local import LocalLauncher, Nodes
from paceline.launch.torchrun import TorchrunLauncher
from paceline.recipe import ClusterConfig


def count_nodes(nodes: Nodes | Hosts) -> int:
    """Hosts that the workers of this command are on, emulated ones left out."""
    return TorchrunLauncher.num_nodes() if TorchrunLauncher.is_here() else nodes.num_nodes


def where(nodes: Nodes | Hosts, cluster: ClusterConfig) -> str:
    """What a command says of where its workers are, behind how many; nothing where they are plain processes."""
    if isinstance(nodes, Hosts):
        return f", on {', '.join(nodes.names)}"
    return f", on emulated nodes ({cluster})" if cluster.nodes else ""


@contextmanager
def launched(num_processes: int, nodes: Nodes | Hosts, cluster: ClusterConfig | None = None) -> Iterator[Launcher]:
    """Workers by whoever starts them here; they are gone when this ends, however it ends, and a cluster with them."""
    launcher = launcher_for(num_processes, nodes, cluster or ClusterConfig())
    try:
        with launcher:
            yield launcher
    except KeyboardInterrupt as error:
        interrupted = RunError("interrupted: all workers are stopped")
        for note in getattr(error, "__notes__", []):
            interrupted.add_note(note)
        raise interrupted from None


def launcher_for(num_processes: int, nodes: Nodes | Hosts, cluster: ClusterConfig) -> Launcher:
    """Whoever starts workers here, before any is started."""
    if TorchrunLauncher.is_here():
        if cluster.nodes:
            raise UsageError("--cluster starts workers on emulated nodes itself; leave torchrun out, or --cluster")
        if isinstance(nodes, Hosts):
            raise UsageError("--hosts starts workers on hosts itself; leave torchrun out, or --hosts")
        return TorchrunLauncher()
    if isinstance(nodes, Hosts):
        if cluster.nodes:
            raise UsageError("--cluster emulates nodes on this host, --hosts uses real ones; give one of the two")
        return HostsLauncher(num_processes, nodes)
    return LocalLauncher(num_processes, nodes, cluster)
