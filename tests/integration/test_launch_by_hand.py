"""Worlds of several parents: two nodes started by hand, and workers that torchrun or the like has started."""

from __future__ import annotations

import json
import os
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
from paceline.launch.registry import choose_launcher
from paceline.launch.shared_token import secret_from
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


def token_file(folder: Path, name: str, content: bytes, mode: int = 0o600) -> str:
    path = folder / name
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.slow
def test_nodes_with_the_same_token_join(tmp_path: Path) -> None:
    port, words = str(free_port()), ["2", "same"]
    one, other = token_file(tmp_path, "one", b"a" * 32), token_file(tmp_path, "other", b"a" * 32 + b"\n")
    main, second = answers([["node", "0", port, one, *words], ["node", "1", port, other, *words]])
    assert main["runs"] == [[[rank, size, "same"] for rank in range(size)] for size in (2, 1)]
    assert second["runs"] == [[], []]


def test_a_node_with_another_token_is_refused_on_both_sides(tmp_path: Path) -> None:
    port, words = str(free_port()), ["2", "same"]
    one = token_file(tmp_path, "one", b"a" * 32)
    commands = [["node", "0", port, one, *words], ["node", "1", port, *words]]  # the second has none
    environments: list[dict[str, str]] = [{"TIMEOUT_S": "10"}, {"TIMEOUT_S": "60"}]
    main, other = answers(commands, environments)
    assert main == {
        "kind": "RunError",
        "error": "node 1 did not connect within 10 s (refused: another --token-file or none, from 127.0.0.1); start "
        "the same command on that host with --node-rank 1",
    }
    assert other == {
        "kind": "RunError",
        "error": f"node 1 cannot join at 127.0.0.1:{port}: node 0 has another secret; give all nodes the same "
        "--token-file, with the same content",
    }


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"a" * 32, 0o644, "can be read or written by other users; run `chmod 600`"),
        (b"a" * 32, 0o620, "can be read or written by other users"),
        (b"a" * 15 + b"\n" * 10, 0o600, "must have 16 to 65536 bytes, not 15; create one with"),
        (b"", 0o600, "must have 16 to 65536 bytes, not 0"),
        (b"a" * 70_000, 0o600, "must have 16 to 65536 bytes"),
    ],
)
def test_unsuitable_token_files_are_refused(tmp_path: Path, content: bytes, mode: int, reason: str) -> None:
    name = token_file(tmp_path, "token", content, mode)
    with pytest.raises(UsageError, match=reason):
        choose_launcher(LaunchRequest(num_nodes=2, token_file=name))


def test_what_is_no_token_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, reason in (
        ("none", "No such file"),
        ("pipe", "must have 16 to"),
        (".", "Is a directory"),
        ("\0", "cannot be"),
    ):
        with pytest.raises(UsageError, match=reason):
            choose_launcher(LaunchRequest(num_nodes=2, token_file=str(tmp_path / name)))
    with pytest.raises(UsageError, match="--token-file needs --nnodes, which is not given"):
        LaunchRequest(token_file="token")


def test_hosts_without_a_token_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no other host can join at 10\.0\.0\.1: create one with .* add --token-file"):
        choose_launcher(LaunchRequest(num_nodes=2, master_addr="10.0.0.1"))


def test_nodes_on_one_host_share_a_secret_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    first = secret_from("", "127.0.0.1")
    (path,) = (tmp_path / ".cache" / "paceline").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert (secret_from("", "localhost"), len(first)) == (first, 32)
    assert first not in path.read_bytes()
    path.write_text("b" * 32)
    assert secret_from("", "::1") != first
    path.chmod(0o644)
    with pytest.raises(UsageError, match="can be read or written by other users"):
        secret_from("", "127.0.0.1")


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
