"""Who hands how much to whom: what a worker's comm counted, beside what its strategy predicts."""

from __future__ import annotations

from paceline.comm.links import bytes_by_link, medium_of
from paceline.results.run import Link
from paceline.strategies import Strategy, Worker
from paceline.train.traffic import predicted_traffic


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
