"""Table of operations that every comm must implement: the call, its expected result and its expected byte count.

Values are small whole numbers, so sums are exact in any order. Sizes are in float32: 4 bytes a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.comm import Comm
from paceline.train.context import Context

LENGTH = 6
NBYTES = 4 * LENGTH

Count = dict[tuple[str, int | None], tuple[int, int]]  # (op, peer) -> bytes, calls


def mine(rank: int, scale: int = 1) -> Tensor:
    return torch.arange(LENGTH, dtype=torch.float32) + 100 * scale * (rank + 1)


@dataclass(frozen=True)
class Row:
    do: Callable[[Comm], Any]
    expect: Callable[[int, int], Any]  # rank, world size
    count: Callable[[int, int], Count]


def run_row(context: Context, name: str) -> dict[str, Any]:
    comm = context.comm
    comm.counter.clear()
    result = OPERATIONS[name].do(comm)
    counter = comm.counter
    counted = {key: (counter.nbytes[key], counter.calls[key]) for key in counter.nbytes}
    comm.barrier()
    assert {key: (counter.nbytes[key], counter.calls[key]) for key in counter.nbytes} == counted, "a barrier is free"
    return {"result": result, "counted": counted, "wire": tuple(comm.wire())}


def _right(comm: Comm) -> int:
    return (comm.rank + 1) % comm.world_size


def _left(comm: Comm) -> int:
    return (comm.rank - 1) % comm.world_size


def _send_and_receive(comm: Comm) -> Any:
    """Exchange a message between rank 0 and every other rank."""
    received = torch.zeros(LENGTH)
    if comm.rank == 0:
        for peer in range(1, comm.world_size):
            comm.send(mine(peer, 3), peer)
            comm.recv(received, peer)
        return received.tolist()
    comm.recv(received, 0)
    comm.send(received + 1, 0)
    return received.tolist()


def _order(comm: Comm) -> Any:
    """Messages with one tag arrive in the order in which they were sent."""
    sends = [comm.isend(torch.full((LENGTH,), float(index)), _right(comm)) for index in range(4)]
    received = [torch.zeros(LENGTH) for _ in range(4)]
    for tensor in received:
        comm.recv(tensor, _left(comm))
    for send in sends:
        send.wait()
    return [float(tensor[0]) for tensor in received]


def _tags(comm: Comm) -> Any:
    """A receive takes the message with its tag, whatever the order of sending."""
    sends = [comm.isend(torch.full((LENGTH,), float(tag)), _right(comm), tag) for tag in (5, 6, 7)]
    received = {}
    for tag in (7, 5, 6):
        tensor = torch.zeros(LENGTH)
        comm.recv(tensor, _left(comm), tag)
        received[tag] = float(tensor[0])
    for send in sends:
        send.wait()
    return received


def _posted_order(comm: Comm) -> Any:
    """Receives match messages in the order in which they were posted, whatever the order of waiting."""
    received = [torch.zeros(LENGTH) for _ in range(3)]
    receives = [comm.irecv(tensor, _left(comm)) for tensor in received]
    sends = [comm.isend(torch.full((LENGTH,), float(index)), _right(comm)) for index in range(3)]
    for work in [*reversed(receives), *sends]:
        work.wait()
    return [float(tensor[0]) for tensor in received]


def _recv_any(comm: Comm) -> Any:
    if comm.rank != 0:
        comm.send(mine(comm.rank), 0, 9)
        return None
    found = {}
    for _ in range(1, comm.world_size):
        tensor = torch.zeros(LENGTH)
        peer = comm.recv_any(tensor, 9)
        found[peer] = tensor.tolist()
    return found


def _all_reduce(comm: Comm) -> Any:
    tensor = mine(comm.rank)
    comm.all_reduce(tensor)
    return tensor.tolist()


def _broadcasts(comm: Comm) -> Any:
    results = []
    for root in range(comm.world_size):
        tensor = mine(comm.rank)
        comm.broadcast(tensor, root)
        results.append(tensor.tolist())
    return results


def _gathers(comm: Comm) -> Any:
    return [[t.tolist() for t in comm.gather(mine(comm.rank), root)] for root in range(comm.world_size)]


def _scatters(comm: Comm) -> Any:
    results = []
    for root in range(comm.world_size):
        tensor = torch.zeros(LENGTH)
        pieces = [mine(rank, root + 1) for rank in range(comm.world_size)] if comm.rank == root else []
        comm.scatter(tensor, pieces, root)
        results.append(tensor.tolist())
    return results


def _all_gather(comm: Comm) -> Any:
    return [tensor.tolist() for tensor in comm.all_gather(mine(comm.rank))]


def _uncounted(comm: Comm) -> Any:
    with comm.uncounted():
        comm.all_reduce(torch.ones(LENGTH))
        with comm.uncounted():
            comm.broadcast(torch.ones(LENGTH), 0)
        comm.all_gather(torch.ones(LENGTH))  # leaving the inner block does not count again
    try:
        with comm.uncounted():
            raise KeyError
    except KeyError:
        pass
    comm.all_reduce(torch.ones(LENGTH))
    return None


def _number_types(comm: Comm) -> Any:
    sums = []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8):
        tensor = torch.full((3,), comm.rank + 1, dtype=dtype)
        comm.all_reduce(tensor)
        sums.append((str(tensor.dtype), tensor.tolist()))
    return sums


def _sum(ws: int) -> list[float]:
    return torch.stack([mine(rank) for rank in range(ws)]).sum(0).tolist()


def _neighbours(rank: int, ws: int, calls: int) -> Count:
    return {
        ("send", (rank + 1) % ws): (calls * NBYTES, calls),
        ("recv", (rank - 1) % ws): (calls * NBYTES, calls),
    }


def _star(rank: int, ws: int) -> Count:
    peers = range(1, ws) if rank == 0 else [0]
    return {(op, peer): (NBYTES, 1) for peer in peers for op in ("send", "recv")}


def _per_root(op: str) -> Callable[[int, int], Count]:
    return lambda rank, ws: {(op, root): (NBYTES, 1) for root in range(ws)}  # noqa: ARG005


OPERATIONS: dict[str, Row] = {
    "send and recv": Row(
        _send_and_receive,
        lambda rank, ws: (mine(rank, 3) if rank else mine(ws - 1, 3) + 1 if ws > 1 else torch.zeros(LENGTH)).tolist(),
        _star,
    ),
    "order": Row(_order, lambda rank, ws: [0.0, 1.0, 2.0, 3.0], lambda rank, ws: _neighbours(rank, ws, 4)),  # noqa: ARG005
    "tags": Row(_tags, lambda rank, ws: {7: 7.0, 5: 5.0, 6: 6.0}, lambda rank, ws: _neighbours(rank, ws, 3)),  # noqa: ARG005
    "posted order": Row(
        _posted_order,
        lambda rank, ws: [0.0, 1.0, 2.0],  # noqa: ARG005
        lambda rank, ws: _neighbours(rank, ws, 3),
    ),
    "recv_any": Row(
        _recv_any,
        lambda rank, ws: {peer: mine(peer).tolist() for peer in range(1, ws)} if rank == 0 else None,
        lambda rank, ws: (
            {("recv", peer): (NBYTES, 1) for peer in range(1, ws)} if rank == 0 else {("send", 0): (NBYTES, 1)}
        ),
    ),
    "all_reduce": Row(_all_reduce, lambda rank, ws: _sum(ws), lambda rank, ws: {("all_reduce", None): (NBYTES, 1)}),  # noqa: ARG005
    "broadcast": Row(
        _broadcasts,
        lambda rank, ws: [mine(root).tolist() for root in range(ws)],  # noqa: ARG005
        _per_root("broadcast"),
    ),
    "gather": Row(
        _gathers,
        lambda rank, ws: [[mine(r).tolist() for r in range(ws)] if rank == root else [] for root in range(ws)],
        _per_root("gather"),
    ),
    "scatter": Row(
        _scatters,
        lambda rank, ws: [mine(rank, root + 1).tolist() for root in range(ws)],
        _per_root("scatter"),
    ),
    "all_gather": Row(
        _all_gather,
        lambda rank, ws: [mine(r).tolist() for r in range(ws)],  # noqa: ARG005
        lambda rank, ws: {("all_gather", None): (NBYTES, 1)},  # noqa: ARG005
    ),
    "uncounted": Row(_uncounted, lambda rank, ws: None, lambda rank, ws: {("all_reduce", None): (NBYTES, 1)}),  # noqa: ARG005
    "number types": Row(
        _number_types,
        lambda rank, ws: [  # noqa: ARG005
            (f"torch.{name}", [ws * (ws + 1) // 2] * 3)
            for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8")
        ],
        lambda rank, ws: {("all_reduce", None): (3 * (4 + 8 + 2 + 2 + 8 + 4 + 1), 7)},  # noqa: ARG005
    ),
}
ALONE = ["all_reduce", "broadcast", "gather", "scatter", "all_gather", "uncounted", "number types"]
