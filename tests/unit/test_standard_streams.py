"""Output that cannot be written: a reader that is gone, a terminal that was closed, a full disk, closed descriptors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "paceline", "--help"]
PRINTS = """
import os, sys
from paceline.standard_streams import lost_output, tolerate_errors
output = tolerate_errors()
for _ in range(3):
    print("x" * 100_000)
    sys.stdout.flush()
reason = lost_output(output)
os.write(2, f"reason {reason!r}".encode())
"""


def ran(command: list[str], **options: Any) -> tuple[int, str]:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=100, check=False, **options
    )
    return done.returncode, done.stderr


def closed_pipe() -> int:
    """Return the writing end of a pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("flags", [[], ["-u"]])
def test_a_reader_that_is_gone_is_no_failure(flags: list[str]) -> None:
    pipe = closed_pipe()
    assert ran([sys.executable, *flags, "-c", PRINTS], stdout=pipe) == (0, "reason ''")
    os.close(pipe)


def test_a_terminal_that_was_closed_is_no_failure() -> None:
    ours, theirs = os.openpty()
    os.close(ours)
    assert ran([sys.executable, "-c", PRINTS], stdout=theirs) == (0, "reason ''")
    os.close(theirs)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a system without /dev/full")
@pytest.mark.parametrize("flags", [[], ["-u"]])
def test_a_full_disk_is_a_failure(flags: list[str]) -> None:
    with open("/dev/full", "w") as full:
        assert ran([sys.executable, *flags, "-c", PRINTS], stdout=full) == (0, "reason 'No space left on device'")


def test_output_keeps_its_encoding_and_its_buffering() -> None:
    code = (
        "import sys; from paceline.standard_streams import tolerate_errors\n"
        "def settings(s): return s.encoding, s.errors, s.line_buffering, s.write_through\n"
        "before = settings(sys.stdout), settings(sys.stderr)\n"
        "tolerate_errors()\n"
        "assert (settings(sys.stdout), settings(sys.stderr)) == before\n"
        "print('\\u00fc')\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, timeout=60, check=False, env={**os.environ, "PYTHONIOENCODING": "latin-1:replace"}
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\xfc\n", b"")


def test_closed_descriptors() -> None:
    command = ["sh", "-c", f'exec {sys.executable} -c "$0" <&- >&- 2>&-', PRINTS]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_a_command_without_a_reader_ends_with_0() -> None:
    pipe = closed_pipe()
    assert ran(COMMAND, stdout=pipe) == (0, "")
    os.close(pipe)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a system without /dev/full")
def test_a_command_on_a_full_disk_ends_with_1() -> None:
    with open("/dev/full", "w") as full:
        code, errors = ran(COMMAND, stdout=full)
    assert (code, errors) == (1, "paceline: standard output cannot be written: No space left on device\n")
