"""bf16 with channels-last against fp32 eager: forward, backward and optimiser step of vgg11 on one core.

    python benchmarks/precision.py [--batch 32] [--repeats 9]

Prints milliseconds per step, interleaved, and fp32's time over bf16's. The bar is 1.6 where the CPU has bf16
instructions; without them the ratio says nothing.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from paceline.data import load_data
from paceline.measure.stats import paired_ratio, percentile
from paceline.models import build_model
from paceline.recipe import DataConfig
from paceline.train.step import Arithmetic, build_objective, forward_backward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vgg11")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    print(f"bf16 instructions: {', '.join(f for f in ('avx512_bf16', 'amx_bf16') if f in flags) or 'none seen'}")
    data = load_data(DataConfig(name="synthetic:3x32x32x10", train_samples=arguments.batch), seed=0)
    inputs, target = data.train.batch(torch.arange(arguments.batch), 0)
    objective = build_objective("cross-entropy")
    steps = {}
    for name, arithmetic in {"fp32": Arithmetic("fp32"), "bf16": Arithmetic("bf16", channels_last=True)}.items():
        model = arithmetic.place(build_model(arguments.model, data)).train()
        steps[name] = (model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), arithmetic)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(arguments.repeats + 2):
        for name, (model, optimizer, arithmetic) in steps.items():
            started = time.perf_counter()
            optimizer.zero_grad()
            forward_backward(model, inputs, target, objective=objective, arithmetic=arithmetic)
            optimizer.step()
            if repeat >= 2:
                times[name].append(time.perf_counter() - started)
    for name, values in times.items():
        print(f"{name}: {1000 * percentile(values, 50):8.1f} ms per step of {arguments.batch} images")
    ratio = paired_ratio(times["fp32"], times["bf16"])
    print(f"fp32 / bf16 channels-last: {ratio.value:.2f} (95 % interval {ratio.low:.2f} to {ratio.high:.2f})")


if __name__ == "__main__":
    main()
