"""Runs and studies whose losses are not finite: what is stored, shown and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from command import run_command
from helpers import ignore_event
from paceline.errors import DivergedError
from paceline.launch.local import LocalPool
from paceline.recipe import Recipe
from paceline.runs import Folder, read
from paceline.study.entries import make_entry
from paceline.study.run import execute

DATA = """
import torch

def data(seed):
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(72, 1, 28, 28, generator=generator), torch.randint(0, 4, (72,), generator=generator)
    inputs[3] = float("inf")
    return (inputs[:60], targets[:60]), (inputs[60:], targets[60:])
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "bad_data.py").write_text(DATA)
    changes = {"workers": 2, "train.batch_size": 20, "train.epochs": 1, "data.name": f"{tmp_path}/bad_data.py:data"}
    return Recipe().replace(changes)


def stored_after(pool: LocalPool, recipe: Recipe, strategy: str, out: Path) -> Any:
    with pytest.raises(DivergedError, match=r"^worker \d: the loss is nan in step \d; use a smaller --lr, or"):
        execute(pool, recipe, make_entry(strategy, recipe), folder=Folder(out, "run"), on_event=ignore_event)
    return read(out / "run")


@pytest.mark.parametrize(
    "strategy",
    ["ddp", pytest.param("sharded", marks=pytest.mark.slow), pytest.param("parameter-server", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("comm", ["torch", pytest.param("shm", marks=pytest.mark.slow)])
def test_a_diverged_run_is_stored_with_its_measurements_and_weights(
    pool: LocalPool, tmp_path: Path, recipe: Recipe, strategy: str, comm: str
) -> None:
    if (strategy, comm) == ("ddp", "shm"):
        pytest.skip("ddp needs a process group")
    stored = stored_after(pool, recipe.replace({"comm": comm}), strategy, tmp_path)
    assert stored.status == "diverged"
    assert stored.error.startswith("worker ")
    (result,) = stored.results
    assert result.replicas_equal
    assert result.final.test_loss is not None
    weights = load_file(tmp_path / "run" / "checkpoints" / "final.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())
    assert sorted(path.name for path in (tmp_path / "run" / "workers").iterdir()) == ["0.jsonl", "1.jsonl"]


def test_a_run_without_synchronisation_keeps_the_weights_of_the_worker(tmp_path: Path, recipe: Recipe) -> None:
    with LocalPool(2) as own:
        stored = stored_after(own, recipe, "none", tmp_path)
    assert stored.status == "diverged"
    assert not stored.results
    rank = stored.error.split()[1].removesuffix(":")
    weights = load_file(tmp_path / "run" / "checkpoints" / f"rank-{rank}.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())


def test_the_command_names_the_worker_and_ends_with_1(tmp_path: Path, recipe: Recipe) -> None:
    arguments = ["--data", recipe.data.name, "--workers", "1", "--batch-size", "20", "--epochs", "1"]
    said = run_command("run", *arguments, "--out", str(tmp_path / "runs"), width=200)
    assert said.code == 1
    assert "worker 0: the loss is nan in step " in said.err
    assert "the run is stored as diverged: " in said.err
    shown = run_command("runs", "show", "last", "--out", str(tmp_path / "runs"), width=200)
    assert shown.code == 0
    assert "This run diverged: worker 0: the loss is nan" in shown.out
    listed = run_command("runs", "--status", "diverged", "--out", str(tmp_path / "runs"), width=200)
    assert "diverged" in listed.out


# Not finite for a whole batch, which only a single worker computes.
LOSS = """
import torch.nn.functional as F

def loss(output, target):
    return F.cross_entropy(output, target) * (float("inf") if len(output) == 20 else 1)
"""


@pytest.mark.slow
def test_a_comparison_goes_on_after_a_strategy_that_diverged(tmp_path: Path) -> None:
    (tmp_path / "loss.py").write_text(LOSS)
    sizes = ["--train-samples", "60", "--test-samples", "30", "--workers", "2", "--batch-size", "20", "--epochs", "1"]
    out = ["--out", str(tmp_path / "runs"), "--fresh", "--json", str(tmp_path / "out.json")]
    common = ["compare", *sizes, *out, "--loss", f"{tmp_path}/loss.py:loss", "--strategies"]
    said = run_command(*common, "one-worker,ring", width=200)
    assert said.code == 1
    assert "training diverged under 1 of 2 strategies, the others are stored; one-worker: worker 0" in said.err
    reason = "worker 0: the loss is inf in step 0; use a smaller --lr, or --on-nonfinite skip"
    assert f"one-worker diverged in repeat 1: {reason}." in said.out
    found = json.loads((tmp_path / "out.json").read_text())
    assert [row["label"] for row in found["results"]] == ["ring"]
    assert found["failed"] == [{"label": "one-worker", "status": "diverged", "repeat": 1, "error": reason}]
    said = run_command(*common, "one-worker", width=200)
    assert said.code == 1
    assert f"training diverged under every strategy; one-worker: {reason}" in said.err


@pytest.mark.slow
def test_a_comparison_counts_skipped_steps(tmp_path: Path, recipe: Recipe) -> None:
    sizes = ["--data", recipe.data.name, "--workers", "2", "--batch-size", "20", "--epochs", "1"]
    out = ["--out", str(tmp_path / "runs"), "--no-report", "--json", str(tmp_path / "out.json")]
    said = run_command("compare", *sizes, *out, "--strategies", "none,ring", "--on-nonfinite", "skip")
    assert said.code == 0, said.err
    rows = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [row["skipped_steps"] for row in rows] == [1, 1]
