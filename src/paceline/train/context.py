"""Where a worker finds itself: its place in the world, its comm, and whom it tells about progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from paceline.comm import Comm

CPU = torch.device("cpu")
Event = dict[str, Any]


def _tell_nobody(event: Event) -> None:  # noqa: ARG001
    return None


@dataclass(frozen=True)
class Context:
    """One worker's surroundings for one task."""

    comm: Comm  # a server's reaches workers and servers
    device: torch.device = CPU
    emit: Callable[[Event], None] = _tell_nobody  # progress, as plain values; only rank 0 has a listener
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
