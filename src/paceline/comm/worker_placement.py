"""Placement of workers: which of them can share memory, and which comm suits a placement (`--comm auto`)."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from paceline.comm import comms

AUTO = "auto"


def choose_comm(*, num_workers: int, num_nodes: int = 1, device: str = "cpu") -> str:
    """Return the name of the comm for a placement of workers.

    On the CPU, several workers on one node use `shm`. Workers on several nodes use `hierarchical` if some node has more
    than one worker. In all other cases, and if this machine does not support the chosen comm, workers use `torch`.
    """
    preferred = "torch"
    if device == "cpu" and num_workers > 1:
        if num_nodes == 1:
            preferred = "shm"
        elif num_workers > num_nodes:
            preferred = "hierarchical"
    comm = comms.classes.get(preferred)
    return preferred if comm is not None and not comm.unavailable() else "torch"


def host_identity() -> str:
    """Return a name that is equal only for processes that can share memory.

    The name differs between hosts, between boots of a host, between containers with their own process namespace, and
    between users.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    processes = Path("/proc/self/ns/pid")
    words = [
        socket.gethostname(),
        boot.read_text().strip() if boot.exists() else "",
        os.readlink(processes) if processes.is_symlink() else "",
        str(os.getuid()) if hasattr(os, "getuid") else "",
    ]
    return " ".join(words)
