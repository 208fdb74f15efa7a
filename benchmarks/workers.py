"""Functions that benchmarks run inside workers, which import them by name."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.comm.torch import make_store
from paceline.data import load_data
from paceline.models import build_model
from paceline.recipe import DataConfig
from paceline.strategies.ring import BufferPool, ring_all_reduce
from paceline.train.context import Context

SHAPES = {"lenet5": "synthetic:1x28x28x10"}


def time_all_reduces(context: Context, num_elements: int, repeats: int, warmup: int) -> dict[str, list[float]]:
    """Time the ring and torch's all-reduce on the same vector, in turn; return seconds per call."""
    comm, pool = context.comm, BufferPool()
    functions: dict[str, Any] = {
        "ring": lambda vector: ring_all_reduce(vector, comm, pool),
        "library": comm.all_reduce,
    }
    times: dict[str, list[float]] = {name: [] for name in functions}
    vector = torch.ones(num_elements)
    for repeat in range(warmup + repeats):
        # Alternate the order, so that disturbances affect both.
        for name in functions if repeat % 2 else reversed(functions):
            vector.fill_(float(context.rank + 1))
            comm.barrier()
            started = time.perf_counter()
            functions[name](vector)
            elapsed = time.perf_counter() - started
            expected = context.world_size * (context.world_size + 1) / 2
            assert bool((vector == expected).all()), f"{name} is wrong"
            if repeat >= warmup:
                times[name].append(elapsed)
    return times


def time_ddp(
    context: Context, model: str, batch: int, steps: int, repeats: int, backends: list[str], port: int
) -> dict[str, list[float]]:
    """Return mean seconds of a training step of torch's DDP in each repeat, by backend, with a barrier before each."""
    store = make_store("127.0.0.1", port, is_master=context.rank == 0, timeout_s=60)
    dist.init_process_group("gloo", store=store, rank=context.rank, world_size=context.world_size)
    data = load_data(DataConfig(name=SHAPES.get(model, "synthetic:3x32x32x10"), train_samples=batch), seed=context.rank)
    inputs, target = data.train.batch(torch.arange(batch), 0)
    replicas, optimizers = {}, {}
    for backend in backends:
        torch.manual_seed(0)
        replicas[backend] = DistributedDataParallel(
            build_model(model, data), process_group=dist.new_group(backend=backend)
        )
        optimizers[backend] = torch.optim.SGD(replicas[backend].parameters(), lr=0.01, momentum=0.9)
    times: dict[str, list[float]] = {backend: [] for backend in backends}
    for repeat in range(repeats + 1):  # the first is warm-up
        for backend in backends if repeat % 2 else reversed(backends):
            dist.barrier()
            started = time.perf_counter()
            for _ in range(steps):
                optimizers[backend].zero_grad()
                torch.nn.functional.cross_entropy(replicas[backend](inputs), target).backward()
                optimizers[backend].step()
            times[backend].append((time.perf_counter() - started) / steps)
    dist.barrier()
    del replicas, optimizers
    dist.destroy_process_group()
    context.comm.barrier()  # worker 0 holds the store
    return {backend: values[1:] for backend, values in times.items()}
