"""One worker, started by another program, that uses the library in its own script. Prints one JSON object."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import paceline
from helpers import TESTS
from paceline.train.replicas import parameter_digest

EVERY_OTHER = f"{TESTS / 'library_strategies.py'}:EveryOther"


def train(strategy: str, steps: int = 2, dies: bool = False) -> nn.Module:
    torch.manual_seed(paceline.rank())  # different weights on every worker; parallel() makes them equal
    model = nn.Linear(3, 2)
    replica, optimizer = paceline.parallel(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy)
    for step in range(steps):
        if dies and step == 1:
            os._exit(3)
        optimizer.zero_grad()
        F.mse_loss(replica(torch.randn(4, 3)), torch.randn(4, 2)).backward()
        optimizer.step()
    return model


def sessions() -> Any:
    """Run two successive sessions with the same rendezvous address."""
    found = []
    for strategy in ("all-reduce", "ring"):
        paceline.init(timeout_s=60)
        model = train(strategy)
        paceline.finish()
        found.append(parameter_digest(model))
    return found


def existing() -> Any:
    """Start a session in an existing process group, which must still work afterwards."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    paceline.init(timeout_s=60)
    place = [paceline.rank(), paceline.world_size()]
    model = train("ddp")
    paceline.finish()
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return [*place, parameter_digest(model), int(total)]


def by_hand() -> Any:
    """Pass rank, world size and address as arguments, as with multiprocessing."""
    place = {"rank": int(os.environ.pop("RANK")), "world_size": int(os.environ.pop("WORLD_SIZE"))}
    address = {"master_addr": os.environ.pop("MASTER_ADDR"), "master_port": int(os.environ.pop("MASTER_PORT"))}
    paceline.init(**place, **address, timeout_s=60)
    model = train("gather-scatter")
    paceline.finish()
    return parameter_digest(model)


def died() -> Any:
    paceline.init(timeout_s=60)
    train("all-reduce", dies=paceline.rank() == 1)
    return "nothing was noticed"


def absent() -> Any:
    paceline.init(timeout_s=1.5)
    return "nobody was missed"


def uneven() -> Any:
    paceline.init(timeout_s=60)
    train("none", steps=2 + paceline.rank())
    paceline.finish()
    return "nothing was noticed"


def forgotten() -> Any:
    paceline.init(timeout_s=60)
    return parameter_digest(train(EVERY_OTHER))


def forgotten_exact() -> Any:
    paceline.init(timeout_s=60)
    return parameter_digest(train("all-reduce"))


def main(what: str) -> None:
    try:
        print(json.dumps({"result": globals()[what]()}), flush=True)
    except paceline.PacelineError as error:
        print(json.dumps({"error": str(error), "kind": type(error).__name__}), flush=True)
        sys.stderr.flush()
        os._exit(0)  # peers are gone or out of step: skip the orderly end


if __name__ == "__main__":
    main(sys.argv[1])
