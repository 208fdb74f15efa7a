"""Profiling overhead: blocks of steps with and without recording, in turn, for a small and a large model.

`python benchmarks/measuring.py [--models lenet5,vgg11] [--strategies ring,ddp] [--workers 2] [--repeats 5]`

First it times recording alone, as CPU time of a loop that does nothing else. Its caches are warm, so this is a lower
bound: real steps took several times as much.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.comm import CompletedWork, Work
from paceline.comm.threads import ThreadQueues, ThreadsComm
from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.measure.exchange import Clock
from paceline.measure.observer import Observers
from paceline.measure.recorder import Recorder
from paceline.recipe import Recipe
from paceline.study.overhead import percents_of_blocks, summarise
from paceline.train.job import train_job

DATA = {"lenet5": "synthetic:1x28x28x10", "vgg11": "synthetic:3x32x32x10"}
STEPS = {"lenet5": 960, "vgg11": 240}  # below 1,000, where every step's spans are kept
BATCH = 8  # of each worker: short steps, so that the overhead is visible
PHASES = ("data", "forward", "backward", "optimizer")


class Nowhere(ThreadsComm):
    """A comm that does nothing, so that only recording takes time."""

    def _all_reduce(self, tensor: Tensor) -> None:
        del tensor

    def _isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        del tensor, peer, tag
        return CompletedWork()

    _irecv = _isend


def empty_step(
    observers: Observers, comm: Nowhere, tensor: Tensor, step: int, *, reductions: int, messages: int
) -> int:
    """Return the CPU time of an empty step with observers."""
    begin_ns, begin = time.thread_time_ns(), time.perf_counter()
    observers.step_begins(step)
    for phase in PHASES:
        observers.end_phase(phase, time.perf_counter())
    for _ in range(reductions):
        comm.all_reduce(tensor)
    for _ in range(messages):
        comm.send(tensor, 1)
    facts = {"iteration_s": 0.003, "data_s": 0.0, "loss": 1.0, "num_right": 1, "num_answers": 8, "num_samples": 8}
    observers.step_ends(step, {"begin": begin, "sent_bytes": 0, **facts})
    return time.thread_time_ns() - begin_ns


def own_work(*, reductions: int, messages: int) -> float:
    """Return the CPU seconds that recording adds to a step with these operations."""
    comm, tensor = Nowhere(0, 2, ThreadQueues(1.0)), torch.zeros(10)
    operations = {"reductions": reductions, "messages": messages}

    def typical_ns(observers: Observers) -> float:
        return statistics.median(empty_step(observers, comm, tensor, step, **operations) for step in range(1000))

    without = typical_ns(Observers())
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder) / "0.jsonl", 0, Clock(0.0), [comm], has_spans=True)
        comm.listener = recorder
        observers = Observers([recorder])
        measured = typical_ns(observers)
        observers.run_ends()
    return (measured - without) * 1e-9


def measure(
    launcher: LocalPool, model: str, strategy: str, *, workers: int, steps: int, repeats: int
) -> dict[str, Any]:
    """Train several runs; return the overhead from the pairs of neighbouring blocks of all runs."""
    percents, medians, lines, block = [], [], 0, 5 if model == "lenet5" else 2
    recipe = Recipe().replace(
        {
            "model.name": model,
            "data.name": DATA[model],
            "data.train_samples": BATCH * workers * 10,
            "data.test_samples": 8,
            "train.worker_batch_size": BATCH,
            "train.iterations": steps,
            "workers": workers,
        }
    )
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            arguments = {"recipe": recipe, "strategy": strategy, "checkpoint": "", "folder": folder}
            arguments |= {"steps_per_block": block}
            results = launcher.run(Task(train_job, arguments, num_workers=workers), lambda event: None)  # noqa: ARG005
            lines = sum(1 for _ in (Path(folder) / "workers" / "0.jsonl").open())
        times = [result["iteration_s"] for result in results]
        percents += percents_of_blocks(times, block)
        medians.append(statistics.median(times[0]))
    step_s, cost = statistics.median(medians), summarise(percents) or {}
    return {"model": model, "strategy": strategy, "step_s": step_s, "lines_per_step": 2 * lines / steps, **cost}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="lenet5,vgg11")
    parser.add_argument("--strategies", default="all-reduce,ring,overlap,ddp")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=0, help="0: 960 for lenet5, 240 for vgg11")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", default="")
    asked = parser.parse_args()
    own = []
    for reductions, messages in ((0, 0), (1, 0), (10, 0), (0, 12)):
        seconds = own_work(reductions=reductions, messages=messages)
        own.append({"reductions": reductions, "messages": messages, "seconds": seconds})
        print(f"own thread, {reductions:2} reductions, {messages:2} messages: {1e6 * seconds:5.1f} us of CPU per step")
    rows = []
    with LocalPool(asked.workers) as launcher:
        for model in filter(None, asked.models.split(",")):
            for strategy in asked.strategies.split(","):
                how = {"steps": asked.steps or STEPS[model], "workers": asked.workers, "repeats": asked.repeats}
                row = measure(launcher, model, strategy, **how)
                rows.append(row)
                low, high = row["interval95_percent"]
                print(
                    f"{model:8} {strategy:12} {1000 * row['step_s']:8.2f} ms/step, {row['lines_per_step']:5.1f} lines "
                    f"per measured step: {row['cost_percent']:+.2f} % [{low:+.2f}, {high:+.2f}]",
                    flush=True,
                )
    if asked.json:
        Path(asked.json).write_text(json.dumps({"own_thread": own, "steps": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
