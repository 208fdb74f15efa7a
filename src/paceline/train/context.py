"""Where a worker finds itself: its place in the world, its comm, and whom it tells about progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline.comm import Comm
from paceline.errors import RunError
from paceline.results.value import Json

CPU = torch.device("cpu")
Event = Json  # progress of a worker: its `kind` says which keys there are


def ignore_event(event: Event) -> None:
    """For callers that show no progress."""
    del event


def _connect_nothing(name: str) -> Comm:
    raise RunError(f"comm {name!r} cannot be opened beside another here: nobody knows where the workers meet")


@dataclass(frozen=True)
class Context:
    """One worker's surroundings for one task."""

    comm: Comm  # a server's reaches workers and servers
    device: torch.device = CPU
    emit: Callable[[Event], None] = ignore_event  # progress, as plain values
    # Opens another comm for this task, by name. All workers ask in the same order; whoever asks closes it.
    connect: Callable[[str], Comm] = _connect_nothing
    servers: Comm | None = None  # workers and, behind them, servers, where the task has some

    def __post_init__(self) -> None:
        if self.servers is not None:
            self.servers.counter = self.comm.counter  # what goes to servers counts with the rest

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def world_size(self) -> int:
        return self.comm.world_size
