"""What a comm carries, by medium: the network, or memory that workers of one host share."""

from __future__ import annotations

from paceline.comm.base import Comm, Counter, Wire


def by_medium(comm: Comm, counter: Counter) -> dict[str, Wire]:
    """Bytes that counted operations put on each medium, for this worker.

    Where a collective goes through both, as between several hosts of the hierarchical comm, it counts as network.
    """
    parts = {"network": Counter(), "memory": Counter()}
    for (op, peer), nbytes in counter.nbytes.items():
        parts[comm._medium(op, peer)].nbytes[op, peer] = nbytes
    return {medium: comm.predict(part, comm.rank, comm.world_size) for medium, part in parts.items()}
