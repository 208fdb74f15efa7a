"""Strategy `gossip`: in each step every worker averages its weights with those of one peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.codecs import TensorSpec
from paceline.comm import Operation
from paceline.strategies.base import Guarantee, Worker, joined_size
from paceline.strategies.capabilities import Drifting
from paceline.strategies.ring import split_pieces
from paceline.strategies.weights import (
    SEND_BUFFERS,
    Outbox,
    WeightAveraging,
    bound_drift,
    new_vector,
    pairwise_means,
    unpack,
)


@dataclass(kw_only=True)
class Gossip(WeightAveraging, Drifting):
    """All weights go to one peer per step, at distance 1, 2, 4, ... in turn; each worker averages two replicas.

    In a step every worker sends its replica to one peer, receives the replica of another, and continues from the mean
    of its own and the received one. So all replicas have the same influence after any number of steps. Without
    optimiser updates between these steps, N replicas would all equal their exact mean after log2 N steps if N is a
    power of two, and would approach their mean otherwise.
    """

    name: ClassVar[str] = "gossip"
    paper: ClassVar[str] = "Assran et al. 2019, arXiv:1811.10792; Ying et al. 2021, arXiv:2110.13363"

    num_vectors: ClassVar[int] = SEND_BUFFERS + 1

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.PARTIAL

    def drift_bound(self, num_workers: int) -> float:
        steps = range((num_workers - 1).bit_length())
        return bound_drift([pairwise_means(num_workers, peer_distance(num_workers, step)) for step in steps or [0]])

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        self._outbox = Outbox(worker)
        self._received: Tensor | None = None

    def average(self, step: int) -> None:
        comm, parameters = self.worker.comm, self.worker.parameters
        if comm.world_size == 1:
            return
        if self._received is None:
            self._received = new_vector(parameters)
        distance = peer_distance(comm.world_size, step)
        target, source = (comm.rank + distance) % comm.world_size, (comm.rank - distance) % comm.world_size
        arriving = split_pieces(self._received)
        receives = [comm.irecv(part, source) for part in arriving]
        vector, sends = self._outbox.copy()
        own = split_pieces(vector)
        sends += [comm.isend(part, target) for part in own]
        for receive, received, part in zip(receives, arriving, own, strict=True):
            receive.wait()
            comm.mix(received, part, 0.5)  # `part` must not change, because it is still being sent
        unpack(self._received, parameters)

    def finish(self) -> None:
        self._outbox.drain()
        super().finish()

    def traffic_period(self, world_size: int) -> int:
        return max((world_size - 1).bit_length(), 1)

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:
        if world_size == 1:
            return []
        distance, nbytes = peer_distance(world_size, step), joined_size(tensors).nbytes
        target, source = (rank + distance) % world_size, (rank - distance) % world_size
        return [Operation("send", nbytes, target), Operation("recv", nbytes, source)]


def peer_distance(num_workers: int, step: int) -> int:
    """Return the distance in ranks from each worker to the peer that it sends to in a step; 0 with a single worker.

    From step to step, the distance cycles through the powers of two below the number of workers.
    """
    num_shifts = (num_workers - 1).bit_length()
    return 1 << step % num_shifts if num_shifts else 0
