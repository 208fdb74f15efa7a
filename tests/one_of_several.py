"""One process of a task on several: a node started by hand with its workers, or a worker under torchrun.

Prints one JSON object: the results of two tasks, or the error.
"""

from __future__ import annotations

import json
import os
import sys

import jobs
from helpers import ignore_event
from paceline.errors import PacelineError
from paceline.launch.base import LaunchRequest, Task, WorkerPool
from paceline.launch.registry import choose_launcher


def main(kind: str, *words: str) -> None:
    try:
        with _open(kind, *words) as launcher:
            note, world_size = words[-1], int(words[-2])
            runs = []
            for num_workers in (world_size, world_size - 1):
                task = Task(
                    jobs.place_of,
                    {"note": note},
                    num_workers=num_workers,
                    timeout_s=float(os.environ.get("TIMEOUT_S", 20.0)),
                )
                runs.append(launcher.run(task, ignore_event))
            print(json.dumps({"is_main": launcher.is_main, "runs": runs}))
    except PacelineError as error:
        print(json.dumps({"error": str(error), "kind": type(error).__name__}))


def _open(kind: str, *words: str) -> WorkerPool:
    if kind == "torchrun":
        return choose_launcher(LaunchRequest()).open(int(words[0]))
    node_rank, port, *token, world_size, _ = words
    request = LaunchRequest(num_nodes=2, node_rank=int(node_rank), master_port=int(port), token_file="".join(token))
    return choose_launcher(request).open(int(world_size))


if __name__ == "__main__":
    main(*sys.argv[1:])
