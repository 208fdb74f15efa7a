"""Who hands how much to whom: what a worker's comm counted, beside what its strategy predicts."""

from __future__ import annotations

from typing import Any

from paceline.comm import Comm, Counter
from paceline.strategies import Strategy, Worker

# Predicted step by step up to here, and from then on in proportion: strategies repeat themselves much sooner.
PREDICTED_STEPS = 1000


def own_links(worker: Worker, strategy: Strategy, num_steps: int) -> list[dict[str, Any]]:
    """What this worker sent to each peer, and what servers, which keep no books, sent to it."""
    comm = worker.comm
    counted = _by_link(comm, comm.counter)
    predicted = _by_link(comm, _predicted(worker, strategy, min(num_steps, PREDICTED_STEPS)))
    scale = max(num_steps / PREDICTED_STEPS, 1.0)
    return [
        {
            "from": sender,
            "to": receiver,
            "bytes": round(counted.get((sender, receiver), 0.0)),
            "predicted_bytes": round(scale * predicted.get((sender, receiver), 0.0)),
            "medium": comm.medium,
        }
        for sender, receiver in sorted(counted.keys() | predicted.keys())
    ]


def _predicted(worker: Worker, strategy: Strategy, num_steps: int) -> Counter:
    rank, world_size = worker.comm.rank, worker.comm.world_size
    steps = (strategy.traffic(worker.specs, rank, world_size, step) for step in range(num_steps))
    return Counter.of(operation for operations in steps for operation in operations)


def _by_link(comm: Comm, counter: Counter) -> dict[tuple[int, int], float]:
    links: dict[tuple[int, int], float] = {}
    for (op, peer), nbytes in counter.nbytes.items():
        for receiver, share in comm.sent_to(op, peer, comm.rank, comm.world_size).items():
            links[comm.rank, receiver] = links.get((comm.rank, receiver), 0.0) + share * nbytes
        if op == "recv" and peer is not None and peer >= comm.world_size:
            links[peer, comm.rank] = links.get((peer, comm.rank), 0.0) + nbytes
    return links
