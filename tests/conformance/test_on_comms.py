"""Strategies on comms other than gloo, against the same oracle."""

from __future__ import annotations

from typing import Any

import pytest

import jobs
from certified import assert_exact, assert_traffic_as_predicted
from helpers import exact_without_servers, free_port, on_pool
from paceline.comm import CommConfig
from paceline.comm.hierarchical import HierarchicalComm
from paceline.comm.shm import ShmComm
from paceline.comm.torch import make_store
from paceline.launch.local import LocalPool
from paceline.study.verify import cases, verify
from paceline.train.context import Context

pytestmark = pytest.mark.skipif(bool(ShmComm.unavailable()), reason=f"comm shm: {ShmComm.unavailable()}")
OURS = ["shm", "hierarchical"]


@pytest.mark.pairwise
@pytest.mark.parametrize("options", ["", ":bucket_mb=0.001", ":gradient_as_view=false", ":find_unused=true"])
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("comm", OURS)
def test_ddp(pool: LocalPool, comm: str, world_size: int, options: str) -> None:
    workers = on_pool(pool, world_size, jobs.certify, comm=comm, strategy=f"ddp{options}", changes={})
    assert_exact(workers)
    assert_traffic_as_predicted(workers)


@pytest.mark.slow
@pytest.mark.parametrize("comm", OURS)
def test_certificate_of_ddp(pool: LocalPool, comm: str) -> None:
    todo = cases(["ddp", "ddp+bf16"], [1, 2, 4], ["lenet5"])
    for row in verify(todo, pool, comm=comm, on_case=lambda _: None):
        assert row["passed"], row
        assert row["bytes_as_predicted"]


def certify_on_nodes(context: Context, layout: str, port: int, strategy: str) -> Any:
    store = make_store("127.0.0.1", port, is_master=context.rank == 0, timeout_s=20)
    place = CommConfig(
        rank=context.rank,
        world_size=context.world_size,
        store=store,
        node=layout[context.rank],
        timeout_s=20,
        address="127.0.0.1",
    )
    comm = HierarchicalComm.connect(place)
    result = jobs.certify(Context(comm), strategy=strategy, changes={})
    comm.barrier()
    comm.close()
    context.comm.barrier()  # the store is in the process of worker 0
    return result


@pytest.mark.each_choice
@pytest.mark.parametrize("strategy", exact_without_servers())
@pytest.mark.parametrize("layout", ["aabb", "abaa", "abc"])
def test_every_strategy_on_several_nodes(pool: LocalPool, layout: str, strategy: str) -> None:
    place = {"layout": layout, "port": free_port()}
    workers = on_pool(pool, len(layout), certify_on_nodes, **place, strategy=strategy)
    assert_exact(workers)
    assert_traffic_as_predicted(workers)
