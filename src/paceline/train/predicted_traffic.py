"""Who hands how much to whom: what a worker's comm counted, beside what its strategy predicts.

What a strategy should send over a whole run, from its own prediction for each step."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.codecs import TensorSpec
from paceline.comm.base import Counter
from paceline.comm.wire_bytes import bytes_by_link, medium_of
from paceline.results.run import Link
from paceline.strategies import Strategy, Worker


def own_links(worker: Worker, strategy: Strategy, num_steps: int) -> list[Link]:
    """What this worker sent over each of its links, and what servers sent to it."""
    comm = worker.comm
    counted = bytes_by_link(comm, comm.counter)
    place = {"rank": comm.rank, "world_size": comm.world_size}
    predicted = bytes_by_link(comm, predicted_traffic(strategy, worker.specs, num_steps=num_steps, **place))
    return [
        Link(
            source=link.sender,
            target=link.receiver,
            bytes=round(counted.get(link, 0.0)),
            predicted_bytes=round(predicted.get(link, 0.0)),
            medium=medium_of(link, comm, worker.servers),
        )
        for link in sorted(counted.keys() | predicted.keys())
    ]


def predicted_traffic(
    strategy: Strategy, tensors: Sequence[TensorSpec], *, rank: int, world_size: int, num_steps: int
) -> Counter:
    """The operations of one worker over the first so many steps; only those of one period are worked out."""
    total = Counter()
    period = strategy.traffic_period(world_size)
    whole, rest = divmod(num_steps, period)
    for step in range(min(period, num_steps)):
        times = whole + (step < rest)
        counter = Counter.of(strategy.traffic(tensors, rank, world_size, step))
        for key, nbytes in counter.nbytes.items():
            total.nbytes[key] = total.nbytes.get(key, 0) + times * nbytes
            total.calls[key] = total.calls.get(key, 0) + times * counter.calls[key]
    return total
