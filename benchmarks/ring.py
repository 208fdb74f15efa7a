"""The ring strategy against gloo's all-reduce, 4 workers on this host.

    python benchmarks/ring.py [--megabytes 37] [--workers 4] [--repeats 21]

Prints median times over repeats (the slowest worker of each), and gloo's time over the ring's with its interval:
above 1 the ring is faster. The bar is 0.9.
"""

from __future__ import annotations

import argparse

import workers as bench_workers

from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.measure.stats import paired_ratio, percentile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="0.25,4,37")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=21)
    arguments = parser.parse_args()
    print(f"{'MB':>8} {'ring ms':>9} {'library ms':>11} {'library/ring':>13}  95 % interval")
    with LocalPool(arguments.workers) as launcher:
        for megabytes in [float(word) for word in arguments.megabytes.split(",")]:
            task = Task(
                bench_workers.time_all_reduces,
                {"num_elements": int(megabytes * 1e6 / 4), "repeats": arguments.repeats, "warmup": 3},
                num_workers=arguments.workers,
            )
            per_worker = launcher.run(task, lambda event: None)  # noqa: ARG005
            slowest = {
                name: [max(values) for values in zip(*(times[name] for times in per_worker), strict=True)]
                for name in ("ring", "library")
            }
            ratio = paired_ratio(slowest["library"], slowest["ring"])
            ring_ms, library_ms = (1000 * percentile(slowest[name], 50) for name in ("ring", "library"))
            spread = f"{ratio.low:.2f} to {ratio.high:.2f}"
            print(f"{megabytes:8.2f} {ring_ms:9.2f} {library_ms:11.2f} {ratio.value:13.2f}  {spread}", flush=True)


if __name__ == "__main__":
    main()
