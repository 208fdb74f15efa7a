"""Imports follow one direction, and heavy or foreign packages stay where they belong."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import REPOSITORY

SOURCE = REPOSITORY / "src" / "paceline"

# Low to high: a part may import what stands before its own line, and its own line's parts where it says so.
LAYERS: list[set[str]] = [
    {
        "authenticated_channel",
        "durable_files",
        "errors",
        "interrupts",
        "limits",
        "standard_streams",
        "text",
        "worker_activity",
    },
    {"output_files"},
    {"results"},
    {"worker_files", "parsing"},
    {"plugins"},
    {"trusted_code"},
    {"recipe"},
    {"data", "measure", "comm", "cluster"},
    {"models", "checkpoint"},
    {"codecs"},
    {"strategies"},
    {"train"},
    {"quantize"},
    {"launch"},
    {"runs"},
    {"study", "dataflow"},
    {"present", "export"},
    {"api", "library"},
    {"cli"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
ONLY: dict[str, set[str]] = {
    "runs": {"runs", "recipe", "results", "errors", "text", "worker_files", "parsing", "durable_files", "interrupts"}
    | {"measure"}
}
# What may import a foreign package, by the package.
HOMES = {"torch.distributed": "comm", "plotly": "present", "jinja2": "present", "playwright": "present", "typer": "cli"}
HOMES |= {"onnx": "quantize", "onnxruntime": "quantize"}
HOMES |= {"pyarrow": "export", "torch.utils.tensorboard": "export", "mlflow": "export"}
ENTRANCES = {"__init__", "__main__"}  # the public names and the command: they look everything up, nobody needs them


@functools.cache
def imports(file: Path) -> list[tuple[int, str]]:
    """Every module that a file imports, at its top or inside a function, with the line."""
    return list(find_imports(file))


def find_imports(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}:{node.lineno} imports relatively"
            yield node.lineno, node.module or ""
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def part_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = sorted(SOURCE.rglob("*.py"))


def test_every_part_has_a_place_in_the_order() -> None:
    parts = {part_of(file) for file in FILES} - ENTRANCES
    assert parts == set(LEVEL), "give a new part its line in LAYERS"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_no_arrow_points_back(file: Path) -> None:
    part = part_of(file)
    if part in ENTRANCES:
        return
    for line, module in imports(file):
        words = module.split(".")
        if words[0] != "paceline" or len(words) == 1 or words[1] not in LEVEL:
            continue
        other = words[1]
        where = f"{file.relative_to(SOURCE)}:{line} imports paceline.{other}"
        assert other == part or LEVEL[other] < LEVEL[part], f"{where}, which stands above {part}"
        assert part not in ONLY or other in ONLY[part], f"{where}; {part} may only import {sorted(ONLY[part])}"


@pytest.mark.parametrize("package", HOMES)
def test_a_foreign_package_stays_at_home(package: str) -> None:
    users = {
        part_of(file)
        for file in FILES
        for _, module in imports(file)
        if module == package or module.startswith(f"{package}.")
    }
    assert users == {HOMES[package]}


def test_the_test_can_see_an_arrow(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text("import os\ndef late():\n    from paceline.study import run\n    import torch.distributed as d\n")
    found = {module for _, module in imports(file)}
    assert {"paceline.study", "paceline.study.run", "torch.distributed"} <= found


def loaded_by(statement: str) -> set[str]:
    command = [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split())


def test_training_needs_neither_the_reports_nor_the_command_lines_packages() -> None:
    loaded = loaded_by("import paceline.train.job, paceline.launch.local")
    assert "torch" in loaded
    elsewhere = {"plotly", "jinja2", "playwright", "typer", "rich", "pandas", "matplotlib", "prometheus_client"}
    assert not loaded & (elsewhere | {"pyarrow", "mlflow", "tensorboard", "onnx", "onnxruntime"})


def test_metrics_packages_are_imported_with_a_metrics_port_alone() -> None:
    assert "prometheus_client" not in loaded_by("import paceline.cli.compare, paceline.cli.metrics")


def test_the_accelerator_needs_torch_for_users_models_alone() -> None:
    loaded = loaded_by(
        "import paceline.dataflow.network_cost, paceline.dataflow.trace_export, paceline.dataflow.simulator"
    )
    assert "numpy" in loaded
    assert "torch" not in loaded


def test_a_worker_that_waits_is_cheap() -> None:
    loaded = loaded_by("import paceline.launch.worker_process")
    assert "torch" not in loaded
    assert "numpy" not in loaded
