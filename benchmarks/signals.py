"""End `paceline run` with a signal at a random moment, and check that it ends well.

    python benchmarks/signals.py --tries 100

Each try starts a run with 2 workers and sends SIGTERM, SIGINT or SIGHUP at a random moment between the start of the
process and the end of an undisturbed run. Then it checks the exit code, the output (no traceback), the stored run
(readable with the right status, or none) and that no process is left. A process that gets the signal before Python has
loaded Paceline is ended by the system, as the table says.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

import paceline
from paceline.present import page_of
from paceline.runs import find, list_runs

COMMAND = ["run", "--workers", "2", "--epochs", "40", "--train-samples", "100", "--test-samples", "50"]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MARK = "PACELINE_SIGNALS"  # an environment variable, which everything that a command starts inherits
PATIENCE_S = 200.0
SETTLE_S = 5.0
PACKAGE = str(Path(paceline.__file__).parent)  # is part of every traceback through Paceline


@dataclass(frozen=True)
class Try:
    """One command that received a signal."""

    number: signal.Signals
    after_s: float
    code: int
    ended_s: float  # from the signal to the end of the process
    output: str
    statuses: tuple[str, ...]  # of the stored runs
    processes: tuple[str, ...]  # left after the command

    @property
    def is_by_system(self) -> bool:
        """Whether the signal came before Paceline was loaded, so that Python's defaults applied."""
        is_ours = "paceline: " in self.output or PACKAGE in self.output
        return not self.statuses and self.code != 0 and not is_ours

    @property
    def outcome(self) -> str:
        if self.is_by_system:
            return "ended by the system"
        return f"code {self.code}, {', '.join(self.statuses) or 'no run'}"

    @property
    def faults(self) -> list[str]:
        if self.is_by_system:
            return []
        found = []
        if self.code not in (0, 1):
            found.append(f"exit code {self.code}")
        if "Traceback" in self.output or "Exception ignored" in self.output:
            found.append("a traceback")
        if self.code == 1 and "interrupted" not in self.output:
            found.append("no sentence")
        if len(self.statuses) > 1 or not set(self.statuses) <= {"done", "interrupted"}:
            found.append(f"stored as {self.statuses}")
        if self.code == 0 and self.statuses != ("done",):
            found.append(f"exit code 0, but stored as {self.statuses}")
        return [*found, *(f"left {process}" for process in self.processes)]


def try_once(number: signal.Signals, after_s: float) -> Try:
    mark = secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as folder:
        popen = _start(folder, mark)
        time.sleep(after_s)
        popen.send_signal(number)
        sent_at = time.monotonic()
        output, _ = popen.communicate(timeout=PATIENCE_S)
        ended_s = time.monotonic() - sent_at
        processes = _left(mark)
        statuses = tuple(stored.status for stored in list_runs(Path(folder) / "runs"))
        if statuses:
            page_of(find("last", Path(folder) / "runs"))  # as `paceline runs show`; errors end this
    return Try(number, after_s, popen.returncode, ended_s, output, statuses, processes)


def _start(folder: str, mark: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "paceline", *COMMAND],
        cwd=folder,
        env={**os.environ, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _left(mark: str) -> tuple[str, ...]:
    """Return the processes with the mark that still run after a few seconds."""
    deadline = time.monotonic() + SETTLE_S
    while (found := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _marked(mark: str) -> tuple[str, ...]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:60]}")
        except psutil.Error:  # it has ended, or belongs to another user
            continue
    return tuple(found)


def duration_s() -> float:
    """Return the seconds that an undisturbed run takes."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        popen = _start(folder, "undisturbed")
        output, _ = popen.communicate(timeout=2 * PATIENCE_S)
        if popen.returncode:
            raise SystemExit(f"the undisturbed run failed: {output}")
        return time.monotonic() - started


def table(tries: list[Try]) -> str:
    rows = Counter((one.number.name, one.outcome) for one in tries)
    lines = ["| signal | outcome | tries |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {what} | {count} |" for (name, what), count in sorted(rows.items()))])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within", type=float, help="latest second of a signal (default: the time of a whole run)")
    arguments = parser.parse_args()
    within_s = arguments.within or duration_s()
    print(f"signals within {within_s:.2f} s of the start")
    chance, tries = random.Random(arguments.seed), []
    for number in range(1, arguments.tries + 1):
        one = try_once(chance.choice(SIGNALS), chance.uniform(0, within_s))
        tries.append(one)
        faults = "; ".join(one.faults)
        print(
            f"{number:3} {one.number.name} after {one.after_s:.3f} s: {one.outcome}, {one.ended_s:.2f} s later"
            f"{f'  FAULT {faults}' if faults else ''}",
            flush=True,
        )
        if faults:
            print(one.output, flush=True)
    bad = [one for one in tries if one.faults]
    slowest_s = max(one.ended_s for one in tries)
    print(table(tries))
    print(f"{len(tries)} signals: {len(bad)} ended badly; slowest end {slowest_s:.2f} s after the signal")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
