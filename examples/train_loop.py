"""A plain training loop on any number of workers: four calls of paceline added to a loop for one worker.

    python examples/train_loop.py                                                  # alone
    torchrun --nproc-per-node 2 examples/train_loop.py                             # two workers
    torchrun --nproc-per-node 2 examples/train_loop.py --strategy ddp:bucket_mb=5  # under another strategy

The weights at the end do not depend on the number of workers (except for rounding), because the global batch is always
64. The accuracy on points of a spiral rises from a third to nearly 1.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

GLOBAL_BATCH = 64


def spiral(num_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return points on the three arms of a spiral, and the arm of each point."""
    generator = torch.Generator().manual_seed(seed)
    arm = torch.randint(3, (num_samples,), generator=generator)
    along = torch.rand(num_samples, generator=generator)
    angle = 4 * along + 2 * torch.pi / 3 * arm + 0.1 * torch.randn(num_samples, generator=generator)
    return torch.stack([along * angle.cos(), along * angle.sin()], dim=1) * 2, arm


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--strategy", default="all-reduce")
    words.add_argument("--epochs", type=int, default=12)
    chosen = words.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    paceline.init()
    replica, optimizer = paceline.parallel(model, optimizer, chosen.strategy)
    loader = DataLoader(
        TensorDataset(*spiral(1024, seed=1)), batch_size=GLOBAL_BATCH // paceline.world_size(), shuffle=True
    )
    loader = paceline.shard(loader)

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=chosen.epochs)
    for epoch in range(chosen.epochs):
        for points, arms in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(replica(points), arms)
            loss.backward()
            optimizer.step()
        schedule.step()
        if paceline.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    paceline.finish()

    points, arms = spiral(500, seed=2)
    with torch.no_grad():
        accuracy = (model(points).argmax(dim=1) == arms).float().mean().item()
    weights = sum(parameter.detach().double().abs().sum().item() for parameter in model.parameters())
    print(f"accuracy {accuracy:.3f} weights {weights:.6f}")


if __name__ == "__main__":
    main()
