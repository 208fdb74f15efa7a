"""What workers write about themselves while they train, on every kind of comm."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from helpers import ignore_event, on_threads
from paceline.comm import Comm
from paceline.errors import WorkerError
from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.recipe import Recipe
from paceline.study.entries import make_entry
from paceline.study.run import execute, run_folder
from paceline.train.context import Context
from paceline.train.job import train_job
from recorded import assert_complete, assert_matching, assert_nested, of_kind, read_workers

STEPS = 5
LOOP = ["data", "forward", "backward", "communication", "optimizer", "communication"]
SMALL = {"data.train_samples": 60, "data.test_samples": 100, "train.batch_size": 30, "train.iterations": STEPS}
NBYTES = 4 * 61_706  # of all parameters of lenet5


def recipe_for(workers: int, changes: dict[str, Any] | None = None) -> Recipe:
    return Recipe().replace({**SMALL, "workers": workers, **(changes or {})})


def record(pool: LocalPool, folder: Path, strategy: str, comm: str, changes: dict[str, Any] | None = None) -> Any:
    recipe = recipe_for(3, changes)
    arguments = {"recipe": recipe, "strategy": strategy, "checkpoint": "", "folder": str(folder)}
    if comm == "threads":
        return on_threads(3, train_job, timeout_s=60, **arguments)
    return pool.run(Task(train_job, arguments, num_workers=3, comm=comm, timeout_s=20.0), ignore_event)


def payload(lines: list[dict[str, Any]], op: str) -> int:
    return sum(line["bytes"] for line in of_kind(lines, "op") if line["op"] == op)


STRATEGIES = ["ring", "ddp", "overlap", "gather-scatter", "sharded", "overlap:bucket_mb=0.02"]
COMMS = ["torch", "shm", "threads", "hierarchical"]


# Threads have no process group for ddp.
@pytest.mark.each_choice
@pytest.mark.parametrize(
    ("strategy", "comm"), [pair for pair in itertools.product(STRATEGIES, COMMS) if pair != ("ddp", "threads")]
)
def test_every_worker_tells_the_same_story(pool: LocalPool, tmp_path: Path, strategy: str, comm: str) -> None:
    results = record(pool, tmp_path, strategy, comm)
    workers = read_workers(tmp_path)
    for rank, lines in enumerate(workers):
        assert_complete(lines, rank, STEPS)
        assert_nested(lines)
        phases = [line["phase"] for line in of_kind(lines, "span")]
        assert phases[: STEPS * len(LOOP)] == LOOP * STEPS
        assert set(phases[STEPS * len(LOOP) :]) == {"evaluation"}
        assert {line["medium"] for line in of_kind(lines, "op")} == {"network" if comm == "torch" else "memory"}
        assert of_kind(lines, "blocked")
        steps = of_kind(lines, "step")
        assert steps[-1]["sent_bytes"] == results[rank]["sent_bytes"]
        for key in ("iteration_s", "data_s", "loss", "num_right", "num_answers", "num_samples"):
            assert [line[key] for line in steps] == list(results[rank][key])
    assert_matching(workers)


@pytest.mark.parametrize("comm", ["torch", "shm"])
@pytest.mark.parametrize("strategy", ["ddp", "overlap", "all-reduce"])
def test_all_bytes_of_all_steps_are_there(pool: LocalPool, tmp_path: Path, strategy: str, comm: str) -> None:
    record(pool, tmp_path, strategy, comm)
    for lines in read_workers(tmp_path):
        assert payload(lines, "all_reduce") == STEPS * NBYTES


def test_large_buckets_begin_within_backward(pool: LocalPool, tmp_path: Path) -> None:
    """Of vgg11's buckets the first begins long before backward ends, and torch says when each is complete."""
    changes = {"model.name": "vgg11", "data.name": "synthetic:3x32x32x10", "train.iterations": 2}
    for strategy in ("ddp", "overlap"):
        (tmp_path / strategy).mkdir()
        record(pool, tmp_path / strategy, strategy, "torch", {**changes, "train.batch_size": 3})
        workers = read_workers(tmp_path / strategy)
        for lines in workers:
            assert_nested(lines)
            (backward,) = [s for s in of_kind(lines, "span") if s["phase"] == "backward" and s["step"] == 1]
            operations = [op for op in of_kind(lines, "op") if op["step"] == 1]
            assert len(operations) > 1
            assert backward["begin_s"] < operations[0]["begin_s"] < backward["end_s"]
            assert operations[0]["begin_s"] < operations[0]["end_s"]
        assert_matching(workers)


def test_micro_batches_have_phases_of_their_own(pool: LocalPool, tmp_path: Path) -> None:
    record(pool, tmp_path, "all-reduce", "torch", {"train.micro_batch_size": 4})
    for lines in read_workers(tmp_path):
        assert_nested(lines)
        phases = [line["phase"] for line in of_kind(lines, "span") if line["step"] == 0]
        assert phases == ["data", *["forward", "backward"] * 3, "communication", "optimizer", "communication"]


def test_evaluations_amid_the_run_and_after_it(pool: LocalPool, tmp_path: Path) -> None:
    record(pool, tmp_path, "ring", "torch", {"train.eval_every": 1})
    for lines in read_workers(tmp_path):
        assert_nested(lines)
        evaluations = [line["step"] for line in of_kind(lines, "span") if line["phase"] == "evaluation"]
        assert evaluations == [1, 3, STEPS - 1]


def test_without_measuring_only_steps_are_written(pool: LocalPool, tmp_path: Path) -> None:
    record(pool, tmp_path, "ring", "torch", {"measure.spans": False, "measure.sample_hz": 0.0})
    for rank, lines in enumerate(read_workers(tmp_path)):
        assert_complete(lines, rank, STEPS)
        assert {line["kind"] for line in lines} == {"head", "step", "end"}


def test_servers_are_peers(pool: LocalPool, tmp_path: Path) -> None:
    entry = make_entry("parameter-server", recipe_for(2))
    folder = run_folder(tmp_path, "run", pool)
    execute(pool, recipe_for(2), entry, folder=folder, on_event=ignore_event)
    for rank, lines in enumerate(read_workers(tmp_path / "run")):
        assert_complete(lines, rank, STEPS)
        assert {line["peer"] for line in of_kind(lines, "op") if line["op"] in ("send", "recv")} == {2}


def apart(context: Context, recipe: Recipe, folder: str) -> None:
    """Only rank 0 can see the run's folder: for the others it has another name."""
    hide = _Hidden(context.comm, folder) if context.rank else context.comm
    train_job(Context(hide), recipe, "all-reduce", "", folder if context.rank == 0 else "")


class _Hidden:
    """A comm of a worker on another host, where rank 0's folder is not."""

    def __init__(self, comm: Comm, folder: str) -> None:
        self.__dict__.update(comm=comm, folder=folder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.comm, name, value)

    def broadcast(self, tensor: Any, root: int = 0) -> None:
        self.comm.broadcast(tensor, root)
        if bytes(tensor.tolist() if tensor.dtype.itemsize == 1 else b"") == self.folder.encode():
            tensor.fill_(ord("x"))


def test_files_of_workers_on_other_hosts_come_to_rank_0(tmp_path: Path) -> None:
    on_threads(3, apart, timeout_s=60, recipe=recipe_for(3), folder=str(tmp_path))
    workers = read_workers(tmp_path)
    assert len(workers) == 3
    for rank, lines in enumerate(workers):
        assert_complete(lines, rank, STEPS)
    assert_matching(workers)


def fail_late(context: Context, **arguments: Any) -> Any:
    import paceline.train.trainer as module

    own_step = module.Trainer._step

    def step(trainer: Any, number: int, *place: int) -> None:
        own_step(trainer, number, *place)
        if number == 3 and context.rank == 1:
            raise ValueError("enough")

    module.Trainer._step = step  # type: ignore[method-assign]
    try:
        return train_job(context, **arguments)
    finally:
        module.Trainer._step = own_step  # type: ignore[method-assign]


def test_a_failed_run_keeps_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.study.run.train_job", fail_late)
    recipe = recipe_for(2)
    with LocalPool(2) as own:
        folder = run_folder(tmp_path, "run", own)
        with pytest.raises(WorkerError):
            execute(own, recipe, make_entry("all-reduce", recipe), folder=folder, on_event=ignore_event)
    first, second = read_workers(tmp_path / "run")
    assert first[0]["kind"] == second[0]["kind"] == "head"
    assert [line["step"] for line in of_kind(second, "step")] == [0, 1, 2, 3]
    assert second[-1] == {"kind": "end", "dropped": 0}
    assert first[-1]["kind"] == "end"
