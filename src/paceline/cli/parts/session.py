"""What commands that start workers share: a launcher, and an interruption that ends in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from paceline.errors import RunError, UsageError
from paceline.launch.base import Launcher, Request, WorkerPool
from paceline.launch.registry import find_launcher
from paceline.recipe import ClusterConfig


def launcher_for(launch: Request, cluster: ClusterConfig, *, only_once: str = "") -> Launcher:
    """The launcher that a command's options and its cluster ask for; every mistake in them is found here.

    `only_once` names a command that decides on the way what runs next, so that it cannot run in several processes.
    """
    launcher = find_launcher(replace(launch, cluster=cluster))
    if only_once and not launcher.starts_all:
        raise UsageError(
            f"{only_once} starts all workers itself; run it once, without {launcher.because}, or with --hosts"
        )
    launcher.check()
    return launcher


def where(launcher: Launcher) -> str:
    """Where workers are, as the end of a sentence; empty for plain processes."""
    words = launcher.describe().words
    return f", {words}" if words else ""


@contextmanager
def launched(num_processes: int, launcher: Launcher) -> Iterator[WorkerPool]:
    """Workers, ended when the block ends; Ctrl-C becomes one sentence."""
    try:
        with launcher.open(num_processes) as pool:
            yield pool
    except KeyboardInterrupt as error:
        interrupted = RunError("interrupted: all workers are stopped")
        for note in getattr(error, "__notes__", []):
            interrupted.add_note(note)
        raise interrupted from None
