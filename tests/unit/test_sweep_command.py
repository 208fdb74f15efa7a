"""Wrong requests of a sweep: one sentence, exit code 2, and nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from command import Said, run_command
from made_up import MadeUpLauncher, Silent, launching
from paceline.recipe import Recipe
from paceline.results import changed
from paceline.runs import list_runs
from paceline.study import sweep as module
from paceline.study.engine import run_study
from paceline.study.study_folder import StudyFolder, read_study
from paceline.study.sweep import Sweep
from paceline.study.sweep_axes import parse_vary

TINY = Recipe().replace({"workers": 1, "data.train_samples": 32, "train.epochs": 1, "train.batch_size": 8})


@pytest.fixture(autouse=True)
def no_footprints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_footprints", lambda recipes: ({}, []))  # noqa: ARG005


def begun(out: Path) -> Path:
    """The folder of a sweep that was interrupted in its first run."""
    study = Sweep.prepare(TINY, parse_vary(["lr=0.1,0.2"]))

    def interrupt(*_: Any) -> list[Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(study, launching(MadeUpLauncher(interrupt)), Silent(), out)
    [stored] = list_runs(out)
    return stored.folder


def asked(out: Path, *arguments: str) -> Said:
    return run_command("sweep", "--out", str(out), *arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "a sweep needs a key to vary"),
        (["--vary", "batch-size=1,2"], "batch size 1 is smaller than 4 workers"),
        (["--vary", "lr=0.1", "--remedies"], "remedies need a varied batch size"),
        (["--vary", "lr=0.1", "--nnodes", "2"], "without --nnodes"),
        (["--resume", "nothing"], "there is no run or study 'nothing'"),
        (["--vary", "batch-size=1000000,2000000"], "no point of the sweep can run"),
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
    assert (said.code, "without torchrun" in " ".join(said.err.split())) == (2, True), said.err


def test_a_resumed_sweep_is_what_it_was(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    for arguments, sentence in (
        (["--vary", "lr=1,2"], "leave out --vary"),
        (["--repeats", "3"], "leave out --repeats"),
        (["vgg11-cifar10"], "name differs from it"),
        (["--lr", "0.5"], "optimizer.lr differs from it"),
    ):
        said = asked(tmp_path, "--resume", str(folder), *arguments)
        assert (said.code, sentence in " ".join(said.err.split())) == (2, True), said.err


def test_only_a_sweep_can_be_resumed(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    said = run_command("compare", "--out", str(tmp_path), "--resume", str(folder))
    assert (said.code, "is a sweep, not a compare; --resume needs a compare" in said.err) == (2, True), said.err


def test_a_finished_study_is_not_resumed(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    StudyFolder(folder).write(changed(read_study(folder), status="done"))
    said = asked(tmp_path, "--resume", str(folder))
    assert (said.code, f"is finished; `paceline runs show {folder.name}`" in " ".join(said.err.split())) == (2, True)


def test_studies_whose_workers_others_start_are_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run_command("compare", "--out", str(tmp_path), "--resume", "last", "--nnodes", "2", "--master-port", "29411")
    assert (said.code, "leave out --nnodes" in " ".join(said.err.split())) == (2, True), said.err
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    said = run_command("scale", "--out", str(tmp_path), "--resume", "last")
    assert (said.code, "leave out torchrun" in " ".join(said.err.split())) == (2, True), said.err
