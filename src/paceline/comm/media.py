"""What a comm carried, by medium: the network, or memory that workers of one host share."""

from __future__ import annotations

from paceline.comm.base import Comm, Counter


def carried_bytes(comm: Comm) -> dict[str, int]:
    """The comm's own count so far: what went over the network in both directions, and what was put into memory.

    Where a collective goes through both, as between several hosts of the hierarchical comm, it counts as network.
    """
    counters = {"network": Counter(), "memory": Counter()}
    for key, nbytes in comm.counter.nbytes.items():
        counters[comm._medium(*key)].nbytes[key] = nbytes
    network, memory = (comm.predict(counters[name], comm.rank, comm.world_size) for name in ("network", "memory"))
    return {
        "network_sent_bytes": network.sent_bytes,
        "network_received_bytes": network.received_bytes,
        "memory_sent_bytes": memory.sent_bytes,
    }
