"""Functions that workers on emulated nodes and other hosts run, and the environment to import them there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import psutil
import torch

from paceline.train.context import Context


def place_of(context: Context) -> dict[str, Any]:
    """Return the network and connections of a worker after an all-reduce."""
    total = torch.ones(1)
    context.comm.all_reduce(total)
    established = [one for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]
    return {
        "pid": os.getpid(),
        "network": os.readlink("/proc/self/ns/net"),
        "addresses": sorted({one.laddr.ip.removeprefix("::ffff:") for one in established}),
        "sum": float(total),
        "medium": context.comm._medium("send", (context.rank + 1) % context.world_size),
    }


def say_something(context: Context) -> str:
    print(f"worker {context.rank} says hello", flush=True)
    return os.getcwd()


def environment_for_workers() -> dict[str, str]:
    """Return an environment with the import path of this process."""
    path = os.pathsep.join([str(Path(__file__).parent), *(entry for entry in sys.path if entry)])
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
