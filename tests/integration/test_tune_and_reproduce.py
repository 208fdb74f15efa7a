"""`paceline tune` and `paceline reproduce` as a user types them, with real workers."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from command import run_in
from helpers import REPOSITORY
from paceline.launch.local import LocalPool
from paceline.recipe import load_recipe
from paceline.study.reproduce.reproduce import prove


def paceline(*arguments: str, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return run_in(cwd, *arguments, **extra)


def test_tuning_ends_in_a_command_that_runs(tmp_path: Path) -> None:
    space = ["--strategies", "overlap,local-sgd", "--codecs", "fp32,bf16", "--periods", "2", "--buckets", "0.1,1"]
    done = paceline(
        "tune", *space, "--workers", "2", "--iterations", "12", "--eta", "2", "--repeats", "1", "--json", "t.json",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    study = json.loads((tmp_path / "t.json").read_text())
    assert study["status"] == "done"
    assert [table["steps"] for table in study["rungs"]] == [5, 12]
    assert study["best"]["label"] in [row["label"] for row in study["rungs"][-1]["rows"]]
    assert study["best"]["command"] in done.stdout
    assert "report.html" in done.stdout
    again = paceline(*shlex.split(study["best"]["command"])[1:], cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert next(tmp_path.glob("runs/*tune*/best.toml")).is_file()


def test_tuning_starts_its_own_workers(tmp_path: Path) -> None:
    done = paceline("tune", cwd=tmp_path, RANK="0", WORLD_SIZE="2")
    assert done.returncode == 2
    assert "without torchrun" in done.stderr


def test_experiments_are_listed(tmp_path: Path) -> None:
    done = paceline("reproduce", cwd=tmp_path)
    assert done.returncode == 0
    assert "vgg11-four-nodes" in done.stdout
    assert paceline("reproduce", "vgg16", cwd=tmp_path).returncode == 2


@pytest.mark.slow
def test_two_reduces_give_one_model(tmp_path: Path) -> None:
    done = paceline("reproduce", "lenet5-two-reduces", "--repeats", "1", "--json", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    study = json.loads(done.stdout)
    for row in study["proof"]:
        assert row["passed"]
        assert row["synchronisations"] == row["equal"] == 100
        assert row["ranks"] == 4
    digests = [{worker["parameter_digest"] for worker in result["per_worker"]} for result in study["results"]]
    assert [len(found) for found in digests] == [1] * len(digests)
    assert "bit-identical models on all 4 ranks after 100 of 100" in " ".join(done.stderr.split())
    assert next(tmp_path.glob("runs/*/report.html")).stat().st_size > 100_000


@pytest.mark.parametrize("wrong", ["UnweightedMean", "SkipsLastTensor"])
def test_the_proof_finds_a_wrong_average(pool: LocalPool, wrong: str) -> None:
    recipe = load_recipe("lenet5-mnist").replace({"workers": 2, "train.batch_size": 15, "data.train_samples": 15})
    recipe = recipe.replace({"train.iterations": 2})
    strategy = f"{REPOSITORY / 'tests' / 'wrong_strategies.py'}:{wrong}"
    good, bad = prove(recipe, ("all-reduce", strategy), pool)
    assert good["passed"]
    assert not bad["passed"]
