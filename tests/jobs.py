"""Functions that test workers run on threads or in processes: `(context, **arguments)` to plain values."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.comm import Counter
from paceline.measure.sampler import Sampler
from paceline.strategies import StrategySpec, Worker
from paceline.strategies.capabilities import loss_scale_of, servers_of
from paceline.train.context import Context
from paceline.train.job import serve as serve_with
from paceline.train.oracle import oracle_steps
from paceline.train.replicas import parameter_digest
from paceline.train.trainer import Trainer
from toys import toy_data, toy_model, toy_recipe


def rank_of(context: Context) -> int:
    return context.rank


def pid_of(context: Context) -> int:  # noqa: ARG001
    return os.getpid()


def niceness(context: Context) -> int:  # noqa: ARG001
    return os.nice(0)


def place_of(context: Context, note: str = "") -> list[Any]:
    context.comm.all_reduce(torch.ones(1))
    return [context.rank, context.world_size, note]


def emit_and_wait(context: Context) -> None:
    context.emit({"kind": "warning", "text": "ready", "pid": os.getpid()})
    time.sleep(60)


def raise_on(context: Context, rank: int) -> None:
    if context.rank == rank:
        raise LookupError("no such shelf")
    context.comm.barrier()


def kill_itself(context: Context, rank: int) -> None:
    """Kill one worker while its peers are in an all_reduce."""
    context.comm.barrier()
    if context.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    context.comm.all_reduce(torch.zeros(1 << 16))


def hang_on(context: Context, rank: int) -> None:
    if context.rank == rank:
        time.sleep(60)
    context.comm.all_reduce(torch.zeros(8))


def hang_in_training(context: Context, rank: int, strategy: str) -> None:
    """Stop one worker between two training steps."""
    recipe = toy_recipe(context.world_size)
    trainer = Trainer(recipe, StrategySpec.parse(strategy).build(), toy_data(), context, toy_model("plain"))
    trainer.run(lambda step: time.sleep(60) if context.rank == rank and step == 1 else None)


def serve(
    context: Context, strategy: str, changes: dict[str, Any] | None = None, model: str = "plain", **_: Any
) -> None:
    """Run a server in a toy training. It starts with zero weights and receives the right ones from the workers."""
    built = StrategySpec.parse(strategy).build()
    num_workers = context.world_size - servers_of(built, context.world_size)
    toy = toy_model(model)
    with torch.no_grad():
        for parameter in toy.parameters():
            parameter.zero_()
    serve_with(context, toy_recipe(num_workers, changes), built, toy)


def certify(context: Context, strategy: str, changes: dict[str, Any], model: str = "plain") -> dict[str, Any]:
    """Train a toy in float64 and compare the replica with the oracle after every step."""
    comm = context.comm
    recipe = toy_recipe(context.world_size, changes)
    data = toy_data()
    expected = list(oracle_steps(recipe, data, toy_model(model), comm.world_size))
    trainer = Trainer(recipe, StrategySpec.parse(strategy).build(), data, context, toy_model(model))
    parameters = dict(trainer.model.named_parameters())
    steps: list[dict[str, Any]] = []
    comm.counter.clear()

    def look(step: int) -> None:
        off = sum(float((parameters[n].detach() - e).square().sum()) for n, e in expected[step].items())
        length = sum(float(e.square().sum()) for e in expected[step].values())
        operations = trainer.strategy.traffic(trainer.worker.specs, comm.rank, comm.world_size, step)
        predicted = Counter.of(operations)
        steps.append(
            {
                "relative_error": (off / length) ** 0.5,
                "digest": parameter_digest(trainer.model),
                "counted": dict(comm.counter.nbytes),
                "predicted": dict(predicted.nbytes),
                "wire": tuple(comm.wire()),
                "predicted_wire": tuple(comm.predict(predicted, comm.rank, comm.world_size)),
            }
        )
        comm.counter.clear()

    trainer.run(look)
    trainer.strategy.finish()
    buffers = {name: buffer.flatten().tolist() for name, buffer in trainer.model.named_buffers()}
    digests = {name: parameters[name].detach().flatten().tolist() for name in parameters}
    return {"steps": steps, "buffers": buffers, "parameters": digests, "num_expected": len(expected)}


def three_sums(context: Context) -> list[list[float]]:
    """Start all-reduces on three comms at once and wait in reverse order: they must not mix."""
    comms = [context.comm, context.connect("torch"), context.connect("torch")]
    tensors = [torch.full((2,), float(factor)) for factor in (1, 2, 3)]
    works = [comm.iall_reduce(tensor) for comm, tensor in zip(comms, tensors, strict=True)]
    for work in reversed(works):
        work.wait()
    context.comm.barrier()
    for comm in comms[1:]:
        comm.close()
    return [tensor.tolist() for tensor in tensors]


class Slopes(nn.Module):
    """A model whose gradient equals its input, with parameters of four shapes."""

    SHAPES = ((12, 20), (12,), (), (6, 3, 5, 5))

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros(shape, dtype=torch.float64) for shape in self.SHAPES])

    def forward(self, slopes: list[Tensor]) -> Tensor:
        return sum((weight * slope).sum() for weight, slope in zip(self.weights, slopes, strict=True))


def slopes_of(rank: int, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in Slopes.SHAPES]


def average_slopes(context: Context, strategy: str, steps: list[int], shares: list[float], state: Any = None) -> Any:
    """Average known gradients with uneven weights; return results, strategy state, counted and predicted bytes."""
    built, model = StrategySpec.parse(strategy).build(), Slopes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    worker = Worker(comm=context.comm, codec=built.codec, model=model, optimizer=optimizer)
    built.setup(worker)
    if state is not None:
        built.load_state_dict({k: torch.tensor(v, dtype=torch.float64) for k, v in state[context.rank].items()})
    worker.weight = shares[context.rank]
    got = []
    context.comm.counter.clear()
    for step in steps:
        optimizer.zero_grad()
        (worker.replica(slopes_of(context.rank, step)) * loss_scale_of(built)).backward()
        built.after_backward()
        got.append(torch.cat([weight.grad.reshape(-1) for weight in worker.parameters]).tolist())
    predicted = [built.traffic(worker.specs, context.rank, context.world_size, step) for step in steps]
    counted = dict(context.comm.counter.nbytes)
    kept = {name: tensor.tolist() for name, tensor in built.state_dict().items()}
    return (
        got,
        kept,
        counted,
        dict(Counter.of(operation for operations in predicted for operation in operations).nbytes),
    )


def freed(_context: Context, blocks: int) -> None:
    """Allocate and free blocks of 8 MB, which the allocator may keep."""
    held = [torch.ones(2_000_000) for _ in range(blocks)]
    del held


def sampled(context: Context, what: str, folder: str = "") -> list[dict[str, Any]]:
    """Return resource samples of this worker while worker 1 runs `what` and the others sleep."""
    rows: list[dict[str, Any]] = []
    context.comm.barrier()
    sampler = Sampler(rows.append, hz=20)
    sampler.start()
    if context.rank != 1:
        time.sleep(0.3)
    elif what == "burn":
        end = time.perf_counter() + 1.0
        while time.perf_counter() < end:
            pass
    elif what == "write":
        path = Path(folder, "written")
        path.write_bytes(bytes(50_000_000))
        path.unlink()
    elif what == "send":
        context.comm.send(torch.zeros(5_000_000), 0)
    elif what == "allocate":
        torch.ones(50_000_000).sum()
    if what == "send" and context.rank == 0:
        context.comm.recv(torch.zeros(5_000_000), 1)
    if what == "send":
        context.comm.barrier()  # all messages have arrived: no bytes are left in the kernel
    sampler.stop()
    context.comm.barrier()
    return rows


def exit_on(context: Context, rank: int) -> None:
    if context.rank == rank:
        os._exit(7)
    context.comm.barrier()


def stop_on(context: Context, rank: int) -> None:
    if context.rank == rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    context.comm.barrier()


def kill_beside_child(context: Context, rank: int) -> None:
    """Kill one worker, and leave a child process that inherited its pipe for a while."""
    context.comm.barrier()
    if context.rank == rank:
        if os.fork() == 0:
            time.sleep(8)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    context.comm.barrier()
