"""The library in processes that somebody else started: how they meet, and what happens when one fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helpers import TESTS, free_port, python_processes

SCRIPT = str(TESTS / "one_library_worker.py")


def workers(what: str, num_workers: int = 2, started: int | None = None) -> list[dict[str, Any]]:
    """What each of the workers printed, with the end of its standard error."""
    place = {"WORLD_SIZE": str(num_workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = range(num_workers if started is None else started)
    environments = [{**place, "RANK": str(rank)} for rank in ranks]
    found = []
    with python_processes(*([SCRIPT, what] for _ in ranks), environments=environments) as processes:
        for process in processes:
            out, err = process.communicate(timeout=150)
            found.append({"code": process.returncode, "err": err, **(json.loads(out) if out else {})})
    return found


def assert_done(found: list[dict[str, Any]]) -> None:
    for worker in found:
        assert worker["code"] == 0, worker["err"]
        assert "result" in worker, worker


@pytest.mark.slow
def test_two_sessions_one_after_the_other() -> None:
    found = workers("sessions", 3)
    assert_done(found)
    assert found[0]["result"] == found[1]["result"] == found[2]["result"]
    assert len(found[0]["result"]) == 2
    assert not any("finish" in worker["err"] for worker in found)


def test_torch_distributed_was_there_first() -> None:
    found = workers("existing")
    assert_done(found)
    assert [worker["result"][:2] for worker in found] == [[0, 2], [1, 2]]
    assert found[0]["result"][2] == found[1]["result"][2]
    assert found[0]["result"][3] == 2


@pytest.mark.slow
def test_a_place_given_in_words() -> None:
    found = workers("by_hand")
    assert_done(found)
    assert found[0]["result"] == found[1]["result"]


@pytest.mark.slow
def test_a_peer_that_dies_is_an_error_of_backward() -> None:
    first, second = workers("died")
    assert second["code"] == 3
    assert first["kind"] == "CommError"
    assert first["error"] == "worker 0 lost worker 1: its process is gone"


def test_a_peer_that_does_not_come_is_named() -> None:
    [first] = workers("absent", started=1)
    assert first["kind"] == "RunError"
    assert first["error"] == (
        "worker 0 got no answer from worker 1 in paceline.init() within 1.5 s; "
        "every worker must call it at about the same time"
    )


@pytest.mark.slow
def test_workers_that_made_different_numbers_of_steps() -> None:
    for worker in workers("uneven"):
        assert worker["kind"] == "RunError"
        assert "worker 0 made 2 steps and worker 1 made 3" in worker["error"]


@pytest.mark.slow
def test_a_forgotten_finish_is_said_where_replicas_may_differ() -> None:
    for rank, worker in enumerate(workers("forgotten")):
        assert worker["code"] == 0, worker["err"]
        assert f"worker {rank} exits without paceline.finish()" in worker["err"]
    for worker in workers("forgotten_exact"):
        assert worker["code"] == 0, worker["err"]
        assert "paceline.finish" not in worker["err"]
