"""The backend of torch.distributed: what gloo does, it does, to the same numbers."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch

import backend_jobs
from helpers import REPOSITORY, free_port, on_pool, python_processes
from paceline.comm.shm import ShmComm
from paceline.comm.worker_placement import host_identity
from paceline.launch.local import LocalPool

pytestmark = pytest.mark.skipif(bool(ShmComm.unavailable()), reason=f"comm shm: {ShmComm.unavailable()}")
BACKENDS = ("gloo", "paceline")


def run(pool: LocalPool, world_size: int, backend: str, job: str, **arguments: Any) -> list[Any]:
    where = {"backend": backend, "port": free_port()}
    return on_pool(pool, world_size, backend_jobs.on_backend, **where, job=job, **arguments)


def on_both(pool: LocalPool, world_size: int, job: str, **arguments: Any) -> list[Any]:
    gloo, ours = (run(pool, world_size, backend, job, **arguments) for backend in BACKENDS)
    assert ours == gloo
    return ours


@pytest.mark.each_choice
@pytest.mark.parametrize("numel", [0, 1, 5, 3_000_000])  # the last takes several pieces of any length
@pytest.mark.parametrize("world_size", [2, 3])
def test_collectives(pool: LocalPool, world_size: int, numel: int) -> None:
    if numel > 1000:
        # So many numbers stay in the workers; a few of them in places that differ tell.
        workers = run(pool, world_size, "paceline", "long_vectors", numel=numel)
        assert workers == [True] * world_size
        return
    workers = on_both(pool, world_size, "collectives", numel=numel)
    sums = [world_size * (index % 5) + world_size * (world_size - 1) / 2 for index in range(numel)]
    assert all(worker["all_reduce"] == sums for worker in workers)
    assert run(pool, world_size, "paceline", "collectives", numel=numel, without_gloo=True) == workers


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int64", "int32", "uint8", "int8", "bool"])
def test_types_of_numbers(pool: LocalPool, dtype: str) -> None:
    ours = run(pool, 2, "paceline", "collectives", numel=6, dtype=dtype, without_gloo=True)
    if dtype == "bool":
        assert ours[0]["broadcast"] == [bool(index % 5 + 1 > 1) for index in range(6)]
    else:
        assert ours[0]["all_reduce"] == [2 * (index % 5) + 1 for index in range(6)]
    assert ours[1]["gather"] == ours[0]["all_gather"]


def test_what_the_comm_lacks_is_gloos(pool: LocalPool) -> None:
    workers = on_both(pool, 3, "the_rest")
    numbers = [[float(index % 5 + rank + 1) for rank in range(3)] for index in range(7)]
    for rank, found in enumerate(workers):
        assert found["MIN"] == [min(row) for row in numbers]
        assert found["MAX"] == [max(row) for row in numbers]
        assert found["PRODUCT"] == [math.prod(row) for row in numbers]
        assert found["all_to_all"] == [[10.0 * peer + rank] * 2 for peer in range(3)]


def test_tensors_that_are_no_plain_vectors(pool: LocalPool) -> None:
    def matrix(rank: int) -> torch.Tensor:
        return (torch.arange(12) % 5 + rank).float().view(3, 4)

    # By hand: gloo takes no account of strides.
    for rank, worker in enumerate(run(pool, 3, "paceline", "odd_tensors")):
        column = matrix(rank)
        column[:, 1] = matrix(1)[:, 1]
        assert worker == {
            "transposed": (matrix(0) + matrix(1) + matrix(2)).tolist(),
            "column": column.tolist(),
            "number": 3.0,
            "into transposed": [matrix(peer).tolist() for peer in range(3)],
            "parameter": [1.0] * 3,
            "inference": [3.0, 6.0, 9.0],
            "complex": [[3.0, -3.0], [6.0, -6.0], [9.0, -9.0]],
            "objects": [{"rank": peer, "text": "x" * (peer + 1)} for peer in range(3)],
        }


def test_means(pool: LocalPool) -> None:
    # numbers(): index % 5 plus the rank, so the mean over ranks 0, 1, 2 is index % 5 + 1.
    whole = [index % 5 + 1.0 for index in range(6)]
    for rank, worker in enumerate(run(pool, 3, "paceline", "means")):
        assert worker == [whole, whole[2 * rank : 2 * rank + 2]]


def test_operations_under_way(pool: LocalPool) -> None:
    for worker in run(pool, 2, "paceline", "works"):
        assert worker["sums"] == [2.0 * index for index in range(30)]
        assert worker["done"]
        assert worker["doubled"] == [2.0, 6.0, 10.0]
        assert worker["crossed"] == [2.0, 2.0]
        assert "modified by an inplace operation" in worker["complaint"]


def test_a_callback_cannot_wait_for_what_comes_after_it(pool: LocalPool) -> None:
    for complaint in run(pool, 2, "paceline", "wait_in_callback"):
        assert "all_reduce in a callback of another operation would wait for itself" in complaint


def test_an_aborted_group_says_so(pool: LocalPool) -> None:
    for complaints in run(pool, 2, "paceline", "aborted"):
        assert len(complaints) == 2
        assert all("the process group was aborted" in complaint for complaint in complaints)


def test_groups_of_some_workers(pool: LocalPool) -> None:
    assert on_both(pool, 4, "groups", members=[1, 3]) == [[], [4.0, 4.0], [], [4.0, 4.0]]
    assert on_both(pool, 2, "groups", members=[1]) == [[], [1.0, 1.0]]


def test_a_world_after_another_at_one_store(pool: LocalPool) -> None:
    assert run(pool, 2, "paceline", "again", times=3) == [[0.0, 2.0, 4.0]] * 2


@pytest.mark.parametrize(
    "options",
    [
        {"bucket_mb": 25.0, "hook": False, "find_unused": False},
        {"bucket_mb": 0.0001, "hook": False, "find_unused": True},
        {"bucket_mb": 0.0001, "hook": True, "find_unused": False},
    ],
)
def test_stock_ddp(pool: LocalPool, options: dict[str, Any]) -> None:
    gloo, ours = (run(pool, 3, backend, "train", **options) for backend in BACKENDS)
    assert ours[0] == ours[1] == ours[2]
    for name, expected in gloo[0].items():
        # Sums of three float32 in another order: 1e-7 in a gradient, and four steps are few.
        torch.testing.assert_close(torch.tensor(ours[0][name]), torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_one_that_does_not_come_is_named(pool: LocalPool) -> None:
    heard = run(pool, 3, "paceline", "wait_in_vain", timeout_s=5.0, silent=2)
    for rank in (0, 1):
        expected = f"all_reduce failed: worker {rank} received nothing from worker 2 in 5 s (the time limit)"
        assert heard[rank] == expected


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [("aaaa", "shm"), ("aabb", "hierarchical"), ("abba", "hierarchical"), ("abcd", "gloo"), ("a", "gloo")],
)
def test_the_hosts_decide_what_carries_it(pool: LocalPool, hosts: str, expected: str) -> None:
    found = run(pool, len(hosts), "paceline", "comm_of_the_world", hosts=hosts)
    assert found == [f"{expected} {len(hosts)}"] * len(hosts)


@pytest.mark.slow
def test_collectives_on_several_hosts(pool: LocalPool) -> None:
    expected = run(pool, 4, "gloo", "collectives", numel=5)
    assert run(pool, 4, "paceline", "collectives", numel=5, hosts="abba") == expected
    assert run(pool, 3, "paceline", "long_vectors", numel=3_000_000, hosts="aba") == [True] * 3


LOSES_A_PEER = """
import os, torch, torch.distributed as dist, paceline
dist.init_process_group("paceline")
dist.barrier()
if dist.get_rank() == 2:
    os._exit(0)
message = []
for turn in range(2):
    try:
        dist.all_reduce(torch.ones(100000))
    except RuntimeError as error:
        message.append(f"{type(error).__name__} {error}")
print(message)
os._exit(0)
"""


def test_one_that_died_is_named_long_before_the_time_limit() -> None:
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environments = [{**place, "RANK": str(rank)} for rank in range(3)]
    with python_processes(*[["-c", LOSES_A_PEER]] * 3, environments=environments) as processes:
        for rank in (0, 1):
            out, err = processes[rank].communicate(timeout=150)  # the group's own limit is half an hour
            expected = f"DistBackendError all_reduce failed: worker {rank} lost worker 2: its process is gone"
            assert out.strip() == str([expected, expected]), err


ORDERS = {
    "torch first": "import torch, paceline",
    "paceline first": "import paceline, torch",
    "torch.distributed first": "import torch.distributed; import paceline",
    "only a part of paceline": "from paceline.comm import base",
    "paceline twice": "import paceline, importlib, torch; importlib.reload(paceline)",
    "nobody asks for torch by name": "import paceline; paceline.Comm",
}


@pytest.mark.parametrize(
    "order", ["torch first", "paceline first", *(pytest.param(o, marks=pytest.mark.slow) for o in [*ORDERS][2:])]
)
def test_both_imports_in_any_order_make_it_known(order: str) -> None:
    check = "import torch.distributed as dist; print(dist.Backend.backend_list.count('paceline'))"
    command = [sys.executable, "-W", "error::ImportWarning", "-c", f"{ORDERS[order]}\n{check}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert ended.stdout.strip() == "1", ended.stderr


def test_importing_paceline_does_not_import_torch() -> None:
    script = "import paceline, sys; print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=150)
    assert ended.stdout.strip() == "False"


def losses(backend: str) -> list[float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = str(REPOSITORY / "examples" / "ddp_backend.py")
    ended = subprocess.run(
        [*command, script, "--backend", backend], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    return [float(line.split()[-1]) for line in ended.stdout.splitlines() if line.startswith("step")]


@pytest.mark.slow
def test_the_example_learns_as_on_gloo() -> None:
    ours = losses("paceline")
    assert len(ours) == 20
    assert ours[-1] < 0.5 * ours[0]
    assert ours == pytest.approx(losses("gloo"), abs=2e-6)  # printed to six places


def test_a_host_has_one_name() -> None:
    script = "from paceline.comm.worker_placement import host_identity; print(host_identity())"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=150)
    assert ended.stdout.strip() == host_identity().strip()
