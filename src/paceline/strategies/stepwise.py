"""Strategy `stepwise`: weights travel round the ring once per step; each worker continues from the mean so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from paceline.codecs import TensorSpec
from paceline.comm import Operation, Work
from paceline.errors import UsageError
from paceline.results.value import Json
from paceline.strategies.base import Guarantee, Worker, joined_size
from paceline.strategies.capabilities import Drifting, Tunable
from paceline.strategies.ring import AHEAD, BufferPool, Ring, chunk_sizes, ring_all_reduce, split_pieces
from paceline.strategies.weights import (
    SEND_BUFFERS,
    Outbox,
    WeightAveraging,
    bound_drift,
    new_vector,
    rotation,
    running_means,
    unpack,
)

MEASURE_EVERY = 16  # steps between two measurements of how far averaging moved a replica
TAGS = 64  # the tag of a message contains the step modulo TAGS
FIRST_TRIP, FULL_MEAN = 0x5100, 0x5200  # tags, distinct from those of collectives


class _Leg(NamedTuple):
    """One worker's task in the trip of one chunk (`begin:end` of the vector) round the ring.

    The worker receives the chunk's mean so far, adds its own replica to the mean, and sends it on.
    """

    position: int  # number of workers that the chunk has passed before; the mean here is of position + 1 replicas
    begin: int
    end: int


@dataclass(kw_only=True)
class Stepwise(WeightAveraging, Drifting, Tunable):
    """Weights go once round the ring; each worker adds its replica to the mean so far, and continues from the result.

    The weights are divided into chunks, which start at different workers. The k-th worker that a chunk reaches
    continues from the mean of k replicas, which is called a partial mean. Ring all-reduce needs a second round to send
    the full mean to all workers. The start of each chunk moves back by one worker in every step, so over N steps all
    replicas have the same influence.
    """

    name: ClassVar[str] = "stepwise"

    num_vectors: ClassVar[int] = SEND_BUFFERS + 2  # one is a copy, to measure how far averaging moves a replica

    form: Literal["chunks", "whole"] = "chunks"  # whole: the vector is one chunk, which starts at one worker
    rotate: bool = True  # false: chunks always start at the same workers, which then dominate; for studies only
    exact_every: int = 0  # every so many steps, all workers get the full mean; 0: never
    correct: Literal["none", "delayed"] = "none"  # delayed: full means are sent as well, and applied one step later

    def __post_init__(self) -> None:
        if self.exact_every < 0:
            raise UsageError(
                f"option exact_every of strategy stepwise must be 0 (never) or more, not {self.exact_every}"
            )

    @property
    def guarantee(self) -> Guarantee:
        # With a fixed start the first worker dominates, unless the full mean corrects the replicas.
        return Guarantee.PARTIAL if self.rotate or self.correct == "delayed" else Guarantee.NONE

    def check(self, num_workers: int, optimizer: type[torch.optim.Optimizer]) -> None:
        super().check(num_workers, optimizer)
        every = self.exact_every
        shared = math.gcd(every, num_workers)
        if every and shared > 1:
            near = next(h for d in range(1, every + 2) for h in (every + d, every - d) if _is_coprime(h, num_workers))
            raise UsageError(
                f"exact_every={every} shares the factor {shared} with {num_workers} workers, so that some workers "
                f"would have more influence than others; use exact_every={near}"
            )

    def drift_bound(self, num_workers: int) -> float:
        trip = running_means(num_workers)
        if self.correct == "delayed":
            # Before every trip replicas differ by the updates of one step only: the series has one term.
            return bound_drift([torch.zeros_like(trip), trip])
        # The matrix is the same for all starts and steps if workers are numbered from the start.
        return bound_drift([trip @ rotation(num_workers) if self.rotate else trip])

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        self._outbox = Outbox(worker)
        self._pool = BufferPool()
        self._means: Tensor | None = None  # buffer into which full means are received
        # The partial means that this worker continued from, and for each chunk the pending receives of its full mean.
        self._pending_means: tuple[Tensor, list[tuple[_Leg, list[Work]]]] | None = None
        self._correction: Tensor | None = None  # to be added to the replica
        self._moves: list[tuple[Tensor, Tensor]] = []  # squared norms of the move and of the replica

    def average(self, step: int) -> None:
        comm, parameters = self.worker.comm, self.worker.parameters
        if comm.world_size == 1:
            return
        correction = self._await_correction()
        vector, sends = self._outbox.copy()
        if correction is not None:
            comm.add(vector, correction)
            self._correction = None
        before = vector.clone() if step % MEASURE_EVERY == 0 else None
        if self._is_exact(step):
            vector.div_(comm.world_size)
            ring_all_reduce(vector, comm, self._pool)
        else:
            legs = self._legs(vector.numel(), comm.rank, comm.world_size, step)
            self._one_trip(vector, legs, step, sends)
            if self.correct == "delayed":
                self._spread_means(vector, legs, step, sends)
        unpack(vector, parameters)
        if before is not None:
            self._moves.append(((vector - before).square().sum(), before.square().sum()))

    def finish(self) -> None:
        correction = self._await_correction()
        if correction is not None:
            vector, _ = self._outbox.copy()
            self.worker.comm.add(vector, correction)
            unpack(vector, self.worker.parameters)
            self._correction = None
        self._outbox.drain()
        super().finish()

    def traffic_period(self, world_size: int) -> int:
        return math.lcm(world_size if self.rotate else 1, max(self.exact_every, 1))

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:
        if world_size == 1:
            return []
        spec = joined_size(tensors)
        if self._is_exact(step):
            twice_round = Ring(codec=self.codec).sum_traffic(spec, rank, world_size)
            return [operation for operation in twice_round if operation.nbytes]
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        others = [peer for peer in range(world_size) if peer != rank]
        operations = []
        for leg in self._legs(spec.numel, rank, world_size, step):
            nbytes = (leg.end - leg.begin) * spec.itemsize
            if nbytes == 0:
                continue
            is_last = leg.position == world_size - 1
            if leg.position:
                operations.append(Operation("recv", nbytes, left))
            if not is_last:
                operations.append(Operation("send", nbytes, right))
            if self.correct == "delayed":
                if is_last:
                    operations += [Operation("send", nbytes, peer) for peer in others]
                else:
                    operations.append(Operation("recv", nbytes, self._last(leg, rank, world_size)))
        return operations

    def metrics(self) -> Json:
        """Return the mean, the maximum and the latest of the distances by which averaging moved this replica.

        Distances are relative to the replica's norm, and measured in every MEASURE_EVERY-th step.
        """
        if not self._moves:
            return {}
        moved = [float((distance / length).sqrt()) for distance, length in self._moves]
        return {"moved_mean": sum(moved) / len(moved), "moved_max": max(moved), "moved_last": moved[-1]}

    def state_dict(self) -> dict[str, Tensor]:
        correction = self._await_correction()
        state = super().state_dict()
        if correction is not None:
            state["correction"] = correction.clone()
        if self._moves:
            state["moves"] = torch.stack([torch.stack(move) for move in self._moves])
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self._correction = state["correction"].clone() if "correction" in state else None
        self._moves = [(distance, length) for distance, length in state["moves"]] if "moves" in state else []

    def _is_exact(self, step: int) -> bool:
        return self.exact_every > 0 and (step + 1) % self.exact_every == 0

    def _legs(self, numel: int, rank: int, world_size: int, step: int) -> list[_Leg]:
        """Return the task (leg) of worker `rank` for each chunk, in the order in which the chunks arrive."""
        sizes = chunk_sizes(numel, world_size) if self.form == "chunks" else [numel]
        start = -step if self.rotate else 0
        legs, begin = [], 0
        for chunk, size in enumerate(sizes):
            legs.append(_Leg((rank - start - chunk) % world_size, begin, begin + size))
            begin += size
        return sorted(legs)

    def _one_trip(self, vector: Tensor, legs: list[_Leg], step: int, sends: list[Work]) -> None:
        """Average each chunk of `vector` over the workers that it has reached, and start to send it to rank + 1.

        The average includes this worker. The sends are appended to `sends`. The last worker that a chunk reaches does
        not send the chunk.
        """
        comm = self.worker.comm
        right, left = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
        tag = FIRST_TRIP + step % TAGS
        arriving = [
            (leg.position, part) for leg in legs if leg.position for part in split_pieces(vector[leg.begin : leg.end])
        ]
        longest = max((part.numel() for _, part in arriving), default=0)
        buffers = self._pool.buffers(vector, longest, AHEAD)
        receives: list[tuple[Work, Tensor]] = []

        def post_receives(count: int) -> None:
            """Post receives until `count` are posted in total. Senders can then write directly into the buffers."""
            for index in range(len(receives), min(count, len(arriving))):
                target = buffers[index % AHEAD][: arriving[index][1].numel()]
                receives.append((comm.irecv(target, left, tag), target))

        post_receives(AHEAD)
        starting = [part for leg in legs if not leg.position for part in split_pieces(vector[leg.begin : leg.end])]
        sends += [comm.isend(part, right, tag) for part in starting]
        for index, (position, part) in enumerate(arriving):
            work, received = receives[index]
            work.wait()
            comm.mix(part, received, position / (position + 1))
            post_receives(index + 1 + AHEAD)
            if position < comm.world_size - 1:
                sends.append(comm.isend(part, right, tag))

    def _spread_means(self, vector: Tensor, legs: list[_Leg], step: int, sends: list[Work]) -> None:
        """Start to send each chunk's full mean directly to all other workers, and to receive the means of other chunks.

        The last worker on a chunk's trip has the full mean and sends it. Passing it on round a ring would not save
        bytes, and would interrupt the computation of every worker on the way. The means arrive during the next step.
        """
        comm = self.worker.comm
        tag = FULL_MEAN + step % TAGS
        if self._means is None:
            self._means = new_vector(self.worker.parameters)
        pending: list[tuple[_Leg, list[Work]]] = []
        for leg in legs:
            if leg.position == comm.world_size - 1:
                pending.append((leg, []))
                others = [peer for peer in range(comm.world_size) if peer != comm.rank]
                parts = split_pieces(vector[leg.begin : leg.end])
                sends += [comm.isend(part, peer, tag) for peer in others for part in parts]
            else:
                peer = self._last(leg, comm.rank, comm.world_size)
                parts = split_pieces(self._means[leg.begin : leg.end])
                pending.append((leg, [comm.irecv(part, peer, tag) for part in parts]))
        self._pending_means = vector, pending

    def _await_correction(self) -> Tensor | None:
        """Wait for the correction of this replica and return it. Return None if there is no correction.

        For each chunk, the correction is the full mean minus the partial mean from which this worker continued.
        """
        if self._pending_means is None:
            return self._correction
        assert self._means is not None
        used_means, pending = self._pending_means
        for leg, receives in pending:
            part = self._means[leg.begin : leg.end]
            for receive in receives:
                receive.wait()
            if leg.position == self.worker.comm.world_size - 1:
                part.zero_()  # this worker continued from the full mean
            else:
                part.sub_(used_means[leg.begin : leg.end])
        self._pending_means, self._correction = None, self._means
        return self._correction

    @staticmethod
    def _last(leg: _Leg, rank: int, world_size: int) -> int:
        """Return the rank where a chunk's trip ends with the full mean. `leg` is the task of `rank` in this trip."""
        return (rank - leg.position - 1) % world_size


def _is_coprime(every: int, num_workers: int) -> bool:
    return every > 0 and math.gcd(every, num_workers) == 1
