"""Effect of `keep_memory()` on step time and page faults: fresh processes with and without it, in turn.

`python benchmarks/kept_memory.py [--models lenet5,vgg11,resnet18] [--batch-size 8] [--repeats 7] [--steps 20]`
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time

import torch
from torch.nn import functional

from paceline import keep_memory
from paceline.data import load_data
from paceline.measure.stats import interval95_of_median
from paceline.models import build_model
from paceline.recipe import DataConfig

DATA = {"lenet5": "synthetic:1x28x28x10"}
LARGER = "synthetic:3x32x32x10"
WARMUP = 3


def train(model_name: str, batch_size: int, steps: int, *, is_kept: bool) -> None:
    """Print the median time of a step in milliseconds and its page faults, in this process."""
    torch.set_num_threads(1)
    if is_kept and not keep_memory({}):
        sys.exit("the allocator of this system cannot be told")
    torch.manual_seed(0)
    data = load_data(DataConfig(name=DATA.get(model_name, LARGER), train_samples=1, test_samples=1), seed=0)
    model = build_model(model_name, data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    inputs, target = torch.randn(batch_size, *data.shape), torch.randint(0, 10, (batch_size,))
    times, faults = [], []
    for _ in range(WARMUP + steps):
        begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), target).backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    print(1000 * statistics.median(times[WARMUP:]), statistics.median(faults[WARMUP:]))


def one(model: str, arguments: argparse.Namespace, how: str) -> tuple[float, float]:
    command = [sys.executable, __file__, "--child", how, "--models", model]
    command += ["--batch-size", str(arguments.batch_size), "--steps", str(arguments.steps)]
    milliseconds, faults = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(milliseconds), float(faults)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="lenet5,vgg11,resnet18")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--child", choices=("kept", "left"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        train(arguments.models, arguments.batch_size, arguments.steps, is_kept=arguments.child == "kept")
        return
    print(f"one worker of one thread, {arguments.batch_size} samples, {arguments.repeats} processes each, in turn\n")
    print("| model | left alone: ms, pages | kept: ms, pages | kept / left (95 %) |\n| :--- | ---: | ---: | ---: |")
    for model in arguments.models.split(","):
        rows = [(one(model, arguments, "left"), one(model, arguments, "kept")) for _ in range(arguments.repeats)]
        left, kept = ([row[side] for row in rows] for side in (0, 1))
        ratios = [mine[0] / other[0] for other, mine in rows]
        low, high = interval95_of_median(ratios)
        ratio = f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"
        print(f"| {model} | {typical(left)} | {typical(kept)} | {ratio} |", flush=True)


def typical(side: list[tuple[float, float]]) -> str:
    return f"{statistics.median(row[0] for row in side):.1f}, {statistics.median(row[1] for row in side):.0f}"


if __name__ == "__main__":
    main()
