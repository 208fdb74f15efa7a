"""Count the operations that a worker runs on its comm, and convert them to bytes sent over network or memory.

Reports show these bytes by medium ("network", or "memory" shared by the workers of one host) and by link (sender and
receiver).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from paceline.comm.base import Comm


@dataclass(frozen=True)
class Operation:
    """One message or collective of one worker. `nbytes` is the size of the tensor, not of the transferred data."""

    op: str  # send, recv, all_reduce, reduce_scatter, broadcast, gather, scatter, all_gather
    nbytes: int
    peer: int | None = None  # the other end of a message, or the root of a collective; None if it has no root


class Wire(NamedTuple):
    """Bytes that one worker sends and receives."""

    sent_bytes: int
    received_bytes: int


@dataclass
class Counter:
    """Total tensor bytes and number of calls of one worker's operations, by operation and peer."""

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
    """A directed link between two workers: the rank of the sender and the rank of the receiver."""

    sender: int
    receiver: int


def by_medium(comm: Comm, counter: Counter) -> dict[str, Wire]:
    """Return the bytes that this worker sent and received over "network" and over "memory".

    A collective that uses both, as on the hierarchical comm with several hosts, counts as network.
    """
    parts = {"network": Counter(), "memory": Counter()}
    for (op, peer), nbytes in counter.nbytes.items():
        parts[comm._medium(op, peer)].nbytes[op, peer] = nbytes
    return {medium: comm.predict(part, comm.rank, comm.world_size) for medium, part in parts.items()}


def bytes_by_link(comm: Comm, counter: Counter) -> dict[CommLink, float]:
    """Return the bytes that this worker sent to each peer and received from each parameter server.

    Bytes of a collective are assigned to links as the comm's algorithm sends them. Parameter servers have ranks above
    those of the workers. Servers do not count their own traffic, so workers count the bytes that servers send to them.
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
    """Return the medium of a link from or to this worker: "network" or "memory".

    `comm` connects the worker to the other workers, and `servers` to the parameter servers, if there are any.
    """
    peer = link.receiver if link.sender == comm.rank else link.sender
    comm_of_peer = comm if peer < comm.world_size or servers is None else servers
    return comm_of_peer._medium("send", peer)
