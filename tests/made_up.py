"""Invented worker results, and a launcher that returns them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from paceline.launch.base import Task, WorkerPool
from paceline.results.commands import Bench, CollectiveResult
from paceline.results.study import Environment
from paceline.study.base import Launch, StudyListener
from paceline.study.bench import BenchRequest, collective_results


def made_up_worker(rank: int, iteration_s: list[float], **changes: Any) -> dict[str, Any]:
    steps = len(iteration_s)
    worker = {
        "rank": rank,
        "steps_per_epoch": 2,
        "iteration_s": iteration_s,
        "data_s": [0.1] * steps,
        "loss": [float(steps - step) for step in range(steps)],
        "num_right": [1] * steps,
        "num_answers": [2] * steps,
        "num_samples": [2] * steps,
        "evaluations": [],
        "setup_s": 0.5,
        "train_s": sum(iteration_s),
        "evaluation_s": 0.25,
        "sent_bytes": 100 + rank,
        "received_bytes": 100 - rank,
        "num_operations": 7,
        "train_loss": 1.0 + rank,
        "train_accuracy": 0.5,
        "test_loss": 2.0,
        "test_accuracy": 0.25,
        "test_loss_before_finish": 2.0,
        "test_accuracy_before_finish": 0.25,
        "replica_drift": 0.0,
        "parameter_digest": "00ff",
        "strategy_metrics": {},
        "num_parameters": 10,
    }
    return {**worker, **changes}


class MadeUpLauncher(WorkerPool):
    """Returns invented workers for each task, from a function that may also raise."""

    can_go_on = True

    def __init__(self, answer: Callable[[Task, int], list[dict[str, Any]]] | None = None) -> None:
        self.tasks: list[Task] = []
        self._answer = answer or (lambda task, _: [made_up_worker(r, [1.0, 1.0, 1.0]) for r in range(task.num_workers)])

    def run(self, task: Task, on_event: Callable[[dict[str, Any]], None]) -> list[Any]:
        self.tasks.append(task)
        on_event({"kind": "progress", "step": 1})
        return self._answer(task, len(self.tasks) - 1)

    def close(self) -> None:
        return None


def launching(launcher: WorkerPool) -> Launch:
    """Return a Launch that yields the same pool for every request."""
    return lambda num_processes, cluster: nullcontext(launcher)  # noqa: ARG005


class Silent(StudyListener):
    """Records the callbacks of a study."""

    def __init__(self) -> None:
        self.started_rows: list[tuple[str, int]] = []
        self.done_rows: list[tuple[str, int]] = []
        self.planned_rows: list[list[tuple[str, int]]] = []  # of every stage
        self.warnings: list[str] = []
        self.num_stages_done = 0

    def planned(self, cells: Any) -> None:
        self.planned_rows.append([(cell.progress_entry.label, cell.repeat) for cell in cells])

    def stage_done(self, result: Any) -> None:  # noqa: ARG002
        self.num_stages_done += 1

    def started(self, entry: Any, repeat: int) -> None:
        self.started_rows.append((entry.label, repeat))

    def event(self, entry: Any, event: Any) -> None:
        if event["kind"] == "warning":
            self.warnings.append(f"{entry.label}: {event['text']}")

    def done(self, entry: Any, repeat: int, result: Any) -> None:  # noqa: ARG002
        self.done_rows.append((entry.label, repeat))


def _trial(comm: str, times_s: list[float], is_right: bool | None = True, result: str = "private") -> dict[str, Any]:
    op = "all_reduce" if comm else "copy"
    return {"op": op, "comm": comm, "result": result, "times_s": times_s, "is_right": is_right}


def made_up_bench_rows(**changes: Any) -> list[CollectiveResult]:
    """Results of two comms at one size; worker 1 reports a wrong result of the first."""
    plan = BenchRequest(
        **{
            "ops": ("all_reduce",),
            "comms": ("first.py:Fast", "torch"),
            "sizes": (4096,),
            "workers": 2,
            "iterations": 2,
            **changes,
        }
    )
    workers = [
        [_trial("", [1.0, 1.0]), _trial("first.py:Fast", [1.0, 5.0]), _trial("torch", [8.0, 8.0])],
        [_trial("", [2.0, 0.5]), _trial("first.py:Fast", [4.0, 2.0], is_right=False), _trial("torch", [2.0, 10.0])],
    ]
    return collective_results(plan, "all_reduce", 4096, workers)


def made_up_bench(**changes: Any) -> Bench:
    """The result of a bench."""
    return Bench(
        schema=1,
        started="2024-05-06T07:08:09+0000",
        results=made_up_bench_rows(**changes),
        copy_limit_bytes_per_s=2048.0,
        reference="torch",
        unavailable={"elsewhere": "it is <far> away"},
        environment=Environment(processor="made up"),
    )
