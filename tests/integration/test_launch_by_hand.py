"""Worlds of several parents: two nodes started by hand, and workers that torchrun or the like has started."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from helpers import TESTS, free_port, ignore_event, python_processes
from paceline.comm.torch import make_store
from paceline.comm.worker_placement import choose_comm
from paceline.errors import UsageError
from paceline.launch.base import LaunchRequest, Task
from paceline.launch.torchrun import Torchrun, TorchrunEnv, TorchrunPool

SCRIPT = str(TESTS / "one_of_several.py")


def answers(commands: list[list[str]], environments: list[dict[str, str]] | None = None) -> list[dict[str, Any]]:
    found = []
    with python_processes(*([SCRIPT, *words] for words in commands), environments=environments) as processes:
        for process in processes:
            out, err = process.communicate(timeout=150)
            assert process.returncode == 0, err
            found.append(json.loads(out))
    return found


def test_two_nodes_make_one_world() -> None:
    port = str(free_port())
    main, other = answers([["node", "0", port, "4", "same"], ["node", "1", port, "4", "same"]])
    assert main == {
        "is_main": True,
        "runs": [[[rank, size, "same"] for rank in range(size)] for size in (4, 3)],
    }
    assert other == {"is_main": False, "runs": [[], []]}


@pytest.mark.slow
def test_auto_on_two_nodes_is_hierarchical(tmp_path: Path) -> None:
    request = ["-m", "paceline", "run", "--workers", "4", "--comm", "auto", "--strategy", "ddp", "--iterations", "3"]
    request += ["--data", "synthetic:1x28x28x10", "--train-samples", "32", "--test-samples", "8", "--batch-size", "8"]
    request += ["--nnodes", "2", "--master-port", str(free_port()), "--out", str(tmp_path / "runs")]
    report = tmp_path / "report.json"
    nodes = [[*request, "--node-rank", str(rank), *(["--json", str(report)] if rank == 0 else [])] for rank in (0, 1)]
    with python_processes(*nodes) as processes:
        for process in processes:
            _, err = process.communicate(timeout=150)
            assert process.returncode == 0, err
    found = json.loads(report.read_text())
    assert found["recipe"]["comm"] == choose_comm(num_workers=4, num_nodes=2)
    workers = found["results"][0]["per_worker"]
    assert [worker["rank"] for worker in workers] == [0, 1, 2, 3]
    assert len({worker["parameter_digest"] for worker in workers}) == 1


@pytest.mark.slow
def test_nodes_with_different_requests_are_told_so() -> None:
    port = str(free_port())
    found = answers([["node", "0", port, "2", "apples"], ["node", "1", port, "2", "pears"]])
    remedy = "give them the same command, except for --node-rank"
    for own, other in ((0, 1), (1, 0)):
        error = f"node {own} and node {other} were started with different requests; {remedy}"
        assert found[own] == {"kind": "UsageError", "error": error}


def test_workers_that_torchrun_started() -> None:
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environments = [{**place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(3)]
    main, *others = answers([["torchrun", "3", "here"]] * 3, environments)
    assert main["runs"] == [[[rank, size, "here"] for rank in range(size)] for size in (3, 2)]
    assert main["is_main"]
    assert others == [{"is_main": False, "runs": [[], []]}] * 2


PLACE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_whether_torchrun_is_here() -> None:
    assert Torchrun.detect(LaunchRequest(environment=PLACE)) is not None
    assert Torchrun.detect(LaunchRequest(environment={"RANK": "0"})) is None
    assert Torchrun.detect(LaunchRequest(environment={})) is None


@pytest.mark.parametrize("change", [{"MASTER_PORT": "http"}, {"WORLD_SIZE": ""}, {"MASTER_ADDR": None}])
def test_a_malformed_environment_is_rejected(change: dict[str, str | None]) -> None:
    environment = {key: value for key, value in {**PLACE, **change}.items() if value is not None}
    with pytest.raises(UsageError, match="RANK is set, but another variable of torchrun is missing or malformed"):
        Torchrun(LaunchRequest(environment=environment)).check()


def test_more_workers_than_torchrun_started() -> None:
    with pytest.raises(UsageError, match="2 workers are requested, but torchrun started 1"):
        Torchrun(LaunchRequest(environment=PLACE)).open(2).run(Task(print, num_workers=2), ignore_event)


class DelayedStore:
    """A store whose reads are delayed, as in a process that the scheduler suspends."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def get(self, key: str) -> Any:
        time.sleep(0.5)
        return self._store.get(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_the_store_stays_open_until_the_slowest_process_has_left() -> None:
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    errors: list[BaseException] = []

    def take_part(rank: int) -> None:
        try:
            with TorchrunPool(TorchrunEnv.from_environment({**place, "RANK": str(rank)})) as launcher:
                store = make_store("127.0.0.1", int(place["MASTER_PORT"]), is_master=rank == 0, timeout_s=10)
                launcher._store = DelayedStore(store) if rank == 1 else store
                del store
                launcher._barrier("end")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=take_part, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert errors == []
