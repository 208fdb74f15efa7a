"""Fine-tuning with rounding in the way, on workers, under strategies of every kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from command import run_command
from paceline.runs import list_runs
from trained_samples import trained_run


@pytest.mark.parametrize(
    "strategy, workers",
    [
        pytest.param("ring", 2, marks=pytest.mark.slow),
        ("none", 1),
        pytest.param("parameter-server", 2, marks=pytest.mark.slow),
        pytest.param("overlap+int8", 2, marks=pytest.mark.slow),
    ],
)
def test_a_model_is_trained_on_in_any_way_of_agreeing(strategy: str, workers: int, tmp_path: Path) -> None:
    run, file = trained_run(tmp_path / "run"), tmp_path / "study.json"
    said = run_command(
        "quantize", str(run), "--out", str(tmp_path / "out"), "--samples", "64", "--test-samples", "200",
        "--calibration", "minmax", "--finetune", "12", "--strategy", strategy, "--workers", str(workers),
        "--lr", "0.01", "--no-onnx", "--json", str(file),
    )  # fmt: skip
    assert said.code == 0, said.err
    study = json.loads(file.read_text())
    tuned = study["finetuned"]
    assert (tuned["steps"], tuned["workers"], tuned["strategy"]) == (12, workers, strategy)
    rows = {row["stage"]: row for row in study["stages"]}
    assert rows["fine-tuned"]["test_accuracy"] >= rows["integer"]["test_accuracy"] - 0.05
    # What is stored is what was trained, not what it began with.
    (stored,) = (tmp_path / "out").glob("*/integers.safetensors")
    integers = load_file(stored)
    weights = load_file(run / "checkpoints" / "final.safetensors")
    before = weights["linear1.weight"].abs().amax(1) / 127
    assert not torch.allclose(integers["linear1.scales"], before, rtol=1e-4)
    assert "Fine-tuned for 12 steps" in " ".join(said.out.split())


def test_a_fine_tuning_that_diverges_is_stored_as_failed(tmp_path: Path) -> None:
    run, out = trained_run(tmp_path / "run"), tmp_path / "out"
    words = ("--samples", "64", "--test-samples", "50", "--calibration", "minmax", "--no-onnx", "--workers", "1")
    said = run_command(
        "quantize", str(run), *words, "--finetune", "8", "--strategy", "none", "--lr", "1e30", "--out", str(out)
    )  # fmt: skip
    assert said.code == 1
    assert "fine-tuning diverged after 8 steps" in said.err
    assert "try a smaller --lr" in said.err
    [stored] = list_runs(out)
    assert (stored.status, "fine-tuning diverged after 8 steps" in stored.error) == ("failed", True)


def test_more_servers_than_tensors_are_refused_before_anything_starts(tmp_path: Path) -> None:
    run, out = trained_run(tmp_path / "run"), tmp_path / "out"
    said = run_command(
        "quantize", str(run), "--finetune", "5", "--strategy", "parameter-server:servers=50", "--out", str(out)
    )  # fmt: skip
    assert said.code == 2
    assert not out.exists()


def test_a_strategy_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    run, out = trained_run(tmp_path / "run"), tmp_path / "out"
    said = run_command("quantize", str(run), "--finetune", "5", "--strategy", "rng", "--out", str(out))
    assert said.code == 2
    assert "did you mean 'ring'" in said.err
    assert not out.exists()


def test_the_published_small_cnn_goes_through_every_stage(tmp_path: Path) -> None:
    """On data that stands in for CIFAR-10, so that accuracies are left out."""
    file = tmp_path / "study.json"
    said = run_command(
        "reproduce", "int8-small-cnn", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out"), "--json", str(file)
    )  # fmt: skip
    assert said.code == 0, said.err
    study = json.loads(file.read_text())
    keys = {row["key"] for row in study["ours"]}
    assert {"one-worker", "float", "weights-per-tensor", "activations", "biases", "integer"} <= keys
    assert [row["ours"] for row in study["published"][0]["rows"]] == ["weights-per-tensor", "activations", "biases"]
    assert all("test_accuracy" not in row["figures"] for row in study["ours"])
    (inner,) = (tmp_path / "out").glob("*/quantize/*/study.json")
    assert json.loads(inner.read_text())["study"] == "quantize"
