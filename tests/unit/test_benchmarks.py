"""Benchmarks that nobody runs every day still work."""

from __future__ import annotations

import subprocess
import sys

import pytest

from helpers import REPOSITORY

SHORT = {
    "measuring.py": ("--models", ""),
    "kept_memory.py": ("--models", "lenet5", "--repeats", "1", "--steps", "2"),
    "startup.py": ("--before", str(REPOSITORY), "--repeats", "1", "--command=--help"),
    "fuzz.py": ("--inputs", "90", "--faults", "/nonexistent"),
    "dataflow.py": ("--side", "6", "--repeats", "1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_a_benchmark_prints_its_lines(name: str) -> None:
    command = [sys.executable, str(REPOSITORY / "benchmarks" / name), *SHORT[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
