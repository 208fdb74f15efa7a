"""Start workers with torch.multiprocessing; each passes its rank to `paceline.init`.

    python examples/spawn.py

Any other program that starts processes with known ranks can pass them to `init` in the same way.
"""

from __future__ import annotations

import socket

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

NUM_WORKERS = 2


def worker(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    paceline.init(rank=rank, world_size=NUM_WORKERS, master_addr="127.0.0.1", master_port=port)
    torch.manual_seed(rank)  # different weights per worker: parallel() copies rank 0's to all
    model = nn.Linear(8, 1)
    replica, optimizer = paceline.parallel(model, torch.optim.SGD(model.parameters(), lr=0.1), "ring")

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(512, 8, generator=generator)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    loader = paceline.shard(DataLoader(data, batch_size=16, shuffle=True))
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(replica(x), y)
            loss.backward()
            optimizer.step()
    paceline.finish()
    print(f"worker {rank}: loss {loss.item():.6f} weights {model.weight.double().sum().item():.9f}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    torch.multiprocessing.spawn(worker, args=(free_port(),), nprocs=NUM_WORKERS)
