"""Strategy `ring-reduce`: gradients are summed from the first worker to the last, which sends the mean back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.codecs import TensorSpec
from paceline.comm import Comm, Operation, Work
from paceline.strategies.base import Worker
from paceline.strategies.gradients import GradientsOrWeights
from paceline.strategies.ring import AHEAD, PIECE_BYTES, BufferPool, pool_bytes, split_pieces


@dataclass(kw_only=True)
class RingReduce(GradientsOrWeights):
    """The sum travels along the chain of workers to the last one, and the mean travels back.

    Each link between neighbours carries sums in one direction and means in the other, at the same time. Unlike in
    `ring`, the whole vector passes every link in both directions.
    """

    name: ClassVar[str] = "ring-reduce"
    fused: ClassVar[bool] = True
    is_tried: ClassVar[bool] = False  # not tried by `tune`, because `ring` sends less

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        self._pool = BufferPool()

    def sum(self, tensor: Tensor) -> None:
        sum_there_and_back(tensor.view(-1), self.worker.comm, self._pool)

    def sum_bytes(self, spec: TensorSpec, rank: int, world_size: int) -> int:  # noqa: ARG002
        return pool_bytes(spec.nbytes)

    def sum_traffic(self, spec: TensorSpec, rank: int, world_size: int) -> list[Operation]:
        neighbours = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < world_size]
        return [Operation(op, spec.nbytes, peer) for peer in neighbours for op in ("send", "recv")]


def sum_there_and_back(
    vector: Tensor, comm: Comm, pool: BufferPool | None = None, *, piece_bytes: int = PIECE_BYTES
) -> None:
    """Sum a vector over workers in place: reduce from the first worker to the last, then send the sum back.

    The vector is sent in equal pieces, and a worker forwards each piece as soon as it has added its own values. While
    final sums of earlier pieces return, the worker adds to later pieces, so both directions are busy at the same time.
    """
    rank, last = comm.rank, comm.world_size - 1
    pieces = split_pieces(vector, piece_bytes)
    count = len(pieces)
    if last == 0 or count == 0:
        return
    buffers = (pool or BufferPool()).buffers(vector, pieces[0].numel(), AHEAD)
    sums: list[tuple[Work, Tensor]] = []
    results: list[Work] = []
    sends: list[Work] = []

    def post_receives(index: int) -> None:
        """Post receives for all pieces up to and including piece `index`.

        Partial sums from rank - 1 are received into buffers. Final sums from rank + 1 are received into the vector.
        """
        for piece in pieces[len(sums) : index + 1] if rank > 0 else []:
            target = buffers[len(sums) % AHEAD][: piece.numel()]
            sums.append((comm.irecv(target, rank - 1), target))
        for piece in pieces[len(results) : index + 1] if rank < last else []:
            results.append(comm.irecv(piece, rank + 1))

    lag = 2 * (last - rank)  # hops of a piece from here to the last worker and back
    post_receives(AHEAD - 1)
    for index in range(count + lag):
        if index < count:
            if rank > 0:
                work, received = sums[index]
                work.wait()
                comm.add(pieces[index], received)
            if rank < last:
                sends.append(comm.isend(pieces[index], rank + 1))
            post_receives(index + AHEAD)
        if index >= lag:
            if rank < last:
                results[index - lag].wait()
            if rank > 0:
                sends.append(comm.isend(pieces[index - lag], rank - 1))
    for send in sends:
        send.wait()
