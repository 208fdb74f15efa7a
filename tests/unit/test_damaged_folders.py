"""A damaged folder is one sentence, and never breaks the list, `show`, `diff` or `report` of the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from command import run_command
from damaged_folders import COMMANDS, damaged_folders, fault_of
from golden_files import STORED


def faults(out: Path, count: int, seed: int) -> list[str]:
    found = []
    for folder, change in damaged_folders(out, count, seed):
        found += [f"{change}: {command}: {fault}" for command in COMMANDS if (fault := fault_of(folder, command))]
    assert folder.is_dir()
    listed = fault_of(folder, "list")  # all of them at once
    return [*found, *([f"list: {listed}"] if listed else [])]


def test_a_few_damaged_folders(tmp_path: Path) -> None:
    assert faults(tmp_path, 25, seed=1) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10, 14))
def test_many_damaged_folders(tmp_path: Path, seed: int) -> None:
    assert faults(tmp_path, 125, seed=seed) == []


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("recipe", "measure", "inject"), -0.5),
        (("recipe", "measure", "inject"), 10**30),
        (("results", 0, "iteration_mean_s_repeats", 1), 0),
    ],
)
def test_values_that_only_a_diff_reads(tmp_path: Path, keys: tuple[str | int, ...], value: float) -> None:
    folder = tmp_path / "study"
    shutil.copytree(STORED / "study-compare", folder)
    file = folder / "study.json"
    study = json.loads(file.read_text(encoding="utf-8"))
    holder = study
    for key in keys[:-1]:
        holder = holder[key]
    holder[keys[-1]] = value
    file.write_text(json.dumps(study), encoding="utf-8")
    assert fault_of(folder, "diff") == ""


@pytest.mark.parametrize("text", ['{"schema": 1}', "{", '{"schema": 99, "kind": "run"}'])
def test_one_damaged_folder_of_several_is_left_out_of_a_report(tmp_path: Path, text: str) -> None:
    shutil.copytree(STORED / "run-ring", tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "summary.json").write_text(text)
    page = tmp_path / "page.html"
    said = run_command("report", str(tmp_path / "good"), str(tmp_path / "bad"), "-o", str(page))
    assert said.code == 0, said.err
    assert "bad is left out" in page.read_text(encoding="utf-8")
