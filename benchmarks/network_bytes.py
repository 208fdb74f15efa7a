"""Bytes on the network by the kernel's count, against theory: 4 workers on this host, over gloo.

    python benchmarks/network_bytes.py [--strategies ring,ddp,gather-scatter] [--model vgg11] [--steps 6]

For every worker: what the strategy predicts that it sends, what the kernel counted as payload of its TCP connections,
and the protocol's overhead: headers and retransmissions. The bar is 5 %; beyond it, exit code 1.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from paceline.launch.local import LocalPool
from paceline.recipe import Recipe
from paceline.study.entries import make_entry
from paceline.study.run import execute

BAR_PERCENT = 5.0
# Allowance for barriers where a worker should send nothing.
SMALL_BYTES = 100_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", default="ring,ddp,gather-scatter")
    parser.add_argument("--model", default="vgg11")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    recipe = Recipe().replace(
        {
            "model.name": arguments.model,
            "data.name": "synthetic:3x32x32x10" if arguments.model != "lenet5" else "synthetic:1x28x28x10",
            "data.train_samples": 4 * arguments.workers,
            "data.test_samples": 8,
            "train.batch_size": 2 * arguments.workers,
            "train.iterations": arguments.steps,
            "workers": arguments.workers,
            "comm": "torch",
        }
    )
    print(f"{arguments.model}, {arguments.workers} workers, {arguments.steps} steps; megabytes per worker")
    print(
        f"{'strategy':16} {'rank':>4} {'theory':>9} {'sent':>9} {'off %':>6} {'received':>9} {'headers %':>9} again %"
    )
    worst = 0.0
    with LocalPool(arguments.workers) as launcher:
        for name in arguments.strategies.split(","):
            entry = make_entry(name, recipe)
            result = execute(launcher, recipe, entry, folder=None, on_event=lambda event: None)  # noqa: ARG005
            assert result is not None
            if result["network"] is None:
                print("this kernel does not count bytes per connection")
                return 1
            for row in result["network"]["per_worker"]:
                worst = max(worst, show(name, row))
    print(f"furthest from theory: {worst:.2f} % (bar: {BAR_PERCENT:g} %)")
    return int(worst > BAR_PERCENT)


def show(strategy: str, row: dict[str, Any]) -> float:
    """Print one worker; return its difference from theory in percent."""
    theory, sent = row["predicted_sent_bytes"], row["kernel_sent_bytes"]
    off = 100 * (sent - theory) / theory if theory else 0.0
    if abs(sent - theory) < SMALL_BYTES:
        off = 0.0 if not theory else off
    headers, again = (100 * row[key] / max(sent, 1) for key in ("header_bytes", "retransmitted_bytes"))
    print(
        f"{strategy:16} {row['rank']:>4} {theory / 1e6:9.2f} {sent / 1e6:9.2f} {off:+6.2f} "
        f"{row['kernel_received_bytes'] / 1e6:9.2f} {headers:9.3f} {again:7.3f}",
        flush=True,
    )
    return abs(off)


if __name__ == "__main__":
    sys.exit(main())
