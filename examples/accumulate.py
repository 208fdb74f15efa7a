"""Gradients of four small batches in one step, sent once and clipped: `no_sync` and `clip_grad_norm_`.

    torchrun --nproc-per-node 2 examples/accumulate.py

When `backward()` returns, gradients are those of all workers, so they are clipped as on one worker. Inside
`no_sync()` they stay local and nothing is sent; keep the last part of a step outside.
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
