"""Helpers for tests of emulated nodes: skip tests that this host cannot run, and start processes inside nodes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers import TESTS
from paceline.cluster.cgroups import labelled_groups
from paceline.cluster.layout import DIRECT, USER
from paceline.cluster.running import clusters_by_process, living_keepers, processes_inside
from paceline.cluster.support import Host, check_host, examine
from paceline.errors import UsageError
from paceline.recipe import ClusterConfig

VICTIM = str(TESTS / "clusters_victim.py")


@functools.cache
def host() -> Host:
    return examine()


def need(**asked: object) -> ClusterConfig:
    """Return a cluster configuration; skip the test, with the reason, if this host does not support it."""
    config = ClusterConfig(**asked)
    try:
        check_host(host(), config)
    except UsageError as error:
        pytest.skip(str(error))
    return config


def entered_as(entry: str) -> Host:
    """Return this host with another method of entering namespaces."""
    if entry == DIRECT and host().entry != DIRECT:
        pytest.skip("namespaces without a user namespace need root's rights")
    found = dataclasses.replace(host(), entry=entry)
    return dataclasses.replace(found, controllers=()) if entry == USER and os.geteuid() else found


def cpu_controller(config: ClusterConfig) -> str:
    """Return the cgroup folder in which clusters limit CPU shares."""
    check_host(host(), config)
    return next(one.folder for one in host().controllers if one.name == "cpu")


def inside(command: list[str], code: str, *arguments: str) -> list[str]:
    """Append Python code to a command."""
    return [*command, sys.executable, "-c", code, *arguments]


def run(command: list[str], **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a process and kill it at the end of the block."""
    popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield popen
    finally:
        popen.kill()
        popen.communicate()


def is_gone(name: str) -> bool:
    names = {keeper.layout.name for keeper in living_keepers()}
    return name not in names and name not in labelled_groups() and not processes_inside(name)


def networked(name: str, *, excluding: int) -> set[int]:
    """Return the processes in the networks of a cluster's nodes, except `excluding`."""
    return {pid for pid, owner in clusters_by_process().items() if owner == name} - {excluding}


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s in vain: {what}"
        time.sleep(0.02)


def folders_named(name: str) -> list[Path]:
    return labelled_groups().get(name, [])
