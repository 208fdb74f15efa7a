"""Train in mixed precision with a GradScaler: all workers skip a step that overflows on one of them.

    torchrun --nproc-per-node 2 examples/amp.py

A sum with an infinite part is infinite on every worker, so every scaler halves its scale in the same step. This holds
for strategies that average gradients; under those that average weights each worker has its own gradients: use
bfloat16 there, which needs no scaler.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline


def main() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(1024, 16)
    labels = (inputs[:, :4].sum(dim=1) > 0).long()
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))

    paceline.init()
    replica, optimizer = paceline.parallel(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = paceline.shard(DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True))
    # So large that the first steps overflow: the scaler then lowers its scale.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)

    for _ in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                output = replica(x)
            loss = F.cross_entropy(output.float(), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
    worker = paceline.rank()
    paceline.finish()
    with torch.no_grad():
        accuracy = (model(inputs).argmax(dim=1) == labels).float().mean().item()
    print(f"worker {worker}: scale 2^{torch.tensor(scaler.get_scale()).log2():.0f}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
