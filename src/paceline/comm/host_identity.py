"""Which host a process runs on, as far as sharing memory goes."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def host_identity() -> str:
    """A name that differs between hosts, between two starts of one, and between containers that hide their processes.

    Processes of different users have different names, too: they cannot open each other's memory.
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
