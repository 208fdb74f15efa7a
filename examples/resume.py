"""A training loop that continues after it was killed, with the weights that it would have had without the kill.

    python examples/resume.py checkpoints                                    # one worker; kill it and start it again
    torchrun --nproc-per-node 2 examples/resume.py checkpoints               # two workers
    torchrun --nproc-per-node 2 --max-restarts 3 examples/resume.py checkpoints --die-at 90   # killed once, on purpose

Every worker saves its part of a checkpoint every ten steps, also in the middle of an epoch.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

EPOCHS, SAVE_EVERY = 6, 10


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("folder", type=Path)
    words.add_argument("--strategy", default="overlap")
    words.add_argument("--die-at", type=int, default=0, help="kill the last worker after this step, once")
    chosen = words.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs = torch.randn(1000, 8)
    data = TensorDataset(inputs, inputs[:, :4].argmax(dim=1))

    paceline.init()
    replica, optimizer = paceline.parallel(model, optimizer, chosen.strategy)
    loader = paceline.shard(DataLoader(data, batch_size=32, shuffle=True))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    torch.manual_seed(1 + paceline.rank())  # dropout differs between workers

    extra = paceline.load(chosen.folder, model, optimizer)  # {} if there is no checkpoint yet
    step, first_epoch = extra.get("step", 0), extra.get("epoch", 0)
    if extra:
        schedule.load_state_dict(extra["schedule"])
        print(f"resumed after step {step}", flush=True)
    for epoch in range(first_epoch, EPOCHS):
        for points, target in loader:  # after load(), the rest of the interrupted epoch
            optimizer.zero_grad()
            F.cross_entropy(replica(points), target).backward()
            optimizer.step()
            step += 1
            if step % SAVE_EVERY == 0:
                paceline.save(chosen.folder, model, optimizer, step=step, epoch=epoch, schedule=schedule.state_dict())
            if step == chosen.die_at and not extra and paceline.rank() == paceline.world_size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
        schedule.step()
    paceline.finish()

    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    print(f"steps {step} weights {digest[:16]}", flush=True)


if __name__ == "__main__":
    main()
