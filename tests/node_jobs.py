"""Functions that workers on nodes run, and what it takes to have nodes in a test."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from paceline.cluster import Cluster, open_cluster
from paceline.errors import UsageError
from paceline.recipe import ClusterConfig
from paceline.train.context import Context


@contextmanager
def nodes(num_nodes: int, **changes: Any) -> Iterator[Cluster]:
    """Emulated nodes, or a skipped test that says what is missing for them."""
    config = ClusterConfig(nodes=num_nodes, **changes)
    skip_without_nodes(config)
    with open_cluster(config) as cluster:
        yield cluster


def skip_without_nodes(config: ClusterConfig) -> None:
    """Skip where this machine cannot emulate what is asked for."""
    reason = _reason_against(config)
    if reason:
        pytest.skip(reason)


@functools.cache
def _reason_against(config: ClusterConfig) -> str:
    try:
        with open_cluster(config):
            return ""
    except UsageError as error:
        return str(error)


def place_of(context: Context) -> dict[str, Any]:
    """Where a worker is, after it has heard of everybody."""
    total = torch.ones(1)
    context.comm.all_reduce(total)
    established = [one for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]
    return {
        "pid": os.getpid(),
        "network": os.readlink("/proc/self/ns/net"),
        "addresses": sorted({one.laddr.ip for one in established}),
        "sum": float(total),
        "medium": context.comm._medium("send", (context.rank + 1) % context.world_size),
    }


def say_something(context: Context) -> str:
    print(f"worker {context.rank} says hello", flush=True)
    return os.getcwd()


def environment_for_workers() -> dict[str, str]:
    """So that another process finds what this one finds."""
    path = os.pathsep.join([str(Path(__file__).parent), *(entry for entry in sys.path if entry)])
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
