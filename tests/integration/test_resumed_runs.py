"""Runs and studies that end early and continue: by a killed worker, a killed command, a damaged checkpoint."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from command import run_command
from helpers import TESTS, child_processes, ignore_event, python_processes, wait_until_gone
from paceline.checkpoint import find_newest_whole, step_folders
from paceline.checkpoint.rank_files import header_file, tensor_file
from paceline.errors import UsageError, WorkerError
from paceline.launch.local import LocalPool
from paceline.recipe import Recipe
from paceline.results import RunResult, read_file
from paceline.runs import Folder
from paceline.runs.locks import locked
from paceline.study.entries import make_entry
from paceline.study.resumption import find_resumption, read_unfinished
from paceline.study.run import execute
from paceline.worker_files import worker_lines

CODE = str(TESTS / "user_code.py")
STEPS, EVERY, DIES_AT = 24, 5, 17


def recipe_of(strategy: str, *injections: str, **changes: Any) -> Recipe:
    plain = {
        "model.name": f"{CODE}:noisy",
        "data.name": f"{CODE}:data",
        "workers": 2,
        "train.batch_size": 12,
        "train.iterations": STEPS,
        "train.eval_every": 2,
        "train.checkpoint_every": f"{EVERY}steps",
        "optimizer.momentum": 0.9,
        "comm": "torch",
        "timeout_s": 20.0,
        "strategy": strategy,
        "measure.inject": list(injections),
    }
    return Recipe().replace(plain | {key.replace("__", "."): value for key, value in changes.items()})


def run(pool: LocalPool, recipe: Recipe, folder: Path, events: list[dict[str, Any]] | None = None) -> RunResult:
    entry = make_entry(recipe.strategy, recipe)
    record = ignore_event if events is None else events.append
    result = execute(pool, recipe, entry, folder=Folder(folder.parent, folder.name), on_event=record)
    assert result is not None
    return result


def resume(pool: LocalPool, folder: Path, events: list[dict[str, Any]] | None = None) -> RunResult:
    recipe = read_unfinished(folder, {})
    entry = make_entry(recipe.strategy, recipe)
    result = execute(
        pool,
        recipe,
        entry,
        folder=Folder.reopen(folder),
        on_event=ignore_event if events is None else events.append,
        resume=find_resumption(folder, entry.recipe(recipe)),
    )
    assert result is not None
    return result


def what_must_be_equal(result: RunResult) -> dict[str, Any]:
    workers = [
        (one.parameter_digest, one.sent_bytes, one.num_operations, one.train_loss, one.test_loss)
        for one in result.per_worker
    ]
    return {
        "workers": workers,
        "steps": result.steps,
        "warmup": result.warmup_steps,
        "loss": result.curve.loss,
        "sent": result.curve.sent_bytes,
        "evaluations": [(one.step, one.loss, one.accuracy) for one in result.evaluations],
    }


def check_killed_and_resumed(tmp_path: Path, strategy: str, **changes: Any) -> None:
    with LocalPool(4) as pool:
        expected = what_must_be_equal(run(pool, recipe_of(strategy, **changes), tmp_path / "whole"))
        with pytest.raises(WorkerError, match=r"^worker 1 died: its process was ended by signal 9"):
            run(pool, recipe_of(strategy, f"kill:rank=1,step={DIES_AT}", **changes), tmp_path / "broken")
        result = resume(pool, tmp_path / "broken")
    assert what_must_be_equal(result) == expected
    for rank in (0, 1):
        lines = list(worker_lines(tmp_path / "broken" / "workers" / f"{rank}.jsonl"))
        assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(STEPS))
        assert [line["kind"] for line in lines].count("head") == 1
        assert lines[-1]["kind"] == "end"
        begins = [line["begin_s"] for line in lines if line["kind"] == "step"]
        assert begins == sorted(begins)
    assert result.split is not None
    assert result.train_s >= sum(result.curve.iteration_s[:DIES_AT]) / 2


def test_a_killed_run_continues_with_every_random_number(tmp_path: Path) -> None:
    check_killed_and_resumed(tmp_path, "overlap")


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["torch", "shm", "hierarchical"])
@pytest.mark.parametrize(
    "strategy",
    ["ring", "ddp", "sharded", "parameter-server:servers=2", "stepwise:correct=delayed", "gossip", "ring+topk"],
)
def test_strategies_of_killed_runs(tmp_path: Path, strategy: str, comm: str) -> None:
    check_killed_and_resumed(tmp_path, strategy, comm=comm)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"train__precision": "bf16", "model__name": "lenet5", "data__name": "mnist-mini", "data__train_samples": 100},
        {"data__augment": True, "model__name": "lenet5", "data__name": "mnist-mini", "data__train_samples": 100},
        {"optimizer__name": "adam", "optimizer__momentum": 0.0, "schedule__name": "cosine"},
        {"threads": 2},
    ],
)
def test_settings_of_killed_runs(tmp_path: Path, changes: dict[str, Any]) -> None:
    check_killed_and_resumed(tmp_path, "overlap", **changes)


def broken_run(pool: LocalPool, folder: Path) -> None:
    with pytest.raises(WorkerError):
        run(pool, recipe_of("ring", f"kill:rank=1,step={DIES_AT}"), folder)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["tensors", "missing"])
def test_a_damaged_checkpoint_is_skipped_with_its_name_and_reason(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "run"
    events: list[dict[str, Any]] = []
    with LocalPool(2) as pool:
        expected = run(pool, recipe_of("ring"), tmp_path / "whole")
        broken_run(pool, folder)
        # The last checkpoint before the kill may not be whole, because its files were still being written.
        newest = find_newest_whole(folder / "checkpoints").folder
        assert newest is not None
        if damage == "tensors":
            data = bytearray(tensor_file(newest, 1).read_bytes())
            data[len(data) // 2] ^= 1
            tensor_file(newest, 1).write_bytes(data)
            reason = "rank-1.safetensors does not match its checksum"
        else:
            header_file(newest, 1).unlink()
            reason = "rank-1.json is missing"
        assert find_resumption(folder, read_unfinished(folder, {})).step == int(newest.name[5:]) - EVERY
        result = resume(pool, folder, events)
    texts = [event["text"] for event in events if event["kind"] == "warning"]
    assert texts[-1] == f"checkpoint {newest.name} is skipped: {reason}"
    assert what_must_be_equal(result) == what_must_be_equal(expected)


@pytest.mark.slow
def test_without_a_whole_checkpoint_a_run_starts_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with LocalPool(2) as pool:
        with pytest.raises(WorkerError):
            run(pool, recipe_of("ring", "kill:rank=0,step=2"), folder)
        assert find_resumption(folder, read_unfinished(folder, {})).step == 0
        assert resume(pool, folder).steps == STEPS
    with pytest.raises(UsageError, match=r"^run 'run' is finished; `paceline runs show run` shows it$"):
        read_unfinished(folder, {})


@pytest.mark.slow
def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    with LocalPool(2) as pool:
        run(pool, recipe_of("ring", train__keep_checkpoints=2), tmp_path / "run")
    assert [path.name for path in step_folders(tmp_path / "run" / "checkpoints")] == ["step-00000020", "step-00000015"]


@pytest.mark.slow
def test_a_time_between_checkpoints(tmp_path: Path) -> None:
    recipe = recipe_of("ring", "slow:rank=1,ms=60", train__checkpoint_every="1s", train__iterations=70)
    with LocalPool(2) as pool:
        run(pool, recipe, tmp_path / "run")
    folders = step_folders(tmp_path / "run" / "checkpoints")
    assert folders
    assert find_resumption(tmp_path / "run", recipe).step > 0


@pytest.mark.slow
def test_workers_that_cannot_reach_the_folder_say_so(tmp_path: Path) -> None:
    from paceline.study.run import training_task

    recipe = recipe_of("ring")
    entry = make_entry("ring", recipe)
    place = {"folder": str(tmp_path / "elsewhere"), "step": 0, "attempt": 0}
    task = training_task(entry.recipe(recipe), entry, None, checkpoint="", checkpoints=place)
    with LocalPool(2) as pool, pytest.raises(WorkerError, match=r"cannot reach the folder .* for checkpoints; choose"):
        pool.run(task, ignore_event)


@pytest.mark.slow
def test_a_killed_command_continues(tmp_path: Path) -> None:
    options = ["--workers", "2", "--train-samples", "200", "--test-samples", "20", "--batch-size", "10", "--epochs"]
    options += ["10", "--checkpoint-every", "5steps", "--strategy", "ring", "--no-measure"]
    whole = run_command("run", *options, "--out", str(tmp_path / "whole"))
    assert whole.code == 0, whole.err
    before = set(child_processes())
    out = tmp_path / "broken"
    with python_processes(["-m", "paceline", "run", *options, "--out", str(out)]) as [process]:
        deadline = time.monotonic() + 60
        while not list(out.glob("*/checkpoints/step-*/rank-1.json")) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(20)
    assert not wait_until_gone([pid for pid in child_processes() if pid not in before])
    [folder] = [path for path in out.iterdir() if (path / "checkpoints").is_dir()]
    folder = folder.rename(out / "killed")
    resumed = run_command("resume", str(folder))
    assert resumed.code == 0, resumed.err
    assert " after step " in " ".join(resumed.out.split())
    assert digests(folder) == digests(next((tmp_path / "whole").iterdir()))


def digests(folder: Path) -> list[str]:
    return [one.parameter_digest for one in read_file(folder / "summary.json").result.per_worker]


def test_the_command_refuses_what_would_change_the_result(tmp_path: Path) -> None:
    with LocalPool(2) as pool:
        broken_run(pool, tmp_path / "run")
    command = ["run", "--resume", "run", "--out", str(tmp_path)]
    refused = run_command(*command, "--lr", "0.3")
    assert refused.code == 2
    assert "--resume uses the stored recipe, and optimizer.lr differs from it; leave optimizer.lr out" in refused.err
    done = run_command(*command, "--timeout", "30", "--json", str(tmp_path / "result.json"))
    assert done.code == 0, done.err
    assert re.search(r"Resuming \S+ after step (5|10|15)\.", " ".join(done.out.split()))
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["recipe"]["timeout_s"] == 30.0
    assert result["results"][0]["steps"] == STEPS
    again = run_command("resume", "run", "--out", str(tmp_path))
    assert again.code == 2
    assert "run 'run' is finished" in again.err
    unknown = run_command("resume", "other", "--out", str(tmp_path))
    assert unknown.code == 2
    assert "there is no run or study" in unknown.err or "unknown run or study" in unknown.err


@pytest.mark.slow
def test_a_run_of_a_study_continues_from_its_checkpoint(tmp_path: Path) -> None:
    options = ["--workers", "2", "--train-samples", "100", "--test-samples", "20", "--batch-size", "10", "--epochs"]
    options += ["2", "--checkpoint-every", "4steps", "--strategies", "ring,overlap", "--no-report"]
    out = str(tmp_path / "runs")
    failed = run_command("compare", *options, "--inject", "kill:rank=1,step=14", "--out", out)
    assert failed.code == 1
    [study] = (tmp_path / "runs").iterdir()
    # The stored request is kept, and only the fault is removed, as if it had come from outside.
    for file in (study / "study.json", study / "recipe.toml"):
        file.write_text(file.read_text().replace("kill:rank=1,step=14", "slow:rank=1,ms=1"))
    resumed = run_command("resume", "last", "--out", out)
    assert resumed.code == 0, resumed.err
    [folder] = (study / "runs").glob("*ring*")
    lines = list(worker_lines(folder / "workers" / "0.jsonl"))
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(20))
    assert len(json.loads((study / "study.json").read_text())["results"]) == 2


def test_code_outside_of_the_folder_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "theirs.py"
    theirs.write_text("raise SystemExit('executed')\n")
    folder = tmp_path / "runs" / "unfinished"
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(f'[model]\nname = "{theirs}:model"\n')
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    code, out, err = run_command("run", "--resume", str(folder))
    assert code == 2
    assert "executed" not in out.replace("not executed", "") + err.replace("not executed", "")
    assert "add --trust if you trust it" in " ".join(err.split())


def test_a_run_that_is_being_run_is_refused_before_workers_start(tmp_path: Path) -> None:
    folder = tmp_path / "running"
    folder.mkdir()
    (folder / "recipe.toml").write_text("")
    before = child_processes()
    with locked(folder):
        code, _, err = run_command("run", "--resume", str(folder))
    assert code == 2
    assert "is being run by another process" in " ".join(err.split())
    assert child_processes() == before
