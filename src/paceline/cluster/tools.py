"""The system programs that build links (`ip`, `tc`) and enter nodes (`nsenter`)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable

PACKAGES = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}
_ELSEWHERE = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # not on every user's path


def find_tool(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_ELSEWHERE]))


def run_lines(name: str, lines: Iterable[str]) -> None:
    """Run all lines in one batch of `ip` or `tc`; raise OSError with the refused line and the reason."""
    batch = list(lines)
    if not batch:
        return
    command = [find_tool(name) or name, "-batch", "-"]
    done = subprocess.run(command, input="\n".join(batch) + "\n", capture_output=True, text=True, check=False)
    if done.returncode:
        reason, _, rest = done.stderr.strip().partition("\n")
        number = rest.rpartition(":")[2].strip()
        line = f" in {name} {batch[int(number) - 1]}" if number.isdecimal() and 0 < int(number) <= len(batch) else ""
        raise OSError(f"{reason.removeprefix('Error: ')}{line}")
