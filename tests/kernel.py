"""What the kernel says was moved, by this process and over the loopback interface."""

from __future__ import annotations

import psutil
import torch

from helpers import build_for
from paceline.comm import Comm
from paceline.measure.network import Connections, Traffic
from paceline.train.context import Context

NUM_NUMBERS = 9_231_114  # a VGG-11's gradients: 37 MB in float32
LOOPBACK = "lo"
ATTEMPTS = 3


def can_count_sockets() -> bool:
    return Connections.open() is not None


def can_count_loopback() -> bool:
    return LOOPBACK in psutil.net_io_counters(pernic=True)


def loopback_bytes() -> int:
    counters = psutil.net_io_counters(pernic=True)
    return int(counters[LOOPBACK].bytes_sent) if LOOPBACK in counters else 0


def traffic_of(context: Context, operation: str) -> dict[str, int]:
    """What an operation moved, as the kernel counts it, and what was predicted for this worker."""
    comm = context.comm
    connections = Connections.open()
    attempts = []
    for _ in range(ATTEMPTS):
        tensor = torch.ones(NUM_NUMBERS)
        comm.barrier()
        loopback, before = loopback_bytes(), connections.read() if connections else Traffic()
        comm.barrier()
        comm.counter.clear()
        _move(comm, operation, tensor)
        comm.barrier()
        moved = connections.read().since(before) if connections else Traffic()
        attempts.append((loopback_bytes() - loopback, moved.sent_bytes, moved.received_bytes))
    # Others on this host only ever add to the interface's counter: the least is the nearest to what we moved.
    loopback, sent, received = min(attempts)
    predicted = comm.wire()
    return {
        "sent_bytes": sent,
        "received_bytes": received,
        "loopback_bytes": loopback,
        "predicted_sent_bytes": predicted.sent_bytes,
        "predicted_received_bytes": predicted.received_bytes,
    }


def _move(comm: Comm, operation: str, tensor: torch.Tensor) -> None:
    match operation:
        case "all_reduce":
            comm.all_reduce(tensor)
        case "ring":
            build_for("ring", comm).sum(tensor)
        case "broadcast":
            comm.broadcast(tensor, 1)
        case "gather and scatter":
            pieces = comm.gather(tensor, 0)
            comm.scatter(tensor, pieces, 0)
