"""Fixtures for all tests; one fails every test that leaks processes, environment variables or files."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import HealthCheck, settings

import jobs
import library_uses
import paceline
from helpers import REPOSITORY, SHARED_POOLS, child_processes, on_pool
from paceline.comm import shm_mailbox
from paceline.launch.local import LocalPool
from pairwise import mark_uncovered_as_slow

# Folders that are not checked for leftover files: caches, and sources, which may be edited while tests run.
_UNWATCHED = {".git", ".venv", "src", "docs", "shared", "__pycache__", ".pytest_cache", ".hypothesis", "runs"}
_UNWATCHED |= {".mypy_cache", ".ruff_cache", "build", "dist"}


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    # No deadline: the machine may be busy with other work during one example.
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("quick", patient, max_examples=25)
    settings.register_profile("thorough", patient)
    settings.load_profile("quick" if config.option.markexpr == "not slow" else "thorough")
    # A shell makes background commands ignore Ctrl-C, and child processes would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_uncovered_as_slow(items)
    if config.option.markexpr == "slow":  # property tests run again, with the thorough profile
        for item in items:
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fail a test that leaks child processes, environment variables or files in the repository."""
    environment, files, children = _environment(), _files(), child_processes()
    yield
    leaked = [process for pid, process in child_processes().items() if pid not in children]
    _, alive = psutil.wait_procs(leaked, timeout=3.0)
    names = [_named(process) for process in alive if process.is_running()]
    for process in alive:
        process.kill()
    assert not names, f"child processes left behind: {names}"
    changed = {key for key, _ in environment.items() ^ _environment().items()}
    assert not changed, f"environment variables left behind: {sorted(changed)}"
    assert not _files() - files, f"files left behind: {sorted(map(str, _files() - files))}"


@pytest.fixture(scope="session")
def pool() -> Iterator[LocalPool]:
    """A pool of six processes (four workers, two servers), shared by all tests that do not kill its workers."""
    with LocalPool(6) as launcher:
        SHARED_POOLS.append(launcher)
        on_pool(launcher, 6, jobs.rank_of)
        yield launcher
    SHARED_POOLS.remove(launcher)


@pytest.fixture
def session() -> Iterator[None]:
    """A session of the library with one worker, in this process."""
    paceline.init()
    yield
    library_uses.abandon()


@pytest.fixture
def small_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink shared-memory channels to four pieces of 1 KiB and eight entries."""
    monkeypatch.setattr(shm_mailbox, "PIECE_BYTES", 1024)
    monkeypatch.setattr(shm_mailbox, "ENTRIES", 8)
    monkeypatch.setattr(shm_mailbox, "ROOM_BYTES", 16 * 4 * 1024)


def _named(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())}"
    except psutil.Error:  # the process has just ended
        return str(process.pid)


def _environment() -> dict[str, str]:
    # pytest's own, and one that torch sets when an optimiser is first used.
    theirs = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}
    return {key: value for key, value in os.environ.items() if key not in theirs}


def _files() -> set[Path]:
    found = set()
    for folder, folders, names in os.walk(REPOSITORY):
        folders[:] = [name for name in folders if name not in _UNWATCHED]
        found |= {Path(folder, name) for name in names if not name.endswith((".py", ".md"))}
    return found
