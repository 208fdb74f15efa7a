"""Traffic of a worker over a run: predicted by its strategy, and compared with the counted bytes of each link."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.codecs import TensorSpec
from paceline.comm.base import Counter
from paceline.comm.wire_bytes import bytes_by_link, medium_of
from paceline.results.run import Link
from paceline.strategies import Strategy, Worker


def predicted_traffic(
    strategy: Strategy, tensors: Sequence[TensorSpec], *, rank: int, world_size: int, num_steps: int
) -> Counter:
    """Predict the operations of one worker over a number of steps, from those of one period."""
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


def own_links(worker: Worker, predicted_operations: Counter) -> list[Link]:
    """Return the counted and predicted bytes of each link of this worker, including those that servers sent to it."""
    comm = worker.comm
    counted = bytes_by_link(comm, comm.counter)
    predicted = bytes_by_link(comm, predicted_operations)
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
