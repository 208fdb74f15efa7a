"""Functions that workers run on a torch.distributed process group of a chosen backend; they return plain values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paceline.comm import worker_placement
from paceline.comm.torch import make_store
from paceline.train.context import Context

Job = Callable[[], Any]


def on_backend(
    context: Context, backend: str, port: int, job: str, timeout_s: float = 20.0, hosts: str = "", **arguments: Any
) -> Any:
    """Run a function of this module in a process group of `backend`; `hosts` names an invented host for each rank."""
    identity = worker_placement.host_identity
    if hosts:
        worker_placement.host_identity = lambda: hosts[context.rank]
    store = make_store("127.0.0.1", port, is_master=context.rank == 0, timeout_s=20)
    limit = timedelta(seconds=timeout_s)
    place = {"rank": context.rank, "world_size": context.world_size}
    dist.init_process_group(backend, store=store, timeout=limit, **place)
    try:
        return globals()[job](**arguments)
    finally:
        worker_placement.host_identity = identity
        context.comm.barrier()
        dist.destroy_process_group()
        context.comm.barrier()  # the store lives in worker 0


class NoGloo:
    """Replaces the gloo group and fails on every operation but shutdown."""

    def __getattr__(self, name: str) -> Any:
        if name == "shutdown":
            return lambda: None
        raise AssertionError(f"{name} went to gloo")


def numbers(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return small whole numbers that differ by rank: sums are exact in any order, and no type overflows."""
    values = torch.arange(count) % 5 + dist.get_rank()
    return values > 1 if dtype == torch.bool else values.to(dtype)


def collectives(numel: int, dtype: str = "float32", without_gloo: bool = False) -> dict[str, Any]:
    """Run every collective that a comm implements; return the results."""
    kind, rank, size = getattr(torch, dtype), dist.get_rank(), dist.get_world_size()
    if without_gloo:
        group = dist.group.WORLD
        kept, group._gloo = group._gloo, NoGloo()
    found: dict[str, Any] = {}
    if kind != torch.bool:
        total = numbers(numel, kind)
        dist.all_reduce(total)
        found["all_reduce"] = total
        reduced = numbers(numel, kind)
        dist.reduce(reduced, dst=size - 1)
        found["reduce"] = reduced if rank == size - 1 else None
        part = torch.empty(numel, dtype=kind)
        dist.reduce_scatter_single(part, numbers(size * numel, kind))
        found["reduce_scatter_single"] = part
        part = torch.empty(numel, dtype=kind)
        dist.reduce_scatter(part, list(numbers(size * numel, kind).chunk(size)) if numel else [part] * size)
        found["reduce_scatter"] = part
        several = [numbers(numel, kind), numbers(3, kind)]
        with dist._coalescing_manager(device=None):
            for tensor in several:
                dist.all_reduce(tensor)
        found["coalesced"] = several
    sent = numbers(numel, kind)
    dist.broadcast(sent, src=1)
    found["broadcast"] = sent
    gathered = [torch.empty(numel, dtype=kind) for _ in range(size)]
    dist.all_gather(gathered, numbers(numel, kind))
    found["all_gather"] = gathered
    whole = torch.empty(size * numel, dtype=kind)
    dist.all_gather_single(whole, numbers(numel, kind))
    found["all_gather_single"] = whole
    pieces = [torch.empty(numel, dtype=kind) for _ in range(size)] if rank == 1 else None
    dist.gather(numbers(numel, kind), pieces, dst=1)
    found["gather"] = pieces
    piece = torch.empty(numel, dtype=kind)
    dist.scatter(piece, [numbers(numel, kind) for _ in range(size)] if rank == 1 else None, src=1)
    found["scatter"] = piece
    dist.barrier()
    if without_gloo:
        group._gloo = kept
    return {name: _plain(value) for name, value in found.items()}


def long_vectors(numel: int) -> bool:
    """Return whether collectives on vectors of many pieces give the right result."""
    rank, size = dist.get_rank(), dist.get_world_size()
    base = torch.arange(numel, dtype=torch.float64)
    total = base * (rank + 1)
    dist.all_reduce(total)
    gathered = [torch.empty_like(base) for _ in range(size)]
    dist.all_gather(gathered, base + rank)
    sent = base + rank
    dist.broadcast(sent, src=1)
    part = torch.empty_like(base)
    dist.reduce_scatter(part, [base + rank + peer for peer in range(size)])
    return (
        torch.equal(total, base * (size * (size + 1) // 2))
        and all(torch.equal(piece, base + peer) for peer, piece in enumerate(gathered))
        and torch.equal(sent, base + 1)
        and torch.equal(part, size * (base + rank) + size * (size - 1) // 2)
    )


def the_rest() -> dict[str, Any]:
    """Run the operations that are delegated to gloo; return the results."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}
    for op in ("MIN", "MAX", "PRODUCT"):
        tensor = numbers(7) + 1
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
        found[op] = tensor
    received = [torch.empty(2) for _ in range(size)]
    dist.all_to_all(received, [torch.full((2,), float(10 * rank + peer)) for peer in range(size)])
    found["all_to_all"] = received
    whole = torch.empty(size)
    dist.all_to_all_single(whole, torch.arange(size) + 10.0 * rank)
    found["all_to_all_single"] = whole
    works = [dist.isend(numbers(4), (rank + 1) % size, tag=3)]
    message = torch.empty(4)
    works.append(dist.irecv(message, (rank - 1) % size, tag=3))
    for work in works:
        work.wait()
    found["message"] = message
    if rank:
        dist.send(torch.tensor([float(rank)]), 0)
    else:
        values = torch.empty(1)
        found["from anybody"] = sorted((dist.recv(values), float(values)) for _ in range(size - 1))
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (size,))
    dist.all_reduce(sparse)
    found["sparse"] = sparse.to_dense()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=10))
    return {name: _plain(value) for name, value in found.items()}


def odd_tensors() -> dict[str, Any]:
    """Run collectives on non-contiguous tensors and with mean reduction; return the results."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}
    matrix = numbers(12).view(3, 4)
    dist.all_reduce(matrix.t())
    found["transposed"] = matrix
    columns = numbers(12).view(3, 4)
    dist.broadcast(columns[:, 1], src=1)
    found["column"] = columns
    number = torch.tensor(float(rank))
    dist.all_reduce(number)
    found["number"] = number
    outputs = [torch.zeros(4, 3).t() for _ in range(size)]
    dist.all_gather(outputs, numbers(12).view(3, 4))
    found["into transposed"] = outputs
    weight = nn.Parameter(torch.full((3,), float(rank)))
    dist.broadcast(weight, src=1)
    found["parameter"] = weight
    with torch.inference_mode():
        inference = numbers(3)
        dist.all_reduce(inference)
    found["inference"] = inference
    complex_numbers = torch.complex(numbers(3), -numbers(3))
    dist.all_reduce(complex_numbers)
    found["complex"] = torch.view_as_real(complex_numbers)
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * (rank + 1)})
    found["objects"] = objects
    return {name: _plain(value) for name, value in found.items()}


def means() -> Any:
    tensor = numbers(6, torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    part = torch.empty(2, dtype=torch.float64)
    whole = numbers(2 * dist.get_world_size(), torch.float64)
    dist.reduce_scatter_single(part, whole, op=dist.ReduceOp.AVG)
    return [tensor.tolist(), part.tolist()]


def works() -> dict[str, Any]:
    """Return the state of asynchronous operations while they run and after they finish."""
    rank = dist.get_rank()
    many = [torch.full((1000,), float(index)) for index in range(30)]
    under_way = [dist.all_reduce(tensor, async_op=True) for tensor in many]
    last = torch.ones(2)
    dist.all_reduce(last)  # runs after the operations above
    were_done = all(work.is_completed() for work in under_way)
    waited = [work.wait() for work in under_way]
    tensor = numbers(3)
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2).wait()
    assert work.wait(timedelta(seconds=5))
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0] is tensor
    # Workers start these in different orders: an operation that was only started must not block a worker.
    pair = [torch.ones(1), torch.ones(1)]
    groups = [dist.new_group(), dist.new_group()]
    order = (0, 1) if rank == 0 else (1, 0)
    for pending in [dist.all_reduce(pair[index], group=groups[index], async_op=True) for index in order]:
        pending.wait()
    saved = torch.ones(2, requires_grad=True)
    squares = saved * 1
    product = squares * squares
    dist.all_reduce(squares.detach())
    try:
        product.sum().backward()
        complaint = ""
    except RuntimeError as error:
        complaint = str(error)
    return {
        "sums": [float(tensor[0]) for tensor in many],
        "done": were_done and all(waited),
        "doubled": doubled.tolist(),
        "crossed": [float(tensor) for tensor in pair],
        "complaint": complaint,
    }


def aborted() -> list[str]:
    """Return the errors that operations raise after an abort."""
    dist.barrier()
    dist.group.WORLD.abort()
    complaints = []
    for async_op in (False, True):
        try:
            work = dist.all_reduce(torch.ones(1), async_op=async_op)
            if async_op:
                work.get_future().wait()
        except RuntimeError as error:
            complaints.append(str(error))
    return complaints


def wait_in_callback() -> str:
    """Wait for a collective inside the callback of another one; return the error."""
    begun = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    slow = [dist.all_reduce(torch.ones(1 << 20), async_op=True) for _ in range(50)]
    last = slow[-1].get_future().then(lambda _: dist.all_reduce(torch.ones(1)))
    try:
        last.wait()
    except RuntimeError as error:
        return str(error)
    finally:
        begun.wait()
    return "nothing was raised"


def groups(members: list[int]) -> Any:
    """Create, use and destroy a subgroup of the workers, twice."""
    rank, results = dist.get_rank(), []
    for _ in range(2):
        group = dist.new_group(members)
        if rank in members:
            tensor = torch.tensor([float(rank)])
            dist.all_reduce(tensor, group=group)
            results.append(float(tensor))
            dist.destroy_process_group(group)
        dist.barrier()
    return results


def again(times: int) -> list[float]:
    """Create several process groups in succession on one store, as after a failure."""
    world, results = dist.group.WORLD, []
    store, rank, size = dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    name = dist.get_backend()
    assert world is not None
    for turn in range(times):
        tensor = torch.tensor([float(turn)])
        dist.all_reduce(tensor)
        results.append(float(tensor))
        dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group(name, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20))
    return results


def train(bucket_mb: float, hook: bool, find_unused: bool) -> dict[str, list[float]]:
    """Train with stock DDP for a few steps; return the parameters."""
    torch.manual_seed(dist.get_rank())  # DDP makes replicas equal
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
    replica = DistributedDataParallel(model, bucket_cap_mb=bucket_mb, find_unused_parameters=find_unused)
    if hook:
        replica.register_comm_hook(None, _average)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    for step in range(4):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        inputs = torch.rand(4, 1, 8, 8, generator=generator)
        optimizer.zero_grad()
        if step == 1:
            with replica.no_sync():
                replica(inputs).square().mean().backward()
        replica(inputs).square().mean().backward()
        optimizer.step()
    return {name: parameter.flatten().tolist() for name, parameter in model.named_parameters()}


def _average(state: Any, bucket):  # noqa: ARG001  (DDP reads annotations, and ours would be strings)
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def comm_of_the_world() -> str:
    """Return the name of the comm below the process group (gloo if there is none) and a sum over it."""
    comm = getattr(dist.group.WORLD, "_comm", None)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return f"{comm.name if comm else 'gloo'} {float(tensor):g}"


def wait_in_vain(silent: int) -> str:
    """Return the error of an all-reduce that one worker never joins."""
    if dist.get_rank() == silent:
        return ""
    try:
        dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        return str(error)
    return "nothing was raised"


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list) else value
