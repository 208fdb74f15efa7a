"""A damaged folder is one sentence, and never breaks the list, `show`, `diff` or `report` of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from damaged_folders import COMMANDS, damaged_folders, fault_of


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
