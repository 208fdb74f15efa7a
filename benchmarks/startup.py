"""Starting workers once: six strategies in one compare against one strategy alone.

    python benchmarks/startup.py [--repeats 3]

The wall time of six may be at most the wall time of one plus 1.2 x the others' training time; both are whole
commands in fresh processes, interleaved. Prints wall times and the share of that allowance that was used.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from paceline.measure.stats import percentile

SIX = "one-worker,gather-scatter,root-average,all-reduce,ring,ddp"


def compare(strategies: str, folder: Path) -> tuple[float, list[dict[str, Any]]]:
    """Wall time and results of one command."""
    target = folder / "result.json"
    command = [sys.executable, "-m", "paceline", "compare", "--strategies", strategies, "--json", str(target)]
    started = time.perf_counter()
    subprocess.run([*command, "--out", str(folder / "runs")], check=True, stdout=subprocess.DEVNULL)
    wall_s = time.perf_counter() - started
    return wall_s, json.loads(target.read_text())["results"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
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
