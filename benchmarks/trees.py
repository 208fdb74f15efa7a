"""Step times of this tree against another checkout, strategy by strategy, in one interleaved run.

    python benchmarks/trees.py --before PATH [--rounds 5] [--workers 2] [--comm shm]

Every round runs the same `paceline compare` once under each tree, in turn, with the same interpreter and installed
packages. Prints the median step time of both and the ratio of this tree to the other with its 95 % interval, from the
rounds in pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from paceline.measure.stats import paired_ratio

TREE = Path(__file__).resolve().parents[1]


def step_times(tree: Path, words: list[str]) -> dict[str, float]:
    """Return the mean step time of every strategy in one compare."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "result.json"
        command = [sys.executable, "-m", "paceline", "compare", *words, "--no-report", "--json", str(target)]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, cwd=folder)
        return {row["label"]: row["iteration_s"]["mean"] for row in json.loads(target.read_text())["results"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, metavar="PATH", help="the other checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--comm", default="shm")
    parser.add_argument("--strategies", default="none,ddp,overlap,sharded")
    parser.add_argument("--iterations", type=int, default=300)
    arguments = parser.parse_args()
    words = ["--workers", str(arguments.workers), "--strategies", arguments.strategies]
    words += ["--comm", arguments.comm, "--iterations", str(arguments.iterations)]
    trees = {"before": arguments.before.resolve(), "after": TREE}
    times: dict[str, dict[str, list[float]]] = {name: {} for name in trees}
    for number in range(arguments.rounds):
        for name in trees if number % 2 == 0 else reversed(trees):
            for label, step_s in step_times(trees[name], words).items():
                times[name].setdefault(label, []).append(step_s)
    print(f"{'strategy':<20} {'before: ms/step':>16} {'after: ms/step':>15} {'after/before':>13}   95 %")
    for label, old in times["before"].items():
        new = times["after"][label]
        ratio = paired_ratio(new, old)
        interval = f"{ratio.low:.2f} to {ratio.high:.2f}" if ratio.low is not None else "one round"
        medians = [1000 * statistics.median(values) for values in (old, new)]
        print(f"{label:<20} {medians[0]:16.2f} {medians[1]:15.2f} {ratio.value:13.2f}   {interval}", flush=True)


if __name__ == "__main__":
    main()
