"""Accumulate the gradients of four small batches per step, send them once and clip them.

    torchrun --nproc-per-node 2 examples/accumulate.py

Inside `paceline.no_sync()` gradients stay local and nothing is sent; run the last batch of a step outside it. When that
`backward()` returns, gradients are the mean over all workers, so `clip_grad_norm_` works as on one worker.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

PARTS = 4


def main() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(2048, 16)
    targets = torch.tanh(inputs @ torch.randn(16, 1) / 4)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))

    paceline.init()
    replica, optimizer = paceline.parallel(model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9))
    loader = paceline.shard(DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True))

    losses = []
    for _ in range(10):
        for index, (x, y) in enumerate(loader):
            is_last = index % PARTS == PARTS - 1
            with nullcontext() if is_last else paceline.no_sync():
                loss = F.mse_loss(replica(x), y)
                (loss / PARTS).backward()
            losses.append(loss.item())
            if is_last:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    worker = paceline.rank()
    paceline.finish()
    first, last = (sum(part) / len(part) for part in (losses[:8], losses[-8:]))
    print(f"worker {worker}: loss {first:.4f} -> {last:.4f}")


if __name__ == "__main__":
    main()
