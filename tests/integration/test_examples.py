"""The files in examples/ train under two workers: those that are models and data, and those that are whole programs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from helpers import REPOSITORY, ignore_event, python_processes
from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.recipe import Recipe
from paceline.study.preflight import preflight
from paceline.train.job import train_job

EXAMPLES = {
    "regression": {"optimizer.name": "adam", "optimizer.lr": 0.01, "train.batch_size": 64},
    "transformer_lm": {"optimizer.name": "adamw", "optimizer.lr": 0.003, "train.batch_size": 32},
}
PROGRAMS = {"train_loop", "accumulate", "amp", "spawn", "stepwise", "resume"}


def test_every_example_is_here() -> None:
    elsewhere = {"ddp_backend"}  # a script for torchrun: test_backend.py
    assert {path.stem for path in (REPOSITORY / "examples").glob("*.py")} == set(EXAMPLES) | PROGRAMS | elsewhere


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_loss_falls(pool: LocalPool, name: str) -> None:
    file = REPOSITORY / "examples" / f"{name}.py"
    parts = {"model.name": f"{file}:model", "data.name": f"{file}:data", "train.loss": f"{file}:loss"}
    recipe = Recipe().replace({**parts, **EXAMPLES[name], "train.iterations": 24, "workers": 2})
    assert preflight(recipe).total_steps == 24
    arguments: dict[str, Any] = {"recipe": recipe, "strategy": "ring", "checkpoint": ""}
    workers = pool.run(Task(train_job, arguments, num_workers=2, timeout_s=20.0), ignore_event)
    assert len({worker["parameter_digest"] for worker in workers}) == 1
    for worker in workers:
        first, last = worker["loss"][:4], worker["loss"][-4:]
        # Four steps each, because one batch is noisy; a fifth is far more than noise and far less than they learn.
        assert sum(last) < 0.8 * sum(first)
        has_accuracy = name == "transformer_lm"
        assert (worker["test_accuracy"] is not None) == has_accuracy


def output_of(name: str, *words: str, num_workers: int = 1) -> str:
    """What an example prints, alone or under torchrun."""
    command = [str(REPOSITORY / "examples" / f"{name}.py"), *words]
    if num_workers > 1:
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_workers), *command]
    else:
        command = ["-W", "error", *command]
    with python_processes(command, environments=[{"OMP_NUM_THREADS": "1"}]) as [process]:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "paceline.finish" not in err
        return str(out)


def numbers(text: str, name: str) -> list[float]:
    """The numbers after a word, in order of the workers' numbers."""
    lines = sorted(line for line in text.splitlines() if name in line)
    return [float(found) for line in lines for found in re.findall(rf"{name} (\d+\.\d+)", line)]


@pytest.mark.slow
def test_a_loop_gives_the_same_on_one_worker_and_on_two() -> None:
    one = output_of("train_loop", "--epochs", "6")
    two = output_of("train_loop", "--epochs", "6", "--strategy", "ddp:bucket_mb=5", num_workers=2)
    [weights] = numbers(one, "weights")
    assert numbers(one, "accuracy")[0] > 0.8
    # float32: a sum in another order differs at 1e-7, and some hundred steps of Adam amplify that.
    assert numbers(two, "weights") == pytest.approx([weights] * 2, rel=1e-3)
    assert len(set(numbers(two, "weights"))) == 1


@pytest.mark.slow
def test_accumulation_learns() -> None:
    text = output_of("accumulate", num_workers=2)
    # Two workers write to one place: the end of a line may come after the next one's beginning.
    found = re.findall(r"loss (\d+\.\d+) -> (\d+\.\d+)", text)
    assert len(found) == 2
    assert all(float(last) < 0.1 * float(first) for first, last in found)


@pytest.mark.slow
def test_scalers_agree() -> None:
    text = output_of("amp", num_workers=2)
    scales = re.findall(r"scale 2\^(\d+)", text)
    assert len(scales) == 2
    assert len(set(scales)) == 1
    assert int(scales[0]) < 24, "no step overflowed, so nothing was shown"
    assert all(accuracy > 0.85 for accuracy in numbers(text, "accuracy"))


@pytest.mark.slow
def test_workers_that_a_program_spawns() -> None:
    text = output_of("spawn")
    weights = numbers(text, "weights")
    assert len(weights) == 2
    assert len(set(weights)) == 1
    assert all(loss < 0.01 for loss in numbers(text, "loss"))


@pytest.mark.slow
def test_finish_brings_weights_together() -> None:
    text = output_of("stepwise", num_workers=2)
    (before_0, after_0), (before_1, after_1) = re.findall(r"length (\d+\.\d{9}) -> (\d+\.\d{9})", text)
    assert before_0 != before_1
    assert after_0 == after_1
    assert all(accuracy > 0.8 for accuracy in numbers(text, "accuracy"))


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_killed_loop_continues_to_the_same_weights(tmp_path: Path, num_workers: int) -> None:
    whole = output_of("resume", str(tmp_path / "whole"), num_workers=num_workers)
    command = [str(REPOSITORY / "examples" / "resume.py"), str(tmp_path / "killed"), "--die-at", "45"]
    if num_workers > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_workers)]
        command = [*torchrun, "--max-restarts", "0", *command]
    with python_processes(command, environments=[{"OMP_NUM_THREADS": "1"}]) as [process]:
        process.communicate(timeout=120)
        assert process.returncode != 0
    resumed = output_of("resume", str(tmp_path / "killed"), num_workers=num_workers)
    assert resumed.count("resumed after step 40") == num_workers
    [weights] = set(re.findall(r"weights ([0-9a-f]{16})", whole))
    assert set(re.findall(r"weights ([0-9a-f]{16})", resumed)) == {weights}
