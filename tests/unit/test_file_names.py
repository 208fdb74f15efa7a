"""Files of different packages have different names, unless they are the same kind of thing."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from helpers import REPOSITORY
from paceline.cli.lazy_commands import LazyGroup

SOURCE = REPOSITORY / "src" / "paceline"
# Packages that have one file for each command or study.
PER_COMMAND = {
    "cli",
    "study",
    "study/quantize",
    "study/reproduce",
    "results",
    "present/studies",
    "present/charts",
}
SAME_EVERYWHERE = {"__init__.py", "base.py", "registry.py"}


def test_files_of_different_packages_have_different_names() -> None:
    commands = {f"{name}.py" for name in LazyGroup().list_commands(None)} | {"diff.py"}  # `paceline runs diff`
    packages_by_name: dict[str, set[str]] = defaultdict(set)
    for file in SOURCE.rglob("*.py"):
        packages_by_name[file.name].add(file.parent.relative_to(SOURCE).as_posix())
    shared = {
        name: sorted(packages)
        for name, packages in packages_by_name.items()
        if len(packages) > 1 and name not in SAME_EVERYWHERE and not (name in commands and packages <= PER_COMMAND)
    }
    assert shared == {}, "rename these files, each after what it holds"


def test_packages_with_a_file_per_command_exist() -> None:
    assert [package for package in sorted(PER_COMMAND) if not Path(SOURCE, package).is_dir()] == []
