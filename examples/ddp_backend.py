"""Run stock DistributedDataParallel on shared memory: a torchrun script with one more import and one changed word.

    torchrun --nproc-per-node 2 examples/ddp_backend.py [--backend gloo]

Rank 0 prints the mean loss of every step. With `--backend gloo` it prints the same to rounding.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline  # noqa: F401  registers the backend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="paceline")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs = torch.randn(512, 16)
    targets = inputs.square().mean(dim=1, keepdim=True)
    for step in range(arguments.steps):
        batch = slice(step * 32 % 512 + rank, step * 32 % 512 + 32, world_size)  # every world_size-th of 32 samples
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {float(mean):.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
