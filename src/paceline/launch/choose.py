"""The launcher that suits a request: torchrun's, hosts over ssh, emulated nodes, or plain processes."""

from __future__ import annotations

from paceline.errors import UsageError
from paceline.launch.base import Launcher
from paceline.launch.hosts import Hosts, HostsLauncher
from paceline.launch.local import LocalLauncher, Nodes
from paceline.launch.torchrun import TorchrunLauncher
from paceline.recipe import ClusterConfig


def make_launcher(
    num_processes: int, nodes: Nodes | Hosts | None = None, cluster: ClusterConfig | None = None
) -> Launcher:
    """Room for the workers and servers of the largest task; what does not go together is refused here."""
    has_cluster = cluster is not None and cluster.nodes > 0
    if TorchrunLauncher.is_here():
        if has_cluster:
            raise UsageError("--cluster starts workers on emulated nodes itself; leave torchrun out, or --cluster")
        if isinstance(nodes, Hosts):
            raise UsageError("--hosts starts workers on hosts itself; leave torchrun out, or --hosts")
        return TorchrunLauncher()
    if isinstance(nodes, Hosts):
        if has_cluster:
            raise UsageError("--cluster emulates nodes on this host, --hosts uses real ones; give one of the two")
        return HostsLauncher(num_processes, nodes)
    return LocalLauncher(num_processes, nodes, cluster)
