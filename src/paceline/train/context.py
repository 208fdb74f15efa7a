"""Context, the first argument of a task's function in a worker process: comm, device and callbacks.

A comm is the transport between workers (gloo, nccl, shared memory and others).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline.comm import Comm
from paceline.errors import RunError
from paceline.results.value import Json

CPU = torch.device("cpu")
Event = Json  # progress report of a worker; the value of the key "kind" determines the other keys


def ignore_event(event: Event) -> None:
    """Progress callback that does nothing."""
    del event


def _no_rendezvous(name: str) -> Comm:
    raise RunError(f"comm {name!r} cannot be opened as a second comm: this worker has no rendezvous")


@dataclass(frozen=True)
class Context:
    """The comm, device and callbacks of one worker during one task."""

    comm: Comm  # connects the workers; on a parameter server: workers and servers
    device: torch.device = CPU
    emit: Callable[[Event], None] = ignore_event  # reports progress
    # Opens another comm by name. All workers call it in the same order, and the caller closes the comm.
    connect: Callable[[str], Comm] = _no_rendezvous
    servers: Comm | None = None  # connects workers and servers, which have the last ranks; None without servers

    def __post_init__(self) -> None:
        if self.servers is not None:
            self.servers.counter = self.comm.counter  # traffic to servers is counted too

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def world_size(self) -> int:
        return self.comm.world_size
