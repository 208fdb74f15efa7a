"""Detection of slow, killed and hung workers, with phase and size, and false positives without injection.

    python benchmarks/stragglers.py --workers 4 --tries 20

Every case is tried several times on each model; a line is printed as soon as a case is done. A verdict on a slow
worker is right when it names that rank and phase alone, and its size is within 15 % of what was injected.

Cores are not equal: those of a virtual machine differ by 10 to 40 % for minutes, and a worker on a slow one is
correctly named. To test the detection and not the machine, workers are moved between cores throughout a run (`--stay`
turns that off).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from paceline.errors import WorkerError
from paceline.launch.local import LocalPool
from paceline.measure.inject import Injection
from paceline.recipe import Recipe
from paceline.runs import Folder
from paceline.study.entries import Entry, make_entry
from paceline.study.preflight import preflight
from paceline.study.run import execute

MODELS = {
    "lenet5": {"model.name": "lenet5", "data.name": "mnist-mini"},
    "vgg11": {"model.name": "vgg11", "data.name": "synthetic:3x32x32x10", "optimizer.lr": 0.001},
}
BATCHES = {"lenet5": 128, "vgg11": 4}  # per worker
TURN_S = {"lenet5": 0.03, "vgg11": 0.25}  # on one core, a few steps
EVEN = "even"
INJECTIONS = (
    EVEN,
    "slow:rank=2,ms=200,phase=backward",
    "slow:rank=1,factor=1.5",
    "kill:rank=3,step=20",
    "hang:rank=1,step=20",
)
TOLERANCE = 0.15
HANG_TIMEOUT_S = 5.0
WARMUP = 3


@dataclass
class Case:
    """One injection, or none, on one model, with the verdicts of all tries."""

    model: str
    text: str
    right: int = 0
    sizes: list[float] = field(default_factory=list)  # found over injected
    wrong: list[str] = field(default_factory=list)

    @property
    def tries(self) -> int:
        return self.right + len(self.wrong)

    def add(self, said: str, *, is_right: bool) -> None:
        self.right += is_right
        self.wrong += [] if is_right else [said]

    def row(self) -> str:
        sizes = "-"
        if self.sizes:
            sizes = f"{statistics.median(self.sizes):.3f} ({min(self.sizes):.3f} to {max(self.sizes):.3f})"
        return f"| {self.model} | {self.text} | {self.right} of {self.tries} | {sizes} |"


def judge_slow(case: Case, result: dict[str, Any]) -> None:
    """Compare the verdict of a run with the injection."""
    found = result["stragglers"] or []
    said = "; ".join(
        f"worker {one['rank']} in {one['phase']} by {1000 * one['excess_s']:.1f} ms, {one['excess_percent']:.0f} %"
        for one in found
    )
    if case.text == EVEN:
        case.add(said, is_right=not found)
        return
    injection = Injection.parse(case.text)
    named = [one for one in found if one["rank"] == injection.rank]
    is_right = len(found) == 1 and bool(named) and named[0]["phase"] == (injection.phase or "all")
    if named:
        by_time = named[0]["excess_s"] / injection.sleep_s if injection.sleep_s else None
        size = by_time or named[0]["excess_percent"] / 100 / (injection.factor - 1)
        case.sizes.append(size)
        is_right = is_right and abs(size - 1) <= TOLERANCE
    case.add(said or "nobody", is_right=is_right)


@contextlib.contextmanager
def taking_turns(turn_s: float) -> Iterator[None]:
    """Rotate all workers over the cores, repeatedly."""
    cores, is_over = sorted(os.sched_getaffinity(0)), threading.Event()

    def turn() -> None:
        number = 0
        while not is_over.wait(turn_s):
            number += 1
            workers = sorted(psutil.Process().children(), key=lambda process: process.pid)
            for index, process in enumerate(workers):
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.sched_setaffinity(process.pid, {cores[(index + number) % len(cores)]})

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def ignore(event: dict[str, Any]) -> None:
    """Ignores progress."""
    del event


def attempt(case: Case, launcher: LocalPool, recipe: Recipe, entry: Entry) -> None:
    """Run one try."""
    with tempfile.TemporaryDirectory() as out:
        try:
            result = execute(launcher, recipe, entry, folder=Folder(Path(out), "run"), on_event=ignore)
        except WorkerError as error:
            ends = case.text != EVEN and Injection.parse(case.text).kind != "slow"
            case.add(str(error), is_right=ends and error.rank == Injection.parse(case.text).rank)
            return
    assert result is not None
    if case.text == EVEN or Injection.parse(case.text).kind == "slow":
        judge_slow(case, result)
    else:
        case.add("the run went on to its end", is_right=False)


def recipe_of(arguments: argparse.Namespace, model: str, text: str) -> Recipe:
    injections = [] if text == EVEN else [text]
    return Recipe().replace(
        {
            **MODELS[model],
            "workers": arguments.workers,
            "train.worker_batch_size": arguments.worker_batch_size or BATCHES[model],
            "train.iterations": arguments.steps + WARMUP,
            "train.warmup_iterations": WARMUP,
            "data.test_samples": arguments.workers,
            "strategy": arguments.strategy,
            "comm": arguments.comm,
            "timeout_s": HANG_TIMEOUT_S if text.startswith("hang") else 60.0,
            "measure.inject": injections,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--models", default="lenet5,vgg11")
    parser.add_argument("--inject", action="append", help=f"injection to try, or {EVEN}; repeatable")
    parser.add_argument("--strategy", default="all-reduce")
    parser.add_argument("--comm", default="torch")
    parser.add_argument("--steps", type=int, default=60, help="timed steps of a run")
    parser.add_argument("--worker-batch-size", type=int, default=0, help="0: depends on the model")
    parser.add_argument("--stay", action="store_true", help="do not move workers between cores")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time limit for all cases together")
    arguments = parser.parse_args()
    cases = [Case(model, text) for model in arguments.models.split(",") for text in arguments.inject or INJECTIONS]
    started = time.perf_counter()
    for case in cases:  # every mistake before the first run
        recipe = recipe_of(arguments, case.model, case.text)
        preflight(recipe, [make_entry(arguments.strategy, recipe)])
    print(f"{arguments.workers} workers, {arguments.strategy} on comm {arguments.comm}, {arguments.steps} timed steps")
    samples = arguments.worker_batch_size or ", ".join(f"{count} ({model})" for model, count in BATCHES.items())
    turns = "left alone" if arguments.stay else "in turns"
    print(f"{samples} samples per worker, {len(os.sched_getaffinity(0))} cores, {turns}\n")
    print("| model | injected | right | size found / injected: median (all) |\n| :--- | :--- | ---: | ---: |")
    for index, case in enumerate(cases):
        recipe = recipe_of(arguments, case.model, case.text)
        entry = make_entry(arguments.strategy, recipe)
        begin = time.perf_counter()
        share_s = (arguments.seconds - (begin - started)) / (len(cases) - index)
        moving = contextlib.nullcontext() if arguments.stay else taking_turns(TURN_S[case.model])
        with LocalPool(entry.num_processes) as launcher, moving:
            while case.tries < arguments.tries and (case.tries == 0 or time.perf_counter() - begin < share_s):
                attempt(case, launcher, recipe, entry)
        print(case.row(), flush=True)
    for case in cases:
        for said in case.wrong:
            print(f"wrong: {case.model}, {case.text}: {said}")


if __name__ == "__main__":
    main()
