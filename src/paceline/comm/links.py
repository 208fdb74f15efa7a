"""Who handed how much to whom, from what a worker's comm counted."""

from __future__ import annotations

from typing import NamedTuple

from paceline.comm.base import Comm, Counter


class Link(NamedTuple):
    """From one rank to another."""

    sender: int
    receiver: int


def bytes_by_link(comm: Comm, counter: Counter) -> dict[Link, float]:
    """What this worker sent to each peer, collectives as the comm spreads them, and what servers sent to it.

    Servers stand behind the workers' world, and keep no books of their own.
    """
    found: dict[Link, float] = {}
    for (op, peer), nbytes in counter.nbytes.items():
        for receiver, share in comm.sent_to(op, peer, comm.rank, comm.world_size).items():
            link = Link(comm.rank, receiver)
            found[link] = found.get(link, 0.0) + share * nbytes
        if op == "recv" and peer is not None and peer >= comm.world_size:
            link = Link(peer, comm.rank)
            found[link] = found.get(link, 0.0) + nbytes
    return found


def medium_of(link: Link, comm: Comm, servers: Comm | None) -> str:
    """What carries messages on a link of this worker: the network, or memory."""
    peer = link.receiver if link.sender == comm.rank else link.sender
    reaching = comm if peer < comm.world_size or servers is None else servers
    return reaching._medium("send", peer)
