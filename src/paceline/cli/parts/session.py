"""What run, compare and verify share: a launcher, and an interruption that ends in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import RunError
from paceline.launch.base import Launcher
from paceline.launch.local import LocalLauncher, Nodes
from paceline.launch.torchrun import TorchrunLauncher


def count_nodes(nodes: Nodes) -> int:
    """Hosts that the workers of this command are on."""
    return TorchrunLauncher.num_nodes() if TorchrunLauncher.is_here() else nodes.num_nodes


@contextmanager
def launched(num_processes: int, nodes: Nodes) -> Iterator[Launcher]:
    """Workers by whoever starts them here; they are gone when this ends, however it ends."""
    launcher: Launcher = TorchrunLauncher() if TorchrunLauncher.is_here() else LocalLauncher(num_processes, nodes)
    try:
        with launcher:
            yield launcher
    except KeyboardInterrupt as error:
        interrupted = RunError("interrupted: all workers are stopped")
        for note in getattr(error, "__notes__", []):
            interrupted.add_note(note)
        raise interrupted from None
