"""Time from a fault of a worker until the worker is named, by fault, comm and phase of the run.

`python benchmarks/detection.py [--tries 5] [--comms torch,shm] [--faults kill,stop] [--phases backward,evaluation]`

A fault is a signal that is sent to worker 1 as soon as its activity shows the phase. Prints p50, p99 and maximum of the
time from the signal until the pool raises an error, and how many errors name worker 1.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable

from paceline.errors import WorkerError
from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.recipe import Recipe
from paceline.study.entries import make_entry
from paceline.study.run import training_task
from paceline.train.context import ignore_event
from paceline.worker_activity import Snapshot

VICTIM, WORKERS = 1, 3
FAULTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
PHASES: dict[str, Callable[[Snapshot], bool]] = {
    "rendezvous": lambda at: at.stage == "rendezvous" and at.total == 0,
    "first step": lambda at: at.step == 0,
    "backward": lambda at: at.step > 5 and at.stage == "backward",
    "collective": lambda at: at.step > 5 and at.is_waiting,
    "evaluation": lambda at: at.stage == "evaluation",
    "finish": lambda at: at.stage == "finish",
}


def training(comm: str, strategy: str, timeout_s: float) -> Task:
    recipe = Recipe().replace(
        {
            "workers": WORKERS,
            "train.batch_size": 9,
            "train.iterations": 60,
            "train.eval_every": 1,
            "data.train_samples": 90,
            "timeout_s": timeout_s,
            "comm": comm,
        }
    )
    entry = make_entry(strategy, recipe)
    return training_task(entry.recipe(recipe), entry, None, checkpoint="")


def detect(pool: LocalPool, task: Task, number: int, when: Callable[[Snapshot], bool]) -> tuple[float, str]:
    """Run a task with a fault. Return the seconds until the error, and the error's text ("" without an error)."""
    sent: list[float] = []
    is_done = threading.Event()
    pool._start(task)
    victim = pool._processes[VICTIM]
    victim.activity.begin_task()

    def watch() -> None:
        while not is_done.is_set():
            if when(victim.activity.read()):
                sent.append(time.monotonic())
                os.kill(victim.popen.pid, number)
                return
            time.sleep(0.0002)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        pool.run(task, ignore_event)
        text = ""
    except WorkerError as error:
        text = str(error)
    finally:
        ended = time.monotonic()
        is_done.set()
        thread.join()
    return (ended - sent[0] if sent else float("nan")), text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--comms", default="torch,shm,hierarchical")
    parser.add_argument("--strategy", default="overlap")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--timeout", type=float, default=5.0)
    asked = parser.parse_args()
    print(f"strategy {asked.strategy}, {WORKERS} workers, --timeout {asked.timeout:g}, {asked.tries} tries each")
    for fault in asked.faults.split(","):
        for comm in asked.comms.split(","):
            task = training(comm, asked.strategy, asked.timeout)
            for phase in asked.phases.split(","):
                times, num_right = [], 0
                for _ in range(asked.tries):
                    with LocalPool(WORKERS) as pool:
                        seconds, text = detect(pool, task, FAULTS[fault], PHASES[phase])
                    times += [seconds] if text else []
                    num_right += text.startswith(f"worker {VICTIM} ")
                if not times:
                    print(f"{fault:5} {comm:13} {phase:11} no try met this phase", flush=True)
                    continue
                p99 = statistics.quantiles(times, n=100, method="inclusive")[98] if len(times) > 1 else times[0]
                print(
                    f"{fault:5} {comm:13} {phase:11} p50 {statistics.median(times):5.2f} s, p99 {p99:5.2f} s, "
                    f"max {max(times):5.2f} s, worker named in {num_right} of {len(times)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
