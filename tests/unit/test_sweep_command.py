"""Wrong requests of a sweep: one sentence, exit code 2, and nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import Said, run_command
from paceline.recipe import Recipe
from paceline.study import sweep as study
from paceline.study.sweep import Request, open_sweep
from paceline.study.vary import parse_vary

TINY = Recipe().replace({"workers": 1, "data.train_samples": 32, "train.epochs": 1, "train.batch_size": 8})


@pytest.fixture(autouse=True)
def no_footprints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "measure_footprints", lambda recipes: ({}, []))  # noqa: ARG005


def asked(out: Path, *arguments: str) -> Said:
    return run_command("sweep", "--out", str(out), *arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "a sweep varies something"),
        (["--vary", "batch-size=1,2"], "batch size 1 is smaller than 4 workers"),
        (["--vary", "lr=0.1", "--remedies"], "remedies are for large batches"),
        (["--vary", "lr=0.1", "--nnodes", "2"], "a sweep is run from one host"),
        (["--resume", "nothing"], "there is no 'nothing'"),
        (["--vary", "batch-size=1000000,2000000"], "no point of the sweep can be run"),
    ],
)
def test_mistakes_start_nothing(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    said = asked(tmp_path / "runs", *arguments)
    assert (said.code, sentence in " ".join(said.err.split())) == (2, True), said.err
    assert not (tmp_path / "runs").exists()


def test_torchrun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    said = asked(tmp_path, "--vary", "lr=0.1,0.2")
    assert (said.code, "leave torchrun out" in " ".join(said.err.split())) == (2, True), said.err


def test_a_resumed_sweep_is_what_it_was(tmp_path: Path) -> None:
    folder = open_sweep(Request(TINY, parse_vary(["lr=0.1,0.2"])), out=tmp_path).folder
    for arguments, sentence in (
        (["--vary", "lr=1,2"], "leave --vary, remedies and repeats out"),
        (["--repeats", "3"], "leave --vary, remedies and repeats out"),
        (["vgg11-cifar10"], "name differs from it"),
    ):
        said = asked(tmp_path, "--resume", str(folder), *arguments)
        assert (said.code, sentence in " ".join(said.err.split())) == (2, True), said.err


def test_only_a_sweep_can_be_resumed(tmp_path: Path) -> None:
    folder = open_sweep(Request(TINY, parse_vary(["lr=0.1,0.2"])), out=tmp_path).folder
    file = folder / "study.json"
    file.write_text(file.read_text().replace('"sweep"', '"compare"'))
    said = asked(tmp_path, "--resume", str(folder))
    assert (said.code, "is not a sweep" in said.err) == (2, True), said.err
