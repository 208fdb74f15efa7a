"""Whole runs with servers: what is stored, who is named when one dies, and worlds that somebody else started."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from helpers import child_processes, free_port, ignore_event, python_processes
from paceline.checkpoint import step_folders
from paceline.errors import WorkerError
from paceline.launch.local import LocalPool
from paceline.recipe import Recipe
from paceline.results import RunResult
from paceline.runs import Folder, read
from paceline.study.entries import make_entry
from paceline.study.run import execute

SMALL = {"data.train_samples": 64, "data.test_samples": 50, "train.batch_size": 32, "workers": 2}


def run(launcher: LocalPool, out: Path, strategy: str, on_event: Any = ignore_event, **changes: Any) -> RunResult:
    recipe = Recipe().replace({**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}})
    entry = make_entry(strategy, recipe)
    result = execute(launcher, recipe, entry, folder=Folder(out, "run"), on_event=on_event)
    assert result is not None
    return result


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_run_with_servers_is_stored_with_what_was_measured(pool: LocalPool, tmp_path: Path, mode: str) -> None:
    strategy = f"parameter-server:servers=2:mode={mode}"
    changes = {"train__epochs": 4, "train__checkpoint_every": 2, "train__eval_every": 2}
    result = run(pool, tmp_path, strategy, **changes)
    assert (result.workers, result.servers) == (2, 2)
    assert result.replicas_equal
    assert len(result.evaluations) == 2
    # Note and gradient; 61,706 numbers in ten tensors, over two servers, in each of eight steps.
    assert {w.sent_bytes for w in result.per_worker} == {8 * (4 * 61_706 + 8 * (2 * 3 + 10))}
    assert {w.received_bytes for w in result.per_worker} == {8 * (4 * 61_706 + 8 * 2 * 4)}
    late = result.staleness_updates
    if mode == "sync":
        assert late is None
    else:
        assert sum(late.counts.values()) == 2 * 2 * 8  # workers x servers x steps
        assert late.max >= late.mean > 0  # two workers cannot both be first every time
    folder = tmp_path / "run" / "checkpoints"
    weights = ["epoch-2.safetensors", "epoch-4.safetensors", "final.safetensors"]
    assert sorted(file.name for file in folder.iterdir() if file.is_file()) == weights
    assert [path.name for path in step_folders(folder)] == ["step-00000008", "step-00000004"]
    second, last, final = (load_file(folder / name) for name in weights)
    assert second.keys() == last.keys() == final.keys()
    assert not second["conv1.weight"].equal(last["conv1.weight"])
    if mode == "sync":
        assert all(last[name].equal(final[name]) for name in final)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_server_that_is_killed_is_named_and_the_last_checkpoint_stands(tmp_path: Path, mode: str) -> None:
    with LocalPool(4) as launcher:

        def kill_a_server(event: dict[str, Any]) -> None:
            if event["kind"] == "progress" and event["rank"] == 0 and event["epoch"] >= 3 and not killed:
                killed.append(launcher._processes[3].popen.pid)
                os.kill(killed[0], signal.SIGKILL)

        killed: list[int] = []
        strategy = f"parameter-server:servers=2:mode={mode}"
        changes = {"train__epochs": 10_000, "train__checkpoint_every": 1, "timeout_s": 20.0}
        with pytest.raises(WorkerError) as caught:
            run(launcher, tmp_path, strategy, kill_a_server, **changes)
        assert str(caught.value).startswith(
            "server 1 (rank 3) died: its process was ended by signal 9 (SIGKILL); last known: "
        )
        assert caught.value.rank == 3
        assert child_processes() == {}
    stored = read(tmp_path / "run")
    assert stored.status == "failed"
    assert stored.error == str(caught.value)
    checkpoints = sorted((tmp_path / "run" / "checkpoints").glob("epoch-*.safetensors"))
    assert {"epoch-1.safetensors", "epoch-2.safetensors"} <= {file.name for file in checkpoints}
    for file in checkpoints[:3]:
        assert load_file(file)["conv1.weight"].shape == (6, 1, 5, 5)


@pytest.mark.slow
def test_a_server_that_hangs_is_named_by_those_who_wait(tmp_path: Path) -> None:
    with LocalPool(3) as launcher:

        def stop_the_server(event: dict[str, Any]) -> None:
            if event["kind"] == "progress":
                os.kill(launcher._processes[2].popen.pid, signal.SIGSTOP)

        changes = {"train__epochs": 10_000, "timeout_s": 8.0}
        with pytest.raises(WorkerError, match=r"^server 0 \(rank 2\) did not answer within 8 s: it is stopped since "):
            run(launcher, tmp_path, "parameter-server", stop_the_server, **changes)
        assert child_processes() == {}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_worker_that_is_killed_is_named_and_takes_the_servers_along(tmp_path: Path, mode: str) -> None:
    with LocalPool(3) as launcher:

        def kill_a_worker(event: dict[str, Any]) -> None:
            if event["kind"] == "progress" and not killed:
                killed.append(launcher._processes[1].popen.pid)
                os.kill(killed[0], signal.SIGKILL)

        killed: list[int] = []
        changes = {"train__epochs": 10_000, "timeout_s": 20.0}
        with pytest.raises(WorkerError, match=r"^worker 1 died: its process was ended by signal 9"):
            run(launcher, tmp_path, f"parameter-server:mode={mode}", kill_a_worker, **changes)
        assert child_processes() == {}


COMMAND = ["-m", "paceline", "run", "--strategy", "parameter-server", "--iterations", "3", "--timeout", "30"]
COMMAND += ["--train-samples", "64", "--test-samples", "50", "--batch-size", "32"]


def outcomes(commands: list[list[str]], environments: list[dict[str, str]]) -> list[tuple[int, str, str]]:
    found = []
    with python_processes(*commands, environments=environments) as processes:
        for process in processes:
            out, err = process.communicate(timeout=100)
            found.append((process.returncode, out, err))
    return found


@pytest.mark.slow
def test_under_torchrun_the_last_rank_serves(tmp_path: Path) -> None:
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "COLUMNS": "150"}
    environments = [{**place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(3)]
    target = tmp_path / "result.json"
    command = [*COMMAND, "--out", str(tmp_path / "runs"), "--json", str(target)]
    (code, out, err), *others = outcomes([command] * 3, environments)
    assert code == 0, err
    assert "2 workers and 1 server (rank 2)" in out
    assert [other[0] for other in others] == [0, 0], others
    [result] = json.loads(target.read_text())["results"]
    assert (result["workers"], result["servers"], result["replicas_equal"]) == (2, 1, True)


def test_under_torchrun_workers_that_leave_no_room_for_servers() -> None:
    place = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "COLUMNS": "200"}
    wrong = [*COMMAND, "--workers", "3"]
    few = [{**place, "WORLD_SIZE": "1"}]
    [(code, _, err)] = outcomes([wrong], [place])
    assert code == 2
    sentence = "--workers 3 conflicts with the 2 workers that torchrun started (3 processes, 1 of them servers)"
    assert sentence in " ".join(err.split())
    [(code, _, err)] = outcomes([COMMAND], few)
    assert code == 2
    sentence = "the strategy needs 1 server and at least 1 worker, but torchrun started 1 process in all"
    assert sentence in " ".join(err.split())


def nodes_by_hand(port: int, tmp_path: Path, *more: str) -> list[list[str]]:
    """Two workers on the first node and two servers on the second."""
    strategy = ["--strategy", "parameter-server:servers=2", "--workers", "2", "--nnodes", "2"]
    place = [*strategy, "--master-port", str(port), "--out", str(tmp_path / "runs"), *more]
    return [[*COMMAND, *place, "--node-rank", rank] for rank in ("0", "1")]


@pytest.mark.slow
def test_servers_on_a_node_of_their_own(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    commands = nodes_by_hand(free_port(), tmp_path, "--json", str(target))
    found = outcomes(commands, [{"COLUMNS": "150"}] * 2)
    assert [code for code, _, _ in found] == [0, 0], found
    assert "2 workers and 2 servers (ranks 2 to 3)" in found[0][1]
    [result] = json.loads(target.read_text())["results"]
    assert (result["workers"], result["servers"], result["replicas_equal"]) == (2, 2, True)


@pytest.mark.slow
def test_servers_on_a_node_of_their_own_end_with_the_workers_node(tmp_path: Path) -> None:
    [first, second] = nodes_by_hand(free_port(), tmp_path, "--iterations", "1000000", "--log-every", "1")
    with python_processes(first, second, environments=[{"COLUMNS": "150"}] * 2) as (workers, servers):
        assert any("step 2 of epoch" in line for line in workers.stdout)
        workers.kill()
        _, err = servers.communicate(timeout=100)
        assert servers.returncode == 1
        assert "lost" in err
