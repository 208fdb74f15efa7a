"""Bytes that a worker's comm counted, by medium (network or shared memory) and by link."""

from __future__ import annotations

from typing import NamedTuple

from paceline.comm.base import Comm, Counter, Wire


def by_medium(comm: Comm, counter: Counter) -> dict[str, Wire]:
    """Return the bytes that this worker's counted operations put on each medium.

    A collective that uses both, as on the hierarchical comm with several hosts, counts as network.
    """
    parts = {"network": Counter(), "memory": Counter()}
    for (op, peer), nbytes in counter.nbytes.items():
        parts[comm._medium(op, peer)].nbytes[op, peer] = nbytes
    return {medium: comm.predict(part, comm.rank, comm.world_size) for medium, part in parts.items()}


class LinkBytes(NamedTuple):
    """A link from one rank to another."""

    sender: int
    receiver: int


def bytes_by_link(comm: Comm, counter: Counter) -> dict[LinkBytes, float]:
    """Return the bytes that this worker sent to each peer and received from each server.

    Bytes of a collective are assigned to links as the comm's algorithm sends them. Servers have ranks above the
    workers' and do not count their own traffic.
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
    """Return the medium of a link of this worker: network or memory."""
    peer = link.receiver if link.sender == comm.rank else link.sender
    reaching = comm if peer < comm.world_size or servers is None else servers
    return reaching._medium("send", peer)
