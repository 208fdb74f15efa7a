"""Kernel byte counters of this process's TCP connections and of the loopback interface."""

from __future__ import annotations

import os
import socket
import stat
import struct
from typing import Any

import psutil
import torch

from helpers import build_for
from paceline.comm import Comm
from paceline.measure.network_counters import Connections, Traffic
from paceline.train.context import Context

NUM_NUMBERS = 9_231_114  # a VGG-11's gradients: 37 MB in float32
LOOPBACK = "lo"
ATTEMPTS = 3
BYTES_ACKED = 120  # where Linux's struct tcp_info has them


def can_count_sockets() -> bool:
    return Connections.open() is not None


def can_count_loopback() -> bool:
    return LOOPBACK in psutil.net_io_counters(pernic=True)


def loopback_bytes() -> int:
    counters = psutil.net_io_counters(pernic=True)
    return int(counters[LOOPBACK].bytes_sent) if LOOPBACK in counters else 0


def _connections() -> dict[str, int]:
    """Return the bytes that peers acknowledged on each TCP connection of this process, by its two ports."""
    found: dict[str, int] = {}
    if not can_count_sockets():
        return found
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as view:
                if view.family not in (socket.AF_INET, socket.AF_INET6) or view.type != socket.SOCK_STREAM:
                    continue
                info = view.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                ports = f"{view.getsockname()[1]}:{view.getpeername()[1]}"
        except OSError:
            continue  # just closed, or not connected
        found[ports] = struct.unpack_from("Q", info, BYTES_ACKED)[0]
    return found


def bytes_by_connection(context: Context, operation: str) -> dict[str, Any]:
    """Return the bytes that an operation sent on each connection of this worker, as counted by the kernel."""
    comm, root = context.comm, 1 if operation in ("broadcast", "gather") else None
    tensor = torch.ones(1_000_000)
    comm.barrier()
    before = _connections()
    match operation:
        case "all_reduce":
            comm.all_reduce(tensor)
        case "all_gather":
            comm.all_gather(tensor)
        case "broadcast":
            comm.broadcast(tensor, 1)
        case "gather":
            comm.gather(tensor, 1)
    comm.barrier()
    sent = {ports: count - before.get(ports, 0) for ports, count in _connections().items()}
    return {"sent": sent, "root": root, "nbytes": tensor.numel() * tensor.element_size()}


def traffic_of(context: Context, operation: str) -> dict[str, int]:
    """Return the bytes of an operation as counted by the kernel and as predicted for this worker."""
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
    # Other processes can only increase the interface's counter, so the smallest of several values is the best.
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
