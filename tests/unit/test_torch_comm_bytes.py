"""Bytes that the torch comm predicts, against those that the kernel counts."""

from __future__ import annotations

import pytest

from helpers import on_pool
from kernel import can_count_loopback, can_count_sockets, traffic_of
from paceline.launch.local import LocalPool

OPERATIONS = ["all_reduce", "ring", "broadcast", "gather and scatter"]
# Headers, acknowledgements and the barriers around an operation come on top of the payload: well below this.
TOLERANCE = 0.05

Workers = list[dict[str, int]]


@pytest.fixture(scope="module", params=[(name, size) for name in OPERATIONS for size in (3, 4)], ids=str)
def workers(request: pytest.FixtureRequest, pool: LocalPool) -> Workers:
    operation, world_size = request.param
    return on_pool(pool, world_size, traffic_of, operation=operation)


@pytest.mark.skipif(not can_count_sockets(), reason="this kernel gives no byte counts per TCP connection (TCP_INFO)")
def test_each_workers_connections_carry_what_is_predicted(workers: Workers) -> None:
    for worker in workers:
        # A worker that only receives still sends its part of the barriers: a few hundred bytes.
        sent, received = worker["predicted_sent_bytes"], worker["predicted_received_bytes"]
        assert worker["sent_bytes"] == pytest.approx(sent, rel=TOLERANCE, abs=10_000)
        assert worker["received_bytes"] == pytest.approx(received, rel=TOLERANCE, abs=10_000)


@pytest.mark.skipif(not can_count_loopback(), reason="there is no loopback interface named lo to count at")
def test_the_loopback_interface_carries_what_is_predicted(workers: Workers) -> None:
    predicted = sum(worker["predicted_sent_bytes"] for worker in workers)
    moved = workers[0]["loopback_bytes"]
    assert moved >= predicted  # others can only add to it
    ours = sum(worker["sent_bytes"] for worker in workers)
    if can_count_sockets() and moved > ours * (1 + TOLERANCE):
        pytest.skip(f"others moved {(moved - ours) / 1e6:.0f} MB over the loopback interface at the same time")
    assert moved <= predicted * (1 + TOLERANCE)
