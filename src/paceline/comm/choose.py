"""Comm `auto`: choose the communication backend from the placement of the workers."""

from __future__ import annotations

from paceline.comm import comms

AUTO = "auto"


def choose_comm(*, num_workers: int, num_nodes: int = 1, device: str = "cpu") -> str:
    """Return shm within one host, hierarchical for hosts with several workers, else torch."""
    preferred = "torch"
    if device == "cpu" and num_workers > 1:
        if num_nodes == 1:
            preferred = "shm"
        elif num_workers > num_nodes:
            preferred = "hierarchical"
    comm = comms.classes.get(preferred)
    return preferred if comm is not None and not comm.unavailable() else "torch"
