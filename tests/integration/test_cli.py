"""The command as a user types it: exit codes, sentences, files."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from command import run_command, run_in

SHORT = ["--epochs", "4", "--workers", "2"]


def paceline(*arguments: str, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return run_in(cwd, *arguments, **extra)


def load(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("study")
    strategies = "one-worker,none,gather-scatter,root-average,all-reduce,ring,ddp"
    done = paceline("compare", *SHORT, "--repeats", "2", "--strategies", strategies, "--json", "s.json", cwd=folder)
    return folder, done


def test_compare_succeeds_and_its_table_fits(study: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = study
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 100
    assert "report.html" in done.stdout


def test_compare_json_has_the_promised_keys(study: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    found = load(study[0] / "s.json")
    assert found["schema"] == 1
    assert found["recipe"]["model"]["name"] == "lenet5"
    result_keys = {"strategy", "options", "workers", "guarantee", "iteration_s", "samples_per_s", "train_s", "final"}
    worker_keys = {"rank", "iteration_s", "sent_bytes", "received_bytes", "train_loss", "train_accuracy", "test_loss"}
    assert len(found["results"]) == 7
    for result in found["results"]:
        assert result_keys | {"replica_drift", "per_worker"} <= set(result)
        assert set(result["iteration_s"]) == {"mean", "p50", "p90", "p95"}
        assert set(result["final"]) == {"train_loss", "train_accuracy", "test_loss", "test_accuracy"}
        assert len(result["per_worker"]) == result["workers"]
        for worker in result["per_worker"]:
            assert worker_keys | {"test_accuracy", "parameter_digest"} <= set(worker)


def test_exact_strategies_agree_and_none_does_not(study: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    for result in load(study[0] / "s.json")["results"]:
        digests = {worker["parameter_digest"] for worker in result["per_worker"]}
        if result["guarantee"] == "EXACT":
            assert len(digests) == 1
            assert result["replica_drift"] == 0
        else:
            assert len(digests) == result["workers"]
            assert result["replica_drift"] > 0


def test_a_study_is_stored_whole(study: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    (folder,) = (study[0] / "runs").iterdir()
    assert {path.name for path in folder.iterdir()} == {"study.json", "recipe.toml", "report.html", "runs"}
    runs = sorted(path.name for path in (folder / "runs").iterdir())
    assert len(runs) == 14
    run = folder / "runs" / "ring-2"
    assert (run / "checkpoints" / "final.safetensors").is_file()
    lines = [json.loads(line) for line in (run / "workers" / "1.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "step"] == [0, 1, 2, 3]
    assert load(run / "summary.json")["status"] == "done"


def test_runs_and_report_read_what_compare_wrote(study: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = study
    listed = paceline("runs", cwd=folder)
    assert "compare-lenet5-mnist" in listed.stdout
    (stored,) = (folder / "runs").iterdir()
    made = paceline(
        "report", str(stored / "runs" / "ring-1"), str(stored / "runs" / "ddp-1"), "-o", "two.html", cwd=folder
    )
    assert made.returncode == 0, made.stderr
    assert "<html" in (folder / "two.html").read_text()[:2000]


@pytest.mark.slow
def test_run_reports_and_repeats_itself(tmp_path: Path) -> None:
    digests = []
    for _ in range(2):
        done = paceline("run", *SHORT, "--strategy", "ring", "--json", "-", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (result,) = json.loads(done.stdout)["results"]
        digests.append(result["per_worker"][0]["parameter_digest"])
        for word in ("warm-up", "samples/s", "without loading data", "test set", "total"):
            assert word in done.stderr
    assert digests[0] == digests[1]


def test_a_port_in_use_is_said_plainly(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = paceline("run", "--workers", "2", "--nnodes", "2", "--master-port", port, cwd=tmp_path)
    assert done.returncode == 1
    assert "cannot reach the rendezvous" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_changed_recipe_is_not_called_what_it_was(tmp_path: Path) -> None:
    options = ["--data", "synthetic:1x28x28x4", "--iterations", "1", "--workers", "1", "--json", "r.json"]
    assert paceline("run", *options, cwd=tmp_path).returncode == 0
    recipe = load(tmp_path / "r.json")["recipe"]
    assert (recipe["name"], recipe["description"]) == ("lenet5-synthetic", "")


def test_log_every_prints_epoch_iteration_loss(tmp_path: Path) -> None:
    options = ["--iterations", "4", "--batch-size", "50", "--log-every", "2", "--no-download"]
    done = paceline("run", "--workers", "2", *options, cwd=tmp_path)
    assert "step 2 of epoch 1, loss" in done.stdout
    assert "step 2 of epoch 2, loss" in done.stdout


WRONG = [
    (["run", "--strategy", "rign"], "did you mean 'ring'"),
    (["run", "--model", "lenet6"], "did you mean 'lenet5'"),
    (["run", "--strategy", "ddp:bucket=1"], "did you mean 'bucket_mb'"),
    (["run", "--set", "data.train_sample=3"], "did you mean 'data.train_samples'"),
    (["run", "lenet5-mnits"], "did you mean 'lenet5-mnist'"),
    (["run", "--batch-size", "64", "--worker-batch-size", "10"], "conflicts"),
    (["run", "--batch-size", "3"], "smaller than 4 workers"),
    (["run", "--workers", "101", "--batch-size", "101"], "need at least 101 training samples"),
    (["run", "--data", "mnist", "--data-dir", "nowhere", "--no-download"], "train-images-idx3-ubyte"),
    (["run", "--model", "bad.py:raises"], "raised ValueError: no such thing"),
    (["run", "--model", "bad.py:wrong"], "fails on data"),
    (["run", "--comm", "threads"], "or torch"),
    (["run", "--json", "nowhere/x.json"], "does not exist"),
    (["run", "--batchnorm", "sync", "--micro-batch-size", "5"], "--micro-batch-size"),
    (["run", "--nnodes", "3"], "cannot be split evenly"),
    (["run", "--nnodes", "2", "--master-port", "99999"], "from 1 to 65535"),
    (["run", "--json", "folder"], "is a folder"),
    (["run", "--lr", "inf"], "finite number"),
    (["run", "--optimizer", "sgd", "--momentum", "2"], "below 1"),
    (["run", "--momentum", "0.9"], "takes no momentum"),
    (["run", "--model", "bad.py:few"], "has 3 outputs"),
    (["run", "--strategy", "no:Star:x=1"], "'no:Star:x=1'"),
    (["compare", "--strategies", ""], "no strategies"),
    (["run", "--comm", "nothing-like-it"], "known: auto, hierarchical, shm, threads, torch"),
    (["run", "--strategy", "parameter-server:max_staleness=3"], "has no effect with mode=sync"),
    (["run", "--target-accuracy", "90"], "must be at most 1"),
    (["verify", "--strategies", ""], "empty"),
    (["compare", "--strategies", "ring,ring"], "named twice"),
    (["report", "."], "neither a run nor a study"),
    (["recipes", "show", "newer.toml"], "unknown key in newer.toml"),
    (["verify", "--workers", "two"], "whole numbers"),
    (["verify", "--comm", "threads"], "comm 'threads' cannot be used here: it does not connect processes"),
    (["verify", "--comm", "smh"], "did you mean 'shm'"),
    (["run", "--strategy", "sharded", "--optimizer", "lars"], "needs an element-wise optimizer, and lars is not"),
    (
        ["compare", "--strategies", "ring,sharded", "--optimizer", "lamb"],
        "element-wise optimizer, and lamb is not",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "sentence"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_wrong_request_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any worker starts, so that the command can run in this process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(
        "import torch\ndef raises(): raise ValueError('no such thing')\ndef wrong(): return torch.nn.Linear(3, 10)\n"
        "def few(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 3))\n"
    )
    (tmp_path / "folder").mkdir()
    (tmp_path / "newer.toml").write_text('flavour = "new"\n')
    said = run_command(*arguments)
    assert said.code == 2, said.err
    assert sentence in said.err.replace("\n", " ")
    assert "Traceback" not in said.err + said.out
    assert not (tmp_path / "runs").exists()


def test_a_run_from_a_newer_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "summary.json").write_text('{"schema": 99, "kind": "run"}')
    done = paceline("report", "later", cwd=tmp_path)
    assert done.returncode == 2
    assert "schema 99" in done.stderr


def test_a_worker_that_raises_is_named_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "import torch\n"
        "class Late(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        if self.training and not torch.is_grad_enabled(): pass\n"
        "        self.seen = getattr(self, 'seen', 0) + 1\n"
        "        if self.training and self.seen > 2: raise RuntimeError('too late')\n"
        "        return super().forward(x.flatten(1))\n"
        "def make(): return Late(784, 10)\n"
    )
    done = paceline("run", *SHORT, "--model", "late.py:make", cwd=tmp_path)
    assert done.returncode == 1
    assert "raised RuntimeError: too late" in done.stderr
    assert "late.py" in done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert load(run / "summary.json")["status"] == "failed"


def test_workers_import_the_neighbours_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    package = tmp_path / "pack_of_models"
    package.mkdir()
    (package / "sizes_of_models.py").write_text("CLASSES = 10\n")
    (package / "mine.py").write_text(
        "from sizes_of_models import CLASSES\nfrom torch import nn\n"
        "def make(): return nn.Sequential(nn.Flatten(), nn.Linear(784, CLASSES))\n"
    )
    (package / "again.py").write_text("from pack_of_models.other import make\n")
    (package / "other.py").write_text((package / "mine.py").read_text().replace("from sizes", "from .sizes"))
    for model in ("pack_of_models/mine.py:make", "pack_of_models.again:make"):
        done = paceline("run", *SHORT, "--model", model, "--strategy", "ring", cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_ddp_says_what_a_model_with_unused_parameters_needs(tmp_path: Path) -> None:
    (tmp_path / "spare.py").write_text(
        "import torch\n"
        "class Spare(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.used, self.unused = torch.nn.Linear(784, 10), torch.nn.Linear(2, 2)\n"
        "    def forward(self, x): return self.used(x.flatten(1))\n"
        "def make(): return Spare()\n"
    )
    done = paceline("run", *SHORT, "--model", "spare.py:make", "--strategy", "ddp", cwd=tmp_path)
    assert done.returncode == 1
    assert "use --strategy ddp:find_unused=true" in done.stderr
    assert "Traceback" not in done.stderr
    again = paceline("run", *SHORT, "--model", "spare.py:make", "--strategy", "ddp:find_unused=true", cwd=tmp_path)
    assert again.returncode == 0, again.stderr


def test_ctrl_c_stops_everything_and_marks_the_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline", "run", "--epochs", "100000", "--workers", "2", "--log-every", "5"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "of epoch" not in process.stdout.readline():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "interrupted" in errors
    assert "stored as interrupted: runs/" in errors
    (run,) = (tmp_path / "runs").iterdir()
    assert load(run / "summary.json")["status"] == "interrupted"


@pytest.mark.slow
def test_under_torchrun_the_command_is_the_same(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command = [*launcher, "-m", "paceline", "run", "--epochs", "4", "--strategy", "ring", "--json", "r.json"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    alone = paceline("run", *SHORT, "--strategy", "ring", "--json", "alone.json", cwd=tmp_path)
    assert alone.returncode == 0
    (ours,), (theirs,) = load(tmp_path / "r.json")["results"], load(tmp_path / "alone.json")["results"]
    assert ours["workers"] == theirs["workers"] == 2
    assert [w["parameter_digest"] for w in ours["per_worker"]] == [w["parameter_digest"] for w in theirs["per_worker"]]


MINE = (
    "from dataclasses import dataclass\n"
    "from paceline import GradientAveraging, Operation\n"
    "@dataclass(kw_only=True)\n"
    "class Mine(GradientAveraging):\n"
    '    """My own all-reduce."""\n'
    "    name = 'mine'\n"
    "    rounds: int = 1\n"
    "    def sum(self, tensor): self.worker.comm.all_reduce(tensor)\n"
    "    def sum_traffic(self, spec, rank, world_size): return [Operation('all_reduce', spec.nbytes)]\n"
)


def test_a_users_strategy_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    done = paceline(
        "verify",
        "--strategies",
        "mine.py:Mine",
        "--workers",
        "2",
        "--models",
        "lenet5",
        "--json",
        "v.json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (row,) = load(tmp_path / "v.json")["results"]
    assert row["passed"]


@pytest.mark.slow
def test_a_users_strategy_is_compared(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    both = paceline("compare", *SHORT, "--strategies", "mine.py:Mine:rounds=2,ring", "--no-report", cwd=tmp_path)
    assert both.returncode == 0, both.stderr


@pytest.mark.slow
def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "odd[").mkdir()
    model = "torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))"
    (tmp_path / "odd[" / "b].py").write_text(f"import torch\ndef make(): return {model}\n")
    done = paceline("run", *SHORT, "--model", "odd[/b].py:make", "--strategy", "ring", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "odd[/b].py:make" in done.stdout.replace("\n", "")


def test_every_command_helps_without_importing_torch() -> None:
    code = (
        "import sys; from paceline.cli.lazy_commands import LazyGroup; group = LazyGroup(); "
        "print([group.get_command(None, name).name for name in group.list_commands(None)]); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=150)
    for name in ("run", "compare", "verify", "runs", "report", "data", "strategies", "models", "recipes"):
        assert f"'{name}'" in done.stdout


@pytest.mark.parametrize("command", ["strategies", "models", "recipes", "data"])
def test_listings(command: str) -> None:
    said = run_command(command)
    assert said.code == 0, said.err
    expected = {"strategies": "gather-scatter", "models": "61,706", "recipes": "vgg11-cifar10", "data": "mnist-mini"}
    assert expected[command] in said.out
    if command == "strategies":
        assert "option ratio=0.01" in said.out
    assert max(len(line) for line in said.out.splitlines()) <= 100
