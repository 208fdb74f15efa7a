"""Traffic of a worker: counts operations of a comm, and converts them to bytes by medium and by link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from paceline.comm.base import Comm


@dataclass(frozen=True)
class Operation:
    """One call of the comm on one worker, with the bytes of the whole tensor (not of what the medium transfers)."""

    op: str  # send, recv, all_reduce, reduce_scatter, broadcast, gather, scatter, all_gather
    nbytes: int
    peer: int | None = None  # the other end of a message, the root of a collective that has one


class Wire(NamedTuple):
    """Bytes that one worker sends and receives on the medium."""

    sent_bytes: int
    received_bytes: int


@dataclass
class Counter:
    """Operations counted by kind and peer."""

    nbytes: dict[tuple[str, int | None], int] = field(default_factory=dict)
    calls: dict[tuple[str, int | None], int] = field(default_factory=dict)

    def add(self, operation: Operation) -> None:
        key = (operation.op, operation.peer)
        self.nbytes[key] = self.nbytes.get(key, 0) + operation.nbytes
        self.calls[key] = self.calls.get(key, 0) + 1

    def clear(self) -> None:
        self.nbytes.clear()
        self.calls.clear()

    @staticmethod
    def of(operations: Iterable[Operation]) -> Counter:
        counter = Counter()
        for operation in operations:
            counter.add(operation)
        return counter


class CommLink(NamedTuple):
    """A link from one rank to another."""

    sender: int
    receiver: int


def by_medium(comm: Comm, counter: Counter) -> dict[str, Wire]:
    """Return the bytes that this worker's counted operations put on each medium.

    A collective that uses memory and network, as on the hierarchical comm with several hosts, counts as network.
    """
    parts = {"network": Counter(), "memory": Counter()}
    for (op, peer), nbytes in counter.nbytes.items():
        parts[comm._medium(op, peer)].nbytes[op, peer] = nbytes
    return {medium: comm.predict(part, comm.rank, comm.world_size) for medium, part in parts.items()}


def bytes_by_link(comm: Comm, counter: Counter) -> dict[CommLink, float]:
    """Return the bytes that this worker sent to each peer and received from each server.

    Bytes of a collective are assigned to links as the comm's algorithm sends them. Servers have ranks above those of
    workers, and do not count their own traffic.
    """
    bytes_of: dict[CommLink, float] = {}
    for (op, peer), nbytes in counter.nbytes.items():
        for receiver, share in comm.sent_to(op, peer, comm.rank, comm.world_size).items():
            link = CommLink(comm.rank, receiver)
            bytes_of[link] = bytes_of.get(link, 0.0) + share * nbytes
        if op == "recv" and peer is not None and peer >= comm.world_size:
            link = CommLink(peer, comm.rank)
            bytes_of[link] = bytes_of.get(link, 0.0) + nbytes
    return bytes_of


def medium_of(link: CommLink, comm: Comm, servers: Comm | None) -> str:
    """Return the medium between this worker and a peer: network or memory."""
    peer = link.receiver if link.sender == comm.rank else link.sender
    comm_of_peer = comm if peer < comm.world_size or servers is None else servers
    return comm_of_peer._medium("send", peer)
