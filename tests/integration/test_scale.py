"""`paceline scale` as a user types it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clusters import need
from command import run_command, run_in

SHORT = ["--epochs", "3", "--sample-hz", "0"]


def paceline(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_in(cwd, *arguments)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("scale")
    options = ["--workers", "1,2,3", "--mode", "both", "--json", "s.json"]
    done = paceline("scale", *SHORT, *options, "--strategies", "ring,stepwise:exact_every=3", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, done, json.loads((folder / "s.json").read_text())


def test_its_output_fits_and_says_what_it_found(study: Any) -> None:
    _, done, _ = study
    tables = done.stdout[done.stdout.index("Strong scaling") :].splitlines()
    assert max(len(line) for line in tables if not line.startswith(("study ", "report "))) <= 100
    words = " ".join(done.stdout.split())
    for text in ("Strong scaling", "Weak scaling", "speed-up", "eff.", "beyond", "report.html", "cannot run"):
        assert text in words
    assert "stepwise:exact_every=3 on 3 workers (strong) cannot run: exact_every=3 shares the factor 3" in words


def test_its_rows(study: Any) -> None:
    _, _, found = study
    assert (found["schema"], found["kind"], found["study"]) == (1, "study", "scale")
    points = [(row["label"], row["point"]["mode"], row["point"]["workers"]) for row in found["results"]]
    per_mode = [("one-worker", 1), ("ring", 2), ("ring", 3), ("stepwise:exact_every=3", 2)]
    assert points == [(label, mode, number) for mode in ("strong", "weak") for label, number in per_mode]
    assert [row["batch_size"] for row in found["results"]] == [100, 100, 100, 100, 33, 66, 99, 66]
    for row in found["results"]:
        assert len(row["per_worker"]) == row["workers"] == row["point"]["workers"]
        assert row["repeats"] == 1
        scaling = row["scaling"]
        assert scaling["speedup"] > 0
        assert scaling["efficiency"] == pytest.approx(scaling["speedup"] / row["workers"])
        assert scaling["communication_s"] >= 0
        step = row["split"]["mean"]["step_s"]
        parts = ("compute", "communication", "overlap", "waiting", "data", "rest")
        assert sum(scaling[f"{part}_s"] for part in parts) == pytest.approx(step, rel=1e-3)
    assert [row["point"] for row in found["refused"]] == [{"workers": 3, "mode": mode} for mode in ("strong", "weak")]
    assert {row["label"] for row in found["paying"]} == {"ring", "stepwise:exact_every=3"}


def test_it_is_stored_as_studies_are(study: Any) -> None:
    (folder,) = (study[0] / "runs").iterdir()
    assert {path.name for path in folder.iterdir()} == {"study.json", "recipe.toml", "report.html", "runs"}
    assert len(list((folder / "runs").iterdir())) == 8
    assert "scale-lenet5-mnist" in run_command("runs", "--out", str(folder.parent)).out
    again = run_command("runs", "show", "last", "--out", str(folder.parent))
    assert "Strong scaling" in again.out
    made = run_command("report", str(folder), "-o", str(study[0] / "again.html"))
    assert made.code == 0, made.err
    assert 'id="time-workers"' in (study[0] / "again.html").read_text()


@pytest.mark.slow
def test_a_point_that_fails_loses_no_other(tmp_path: Path) -> None:
    options = ["--workers", "2,3", "--strategies", "ring", "--repeats", "2", "--inject", "kill:rank=2,step=1"]
    done = paceline("scale", *SHORT, *options, "--json", "s.json", "--no-report", cwd=tmp_path)
    assert done.returncode == 1
    assert "1 of 3 points failed, the others are stored; first: ring on 3 (strong): worker 2 died" in done.stderr
    found = json.loads((tmp_path / "s.json").read_text())
    assert [(row["label"], row["workers"], row["repeats"]) for row in found["results"]] == [
        ("one-worker", 1, 2), ("ring", 2, 2),
    ]  # fmt: skip
    assert [(row["label"], row["point"]["workers"], row["repeat"]) for row in found["failed"]] == [("ring", 3, 1)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--workers", "1,x"], "is not a list of numbers of workers"),
        (["--workers", "1"], "shows no scaling"),
        (["--mode", "stong"], "did you mean 'strong'"),
        (["--strategies", "rign"], "did you mean 'ring'"),
        (["--strategies", "one-worker"], "has no strategies to scale"),
        (["--batch-size", "3"], "smaller than 4 workers"),
        (["--mode", "weak", "--worker-batch-size", "30"], "larger than the 100 training samples"),
        (["--cluster", "nodes=2"], "more than the 2 nodes of the cluster"),
        (["--json", "nowhere/s.json"], "does not exist"),
    ],
)
def test_wrong_requests_start_nothing(tmp_path: Path, options: list[str], sentence: str) -> None:
    done = run_command("scale", *SHORT, "--out", str(tmp_path / "runs"), *options)
    assert done.code == 2
    assert sentence in " ".join(done.err.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_points_on_emulated_nodes(tmp_path: Path) -> None:
    need(nodes=2)
    options = ["--cluster", "nodes=2,bandwidth=100mbit", "--workers", "1,2", "--strategies", "ring,parameter-server"]
    done = paceline("scale", *SHORT, *options, "--json", "s.json", "--no-report", cwd=tmp_path)
    assert done.returncode == 2  # with a server, two workers need a third node
    assert "2 workers and 1 server need 3 nodes, but the cluster has 2" in done.stderr
    options[-1] = "ring"
    done = paceline("scale", *SHORT, *options, "--no-measure", "--json", "s.json", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "s.json").read_text())
    assert [row["workers"] for row in found["results"]] == [1, 2]
    assert found["recipe"]["cluster"]["nodes"] == 2
    ring = found["results"][1]
    assert ring["scaling"]["communication_s"] is None  # not measured, and said so
    assert ring["scaling"]["speedup"] > 0
