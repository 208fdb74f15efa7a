"""Workers that die, are stopped, hang or raise, in every phase of a run: who is named, with which last operation."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import jobs
from command import run_command
from helpers import child_processes, ignore_event
from paceline.comm import comms
from paceline.errors import WorkerError
from paceline.launch import pool as pools
from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.recipe import Recipe
from paceline.runs import Folder, read
from paceline.study.entries import make_entry
from paceline.study.run import execute, training_task
from paceline.train.context import Event
from paceline.worker_activity import Snapshot

TIMEOUT_S = 5.0
# When to send a signal, by phase.
PHASES: dict[str, Callable[[Snapshot], bool]] = {
    "rendezvous": lambda at: at.stage == "rendezvous",
    "first step": lambda at: at.step == 0,
    "forward": lambda at: at.step > 5 and at.stage == "forward",
    "backward": lambda at: at.step > 5 and at.stage == "backward",
    "communication": lambda at: at.step > 5 and at.is_waiting,
    "evaluation": lambda at: at.stage == "evaluation",
    "finish": lambda at: at.stage == "finish",
}
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def make_task(comm: str, strategy: str, *, iterations: int = 60, inject: str = "") -> Task:
    recipe = Recipe().replace(
        {
            "workers": 3,
            "train.batch_size": 9,
            "train.iterations": iterations,
            "data.train_samples": 90,
            "data.test_samples": 500,
            "train.eval_every": 1,
            "timeout_s": TIMEOUT_S,
            "comm": comm,
            "measure.inject": [inject] if inject else [],
        }
    )
    entry = make_entry(strategy, recipe)
    return training_task(entry.recipe(recipe), entry, None, checkpoint="")


@contextmanager
def sending(pool: LocalPool, rank: int, number: int, when: Callable[[Snapshot], bool]) -> Iterator[None]:
    """Send a signal to a worker as soon as its activity fulfils a condition."""
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            if len(pool._processes) > rank and when(pool._processes[rank].activity.read()):
                os.kill(pool._processes[rank].popen.pid, number)
                return
            time.sleep(0.0005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def fail(pool: LocalPool, task: Task) -> WorkerError:
    with pytest.raises(WorkerError) as caught:
        pool.run(task, ignore_event)
    assert child_processes() == {}
    return caught.value


@pytest.mark.parametrize(
    ("inject", "sentence"),
    [
        ("stop:rank=2,step=7", r"worker 2 did not answer within 5 s: it is stopped since step 7, in "),
        (
            "hang:rank=1,step=7",
            r"worker 1 did not answer within 5 s: it hangs in step 7, in .*; it blocked worker 0, 2",
        ),
        ("raise:rank=2,step=7", r"worker 2 raised RuntimeError: fault injected in step 7"),
        (
            "kill:rank=0,step=7",
            r"worker 0 died: its process was ended by signal 9 \(SIGKILL\); last known: step 7, in ",
        ),
    ],
)
def test_an_injected_fault_is_named(inject: str, sentence: str) -> None:
    with LocalPool(3) as pool, pytest.raises(WorkerError, match=sentence):
        pool.run(make_task("torch", "all-reduce", inject=inject), ignore_event)


def test_a_worker_that_exits_is_named() -> None:
    with (
        LocalPool(2) as pool,
        pytest.raises(WorkerError, match=r"^worker 1 died: its process ended with exit code 7; "),
    ):
        pool.run(Task(jobs.exit_on, {"rank": 1}, num_workers=2), ignore_event)


def test_a_dead_worker_whose_child_keeps_the_pipe_open_is_named() -> None:
    with LocalPool(2) as pool, pytest.raises(WorkerError, match=r"^worker 1 died: its process was ended by signal 9"):
        pool.run(Task(jobs.kill_beside_child, {"rank": 1}, num_workers=2, timeout_s=30), ignore_event)


def test_a_kill_for_lack_of_memory_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    kills = iter(range(100))
    monkeypatch.setattr(pools, "num_oom_kills", lambda: next(kills))
    with (
        LocalPool(2) as pool,
        pytest.raises(WorkerError, match="it probably ran out of memory: use a smaller --worker"),
    ):
        pool.run(Task(jobs.kill_itself, {"rank": 1}, num_workers=2), ignore_event)


def test_a_single_stopped_worker_is_named_although_nobody_waits_for_it() -> None:
    with LocalPool(1) as pool:
        error = fail(pool, Task(jobs.stop_on, {"rank": 0}, num_workers=1, timeout_s=2.0))
    assert str(error) == "worker 0 did not answer within 2 s: it is stopped since before the first step, in rendezvous"


@pytest.mark.slow
def test_a_worker_that_is_stopped_while_it_starts_is_named() -> None:
    with LocalPool(2) as pool, sending(pool, 1, signal.SIGSTOP, lambda _: True):
        error = fail(pool, Task(jobs.rank_of, num_workers=2, timeout_s=TIMEOUT_S))
    assert str(error) == "worker 1 did not start within 5 s: it is stopped"


def fault_rows() -> list[tuple[str, str, str, str]]:
    """Return comm, strategy, phase and fault: every phase with all-reduce, and two phases with each other strategy."""
    others = [
        ("torch", "ddp"),
        ("torch", "parameter-server"),
        ("torch", "parameter-server:mode=async"),
        ("shm", "overlap"),
        ("shm", "ring"),
        ("hierarchical", "ddp"),
    ]
    phases = list(PHASES)
    rows = [("torch", "all-reduce", phase, fault) for phase in phases for fault in SIGNALS]
    for number, (comm, strategy) in enumerate(others):
        rows += [(comm, strategy, phases[(number + 3 * k) % len(phases)], fault) for k, fault in enumerate(SIGNALS)]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(("comm", "strategy", "phase", "fault"), fault_rows())
def test_a_fault_in_any_phase_on_any_comm_is_named(comm: str, strategy: str, phase: str, fault: str) -> None:
    if comms.get(comm).unavailable():
        pytest.skip(f"comm {comm}: {comms.get(comm).unavailable()}")
    task = make_task(comm, strategy)
    with LocalPool(task.num_processes) as pool, sending(pool, 1, SIGNALS[fault], PHASES[phase]):
        error = fail(pool, task)
    assert error.rank == 1
    assert ("died: its process was ended by signal 9" if fault == "kill" else "it is stopped since") in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("fault", SIGNALS)
def test_a_fault_of_a_server_is_named(fault: str) -> None:
    task = make_task("torch", "parameter-server", iterations=10_000)
    with LocalPool(4) as pool, sending(pool, 3, SIGNALS[fault], lambda at: at.total > 100):
        error = fail(pool, task)
    assert str(error).startswith("server 0 (rank 3) ")
    assert error.rank == 3


@pytest.mark.slow
def test_a_run_is_started_again_after_a_failure(tmp_path: Path) -> None:
    recipe = make_task("torch", "all-reduce", iterations=12, inject="kill:rank=1,step=7").arguments["recipe"]
    events: list[Event] = []
    with LocalPool(3) as pool:
        result = execute(
            pool,
            recipe,
            make_entry("all-reduce", recipe),
            folder=Folder(tmp_path, "run"),
            on_event=events.append,
            restarts=2,
        )
    assert result is not None
    assert result.replicas_equal
    [restart] = [event["text"] for event in events if event["kind"] == "warning"]
    assert restart.startswith("worker 1 died: its process was ended by signal 9 (SIGKILL); last known: step 7, in ")
    assert restart.endswith("restart 1 of 2, from step 0")
    assert read(tmp_path / "run").status == "done"
    steps = [line for line in (tmp_path / "run/workers/1.jsonl").read_text().splitlines() if '"kind":"step"' in line]
    assert len(steps) == 12  # of the second attempt only


def test_restarts_need_one_process_that_starts_all_workers() -> None:
    code, _, err = run_command("run", "--restarts", "1", "--nnodes", "2")
    assert code == 2
    assert "--restarts needs one process that starts all workers; leave out --nnodes" in err
