"""Invented measurements for report tests, in the form that workers return."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.present import collect, page_of
from paceline.present.html import write_page
from paceline.recipe import Recipe
from paceline.results import CompareResult, RunRecord, RunResult, StudyResult, changed, convert, encode
from paceline.results.worker_report import WorkerReport
from paceline.study.entries import ONE_WORKER, Entry
from paceline.study.run_results import combine, compare_rows, run_result

STEPS = 12
ENVIRONMENT = {
    "paceline": "0.1.0",
    "python": "3.11.7",
    "torch": "2.13.0",
    "system": "Linux 6.1",
    "machine": "x86_64",
    "processor": "Made-up CPU",
    "num_cores": 8,
    "memory_bytes": 16 * 2**30,
    "load_average": [0.1, 0.1, 0.1],
    "gpus": [],
    "command": ["paceline", "compare"],
}


def recipe(**changes: Any) -> Recipe:
    return Recipe(name="sample", description="Made up").replace({"train.epochs": 3, **changes})


def result(
    label: str,
    iteration_s: float,
    *,
    has_accuracy: bool = True,
    guarantee: str = "EXACT",
    steps: int = STEPS,
    pace: float = 1.0,
    **changes: Any,
) -> RunResult:
    """One run; step times vary a little so that percentiles differ. `pace` scales the speed of learning."""
    num_workers = 1 if label == ONE_WORKER else 4
    workers = []
    for rank in range(num_workers):
        times = [iteration_s * (1 + 0.01 * (step % 3)) for step in range(steps)]
        score = 0.8 if has_accuracy else None
        answers = 25 if has_accuracy else 0
        workers.append(
            {
                "rank": rank,
                "iteration_s": times,
                "data_s": [0.0001] * steps,
                "loss": [2.0 / (pace * step * STEPS / steps + 1) for step in range(steps)],
                "num_right": [min(answers, round(pace * 2 * step * STEPS / steps)) for step in range(steps)],
                "num_answers": [answers] * steps,
                "num_samples": [25] * steps,
                "steps_per_epoch": 4,
                "train_s": sum(times),
                "evaluation_s": 0.01,
                "train_loss": 0.17,
                "train_accuracy": score,
                "test_loss": 0.5,
                "test_accuracy": score,
                "test_loss_before_finish": 0.5,
                "test_accuracy_before_finish": score,
                "replica_drift": 0.4 if guarantee == "NONE" else 0.0,
                "num_parameters": 61706,
                "sent_bytes": 1_000_000 * (num_workers > 1),
                "received_bytes": 1_000_000 * (num_workers > 1),
                "num_operations": steps,
                "strategy_metrics": {},
                "parameter_digest": f"{rank if guarantee == 'NONE' else 0:x}" * 64,
                "evaluations": [{"step": 3, "epoch": 0, "train_s": 0.1, "loss": 0.6, "accuracy": score}],
            }
        )
    entry = Entry(label, label, label, {}, "fp32", guarantee, num_workers)
    return changed(run_result(recipe(), entry, [convert(one, WorkerReport) for one in workers], total_s=1.0), **changes)


def study_of(rows: list[list[RunResult]], **changes: Any) -> CompareResult:
    """A stored study: each row is the repeats of one strategy."""
    results = compare_rows([combine(row) for row in rows])
    values = {
        "schema": 1,
        "kind": "study",
        "study": "compare",
        "name": "sample",
        "started": "2026-01-02T03:04:05+0000",
        "status": "done",
        "recipe": recipe().to_dict(),
        "environment": ENVIRONMENT,
        "repeats": len(rows[0]),
        **changes,
    }
    return changed(convert(values, CompareResult), results=results)


def usual_study(**changes: Any) -> CompareResult:
    """A study of one worker, no synchronisation and two strategies; one label contains a script."""
    times = {ONE_WORKER: 0.040, "none": 0.012, "ring": 0.015, "</script><script>alert(1)</script>": 0.030}
    rows = [
        [result(label, base * (1 + 0.01 * n), guarantee="NONE" if label == "none" else "EXACT") for n in range(3)]
        for label, base in times.items()
    ]
    return study_of(rows, **changes)


def write_study(folder: Path, study: StudyResult) -> Path:
    folder.mkdir(parents=True)
    (folder / "study.json").write_bytes(encode(study))
    return folder


def write_run(folder: Path, result: RunResult | None, *, of: Recipe | None = None, status: str = "done") -> Path:
    folder.mkdir(parents=True)
    record = RunRecord(
        schema=1, kind="run", name="sample", started="2026-01-02T03:04:05+0000", status=status, result=result
    )
    (folder / "summary.json").write_bytes(encode(record))
    (folder / "recipe.toml").write_text((of or recipe()).to_toml())
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT))
    return folder


def write_report(paths: list[Path], output: Path) -> Path:
    """Write the HTML page of stored runs and studies."""
    return write_page(page_of(collect(paths)), output)
