"""Who hands how much to whom: what a worker's comm counted, beside what its strategy predicts."""

from __future__ import annotations

from typing import Any

from paceline.comm import Counter
from paceline.comm.links import bytes_by_link, medium_of
from paceline.strategies import Strategy, Worker

# Predicted step by step up to here, and from then on in proportion: strategies repeat themselves much sooner.
PREDICTED_STEPS = 1000


def own_links(worker: Worker, strategy: Strategy, num_steps: int) -> list[dict[str, Any]]:
    """What this worker sent over each of its links, and what servers sent to it, as plain values."""
    comm = worker.comm
    counted = bytes_by_link(comm, comm.counter)
    predicted = bytes_by_link(comm, _predicted(worker, strategy, min(num_steps, PREDICTED_STEPS)))
    scale = max(num_steps / PREDICTED_STEPS, 1.0)
    return [
        {
            "from": link.sender,
            "to": link.receiver,
            "bytes": round(counted.get(link, 0.0)),
            "predicted_bytes": round(scale * predicted.get(link, 0.0)),
            "medium": medium_of(link, comm, worker.servers),
        }
        for link in sorted(counted.keys() | predicted.keys())
    ]


def _predicted(worker: Worker, strategy: Strategy, num_steps: int) -> Counter:
    rank, world_size = worker.comm.rank, worker.comm.world_size
    steps = (strategy.traffic(worker.specs, rank, world_size, step) for step in range(num_steps))
    return Counter.of(operation for operations in steps for operation in operations)
