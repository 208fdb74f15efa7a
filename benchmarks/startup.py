"""Time to start: six strategies in one compare against one strategy alone, and this tree against another.

    python benchmarks/startup.py [--repeats 3]
    python benchmarks/startup.py --before PATH [--repeats 10] [--with-compare]

The wall time of six may be at most the wall time of one plus 1.2 x the others' training time; both are whole
commands in fresh processes, interleaved. Prints wall times and the share of that allowance that was used.

With `--before`, the path of another checkout: commands that only start and end, of both trees in turn, under the
same interpreter and the same installed packages. Prints CPU time (user and system, of the process and its children),
wall time and the peak memory of the process itself, medians over the repeats, and ratios of this tree to the other.
CPU time is less disturbed by other programs than wall time. `--with-compare` adds a compare of six strategies.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from paceline.measure.stats import percentile

SIX = "one-worker,gather-scatter,root-average,all-reduce,ring,ddp"


def compare(strategies: str, folder: Path) -> tuple[float, list[dict[str, Any]]]:
    """Return the wall time and the results of one command."""
    target = folder / "result.json"
    command = [sys.executable, "-m", "paceline", "compare", "--strategies", strategies, "--json", str(target)]
    started = time.perf_counter()
    subprocess.run([*command, "--out", str(folder / "runs")], check=True, stdout=subprocess.DEVNULL)
    wall_s = time.perf_counter() - started
    return wall_s, json.loads(target.read_text())["results"]


# Each imports something else: nothing, the recipe's options, stored runs, torch.
LIGHT = (["--help"], ["compare", "--help"], ["runs", "--out", "nowhere"], ["recipes"], ["models"])
TREE = Path(__file__).resolve().parents[1]


class Cost(NamedTuple):
    """CPU time, wall time and memory of one command."""

    cpu_s: float  # of the process and its children
    wall_s: float
    peak_mb: float  # resident memory of the process itself, without its children


def cost_of(tree: Path, words: list[str], folder: str) -> Cost:
    """Return the cost of one command of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    begin, started = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "paceline", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment, cwd=folder) as process:
        peak_mb = 0.0
        while process.poll() is None:
            peak_mb = max(peak_mb, _peak_mb(process.pid))
            time.sleep(0.005)
    wall_s, end = time.perf_counter() - started, os.times()
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed in {tree}")
    cpu_s = end.children_user - begin.children_user + end.children_system - begin.children_system
    return Cost(cpu_s, wall_s, peak_mb)


def _peak_mb(pid: int) -> float:
    """The kernel's own record of a process's largest resident memory; 0 where there is none (any more)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM:")), 0.0)


def against(before: Path, commands: list[list[str]], *, repeats: int) -> None:
    """Run both trees in turn, so that disturbances of the machine affect both."""
    if not (before / "src" / "paceline").is_dir():
        raise SystemExit(f"{before} is no checkout: it has no src/paceline")
    print(f"{'':<28} {'CPU s':>17} {'':>6} {'wall s':>17} {'':>6} {'peak MB':>15}")
    halves = f"{'before':>8} {'after':>8} {'ratio':>6}"
    print(f"{'command':<28} {halves} {halves} {'before':>7} after")
    for words in commands:
        old: list[Cost] = []
        new: list[Cost] = []
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(repeats + 1):
                old.append(cost_of(before, words, folder))
                new.append(cost_of(TREE, words, folder))
        # The first run of each tree fills caches.
        was, now = (Cost(*(percentile(column, 50) for column in zip(*costs[1:], strict=True))) for costs in (old, new))
        cells = [f"{a:8.3f} {b:8.3f} {b / a:6.2f}" for a, b in zip(was[:2], now[:2], strict=True)]
        print(f"{' '.join(words)[:28]:<28} {' '.join(cells)} {was.peak_mb:7.0f} {now.peak_mb:5.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", type=Path, metavar="PATH", help="another checkout to compare the start with")
    parser.add_argument("--with-compare", action="store_true", help="with --before: also a compare of six strategies")
    parser.add_argument("--command", action="append", default=[], help="with --before: only these, as --command=--help")
    arguments = parser.parse_args()
    if arguments.before is not None:
        heavy = [["compare", "--strategies", SIX, "--no-report"]] if arguments.with_compare else []
        commands = [command.split() for command in arguments.command] or [*LIGHT, *heavy]
        against(arguments.before.resolve(), commands, repeats=arguments.repeats)
        return
    shares = []
    print(f"{'one: wall s':>12} {'six: wall s':>12} {'others train s':>15} {'allowed s':>10} {'used':>6}")
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as folder:
            one_s, _ = compare("gather-scatter", Path(folder))
            six_s, results = compare(SIX, Path(folder))
        others_s = sum(result["train_s"] for result in results if result["strategy"] != "gather-scatter")
        allowed_s = one_s + 1.2 * others_s
        shares.append(six_s / allowed_s)
        print(f"{one_s:12.2f} {six_s:12.2f} {others_s:15.2f} {allowed_s:10.2f} {100 * shares[-1]:5.0f} %", flush=True)
    print(f"median share of the allowance used: {100 * percentile(shares, 50):.0f} %")


if __name__ == "__main__":
    main()
