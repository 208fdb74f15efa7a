"""What commands that start workers share: a launcher, and an interruption that ends in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import RunError, UsageError
from paceline.launch.base import Launcher
from paceline.launch.choose import make_launcher
from paceline.launch.hosts import Hosts
from paceline.launch.local import Nodes
from paceline.launch.torchrun import TorchrunLauncher
from paceline.recipe import ClusterConfig


def count_nodes(nodes: Nodes | Hosts) -> int:
    """Hosts that the workers of this command are on, emulated ones left out."""
    return TorchrunLauncher.num_nodes() if TorchrunLauncher.is_here() else nodes.num_nodes


def refuse_other_parents(command: str, nodes: Nodes | Hosts) -> None:
    """Of a command that decides on the way what to run next: several processes would have to decide alike."""
    if TorchrunLauncher.is_here() or (isinstance(nodes, Nodes) and nodes.num_nodes > 1):
        started = "torchrun" if TorchrunLauncher.is_here() else "--nnodes"
        raise UsageError(f"{command} starts all workers itself; run it once, without {started}, or with --hosts")


def where(nodes: Nodes | Hosts, cluster: ClusterConfig) -> str:
    """What a command says of where its workers are, behind how many; nothing where they are plain processes."""
    if isinstance(nodes, Hosts):
        return f", on {', '.join(nodes.names)}"
    return f", on emulated nodes ({cluster})" if cluster.nodes else ""


@contextmanager
def launched(num_processes: int, nodes: Nodes | Hosts, cluster: ClusterConfig | None = None) -> Iterator[Launcher]:
    """Workers by whoever starts them here; they are gone when this ends, however it ends, and a cluster with them."""
    launcher = make_launcher(num_processes, nodes, cluster)
    try:
        with launcher:
            yield launcher
    except KeyboardInterrupt as error:
        interrupted = RunError("interrupted: all workers are stopped")
        for note in getattr(error, "__notes__", []):
            interrupted.add_note(note)
        raise interrupted from None
