"""`keep_memory`: memory freed by a step stays in the process for the next one."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from paceline.train.allocator import ALLOCATOR_VARIABLES, keep_memory

STEPS = """
import ctypes, resource, sys
import torch
from paceline import keep_memory
from paceline.train.allocator import M_MMAP_THRESHOLD

# By itself the allocator gives back what it happens to; this way it gives back every large block.
ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 128 << 10)
if sys.argv[1] == "keep":
    assert keep_memory({})
def step():
    for megabytes in (4, 8, 16):
        torch.ones(megabytes << 18)
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Return the number of page faults in ten steps."""
    done = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator can be told")
def test_kept_memory_causes_no_page_faults() -> None:
    assert faults("keep") < 500 < faults("leave")


@pytest.mark.parametrize("name", ALLOCATOR_VARIABLES)
def test_settings_of_the_user_are_kept(name: str) -> None:
    assert keep_memory({name: "1"}) is False
