"""To whom bytes go: as comms say, as they count, and as the kernel sees it."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import on_pool
from kernel import bytes_by_connection, can_count_sockets
from paceline.comm import Counter, Operation, comms
from paceline.comm.threads import ThreadsComm
from paceline.comm.traffic_counts import CommLink, bytes_by_link
from paceline.launch.local import LocalPool

COLLECTIVES = ["all_reduce", "reduce_scatter", "broadcast", "gather", "scatter", "all_gather"]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("op", COLLECTIVES)
@pytest.mark.parametrize("name", list(comms.classes))
def test_what_goes_to_each_peer_is_what_is_sent(name: str, op: str, world_size: int) -> None:
    comm = comms.classes[name]
    for root in range(world_size) if op in ("broadcast", "gather", "scatter") else [None]:
        received = [0.0] * world_size
        for rank in range(world_size):
            parts = comm.sent_to(op, root, rank, world_size)
            assert rank not in parts
            assert sum(parts.values()) == pytest.approx(comm.wire_factors(op, root, rank, world_size)[0])
            for peer, share in parts.items():
                received[peer] += share
        if name in ("torch", "threads"):  # in shared memory many read what was written once
            factors = [comm.wire_factors(op, root, rank, world_size)[1] for rank in range(world_size)]
            assert received == pytest.approx(factors)


def test_messages_and_servers() -> None:
    comm = ThreadsComm.world(2, 1.0)[1]
    operations = [Operation("send", 10, 0), Operation("recv", 7, 0), Operation("send", 5, 2), Operation("recv", 3, 2)]
    assert bytes_by_link(comm, Counter.of(operations)) == {CommLink(1, 0): 10, CommLink(1, 2): 5, CommLink(2, 1): 3}


@pytest.mark.skipif(not can_count_sockets(), reason="this kernel gives no byte counts per TCP connection (TCP_INFO)")
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "broadcast", "gather"])
def test_the_kernel_sees_the_same_links(op: str, pool: LocalPool) -> None:
    """Each connection is known to both of its ends by its two ports."""
    workers: list[dict[str, Any]] = on_pool(pool, 4, bytes_by_connection, operation=op)
    ends = {ports: rank for rank, worker in enumerate(workers) for ports in worker["sent"]}
    for rank, worker in enumerate(workers):
        seen = dict.fromkeys(range(4), 0.0)
        for ports, nbytes in worker["sent"].items():
            peer = ends.get(":".join(reversed(ports.split(":"))))
            if peer is not None:
                seen[peer] += nbytes
        predicted = comms.get("torch").sent_to(op, worker["root"], rank, 4)
        for peer in range(4):
            # Headers and barriers come on top of the payload.
            expected = predicted.get(peer, 0.0) * worker["nbytes"]
            assert seen[peer] == pytest.approx(expected, rel=0.05, abs=20_000), (rank, peer)
