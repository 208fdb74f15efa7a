"""`auto`: the comm that suits where the workers are."""

from __future__ import annotations

from paceline.comm import comms

AUTO = "auto"


def choose_comm(*, num_workers: int, num_nodes: int = 1, device: str = "cpu") -> str:
    """Shared memory within a host, a ring between hosts that have several workers each, else torch."""
    preferred = "torch"
    if device == "cpu" and num_workers > 1:
        if num_nodes == 1:
            preferred = "shm"
        elif num_workers > num_nodes:
            preferred = "hierarchical"
    comm = comms.classes.get(preferred)
    return preferred if comm is not None and not comm.unavailable() else "torch"
