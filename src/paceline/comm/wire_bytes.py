"""What a comm carries, by medium: the network, or memory that workers of one host share.

Who handed how much to whom, from what a worker's comm counted."""

from __future__ import annotations

from typing import NamedTuple

from paceline.comm.base import Comm, Counter, Wire


def by_medium(comm: Comm, counter: Counter) -> dict[str, Wire]:
    """Bytes that counted operations put on each medium, for this worker.

    Where a collective goes through both, as between several hosts of the hierarchical comm, it counts as network.
    """
    parts = {"network": Counter(), "memory": Counter()}
    for (op, peer), nbytes in counter.nbytes.items():
        parts[comm._medium(op, peer)].nbytes[op, peer] = nbytes
    return {medium: comm.predict(part, comm.rank, comm.world_size) for medium, part in parts.items()}


class LinkBytes(NamedTuple):
    """From one rank to another."""

    sender: int
    receiver: int


def bytes_by_link(comm: Comm, counter: Counter) -> dict[LinkBytes, float]:
    """What this worker sent to each peer, collectives as the comm spreads them, and what servers sent to it.

    Servers stand behind the workers' world, and keep no books of their own.
    """
    found: dict[LinkBytes, float] = {}
    for (op, peer), nbytes in counter.nbytes.items():
        for receiver, share in comm.sent_to(op, peer, comm.rank, comm.world_size).items():
            link = LinkBytes(comm.rank, receiver)
            found[link] = found.get(link, 0.0) + share * nbytes
        if op == "recv" and peer is not None and peer >= comm.world_size:
            link = LinkBytes(peer, comm.rank)
            found[link] = found.get(link, 0.0) + nbytes
    return found


def medium_of(link: LinkBytes, comm: Comm, servers: Comm | None) -> str:
    """What carries messages on a link of this worker: the network, or memory."""
    peer = link.receiver if link.sender == comm.rank else link.sender
    reaching = comm if peer < comm.world_size or servers is None else servers
    return reaching._medium("send", peer)
