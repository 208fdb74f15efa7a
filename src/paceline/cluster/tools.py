"""The programs of the system that build links and enter nodes."""

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
    """Give `ip` or `tc` all lines at once; an OSError says which line it refused, and why."""
    given = list(lines)
    if not given:
        return
    command = [find_tool(name) or name, "-batch", "-"]
    done = subprocess.run(command, input="\n".join(given) + "\n", capture_output=True, text=True, check=False)
    if done.returncode:
        reason, _, rest = done.stderr.strip().partition("\n")
        number = rest.rpartition(":")[2].strip()
        line = f" in {name} {given[int(number) - 1]}" if number.isdecimal() and 0 < int(number) <= len(given) else ""
        raise OSError(f"{reason.removeprefix('Error: ')}{line}")
