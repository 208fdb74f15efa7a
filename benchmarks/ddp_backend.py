"""Stock DistributedDataParallel on gloo against the same on the backend `paceline`, on this host.

    python benchmarks/ddp_backend.py [--workers 4] [--repeats 15] [--cases lenet5:8,vgg11:8]

A case is a model and a batch per worker. In each repeat both backends train some steps in the same processes, in
alternating order. Prints medians over repeats of a step's time (the slowest worker's), and gloo's time over that of
`paceline` with a 95 % interval: above 1 `paceline` is faster.
"""

from __future__ import annotations

import argparse
import socket

import workers as bench_workers

from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.measure.stats import paired_ratio, percentile

STEPS = {"lenet5": 40, "vgg11": 6}
BACKENDS = ("gloo", "paceline")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--cases", default="lenet5:8,vgg11:8")
    parser.add_argument("--steps", type=int, default=0, help="steps of a repeat (0: depends on the model)")
    arguments = parser.parse_args()
    print(f"{'case':<12} {'gloo ms':>9} {'paceline ms':>12} {'gloo/paceline':>14}  95 % interval")
    with LocalPool(arguments.workers) as launcher:
        for case in arguments.cases.split(","):
            model, batch = case.split(":")
            task = Task(
                bench_workers.time_ddp,
                {
                    "model": model,
                    "batch": int(batch),
                    "steps": arguments.steps or STEPS.get(model, 6),
                    "repeats": arguments.repeats,
                    "backends": BACKENDS,
                    "port": _free_port(),
                },
                num_workers=arguments.workers,
            )
            per_worker = launcher.run(task, lambda event: None)  # noqa: ARG005
            slowest = {
                name: [max(values) for values in zip(*(times[name] for times in per_worker), strict=True)]
                for name in BACKENDS
            }
            ratio = paired_ratio(slowest["gloo"], slowest["paceline"])
            gloo_ms, ours_ms = (1000 * percentile(slowest[name], 50) for name in BACKENDS)
            spread = f"{ratio.low:.2f} to {ratio.high:.2f}"
            print(f"{case:<12} {gloo_ms:9.2f} {ours_ms:12.2f} {ratio.value:14.2f}  {spread}", flush=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
