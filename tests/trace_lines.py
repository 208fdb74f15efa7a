"""Worker files of an invented run: steps of 10 ms, each with a ring message and an all-reduce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.recipe import Recipe
from paceline.results import SCHEMA

Line = dict[str, Any]

STEP_S = 0.010


def step_lines(rank: int, world_size: int, step: int, *, late_s: float = 0.0) -> list[Line]:
    """One step of one worker: a message to the next rank, then an all-reduce that ends on all ranks together.

    Rank r enters the all-reduce `late_s * r` later than rank 0.
    """
    begin = step * STEP_S
    sent = begin + 0.004
    came = begin + 0.005 + late_s * rank
    done = begin + 0.006 + late_s * (world_size - 1)
    message = {"kind": "op", "step": step, "number": step, "bytes": 400, "tag": 7, "medium": "network"}
    following, before = (rank + 1) % world_size, (rank - 1) % world_size
    collective = {"op": "all_reduce", "number": step, "peer": None, "tag": 0}
    return [
        {"kind": "span", "step": step, "phase": "data", "begin_s": begin, "end_s": begin + 0.001},
        {"kind": "span", "step": step, "phase": "forward", "begin_s": begin + 0.001, "end_s": begin + 0.002},
        {"kind": "span", "step": step, "phase": "backward", "begin_s": begin + 0.002, "end_s": begin + 0.004},
        {**message, "op": "send", "peer": following, "begin_s": sent, "end_s": sent + 0.0005},
        {**message, "op": "recv", "peer": before, "begin_s": sent + 0.0001, "end_s": sent + 0.0006},
        {"kind": "op", "step": step, "bytes": 4000, "begin_s": came, "end_s": done, "medium": "network", **collective},
        {"kind": "blocked", "step": step, "begin_s": came, "end_s": done, **collective},
        {"kind": "span", "step": step, "phase": "optimizer", "begin_s": done, "end_s": begin + 0.009},
        {
            "kind": "step", "step": step, "begin_s": begin, "iteration_s": 0.0095, "data_s": 0.001, "loss": 2.5,
            "num_right": 1, "num_answers": 8, "num_samples": 8, "sent_bytes": 4400 * (step + 1),
        },
    ]  # fmt: skip


def sample_line(time_s: float) -> Line:
    sent = round(1e6 * time_s)
    return {
        "kind": "sample", "time_s": time_s, "cpu_percent": 50.0, "rss_bytes": 1000, "peak_rss_bytes": 2000,
        "disk_read_bytes": 0, "disk_written_bytes": 0, "network_sent_bytes": sent, "network_received_bytes": sent,
        "gpu_percent": None, "gpu_memory_bytes": None,
    }  # fmt: skip


def worker_lines(rank: int, world_size: int, num_steps: int, *, late_s: float = 0.0) -> list[Line]:
    head = {"kind": "head", "schema": 1, "rank": rank, "host": "h", "pid": 100 + rank}
    samples = [sample_line(0.2 * index) for index in range(int(num_steps * STEP_S / 0.2) + 2)]
    steps = [line for step in range(num_steps) for line in step_lines(rank, world_size, step, late_s=late_s)]
    return [{**head, "clock_offset_s": 0.0, "clock_error_s": 1e-5}, *steps, *samples, {"kind": "end", "dropped": 0}]


def write_lines(folder: Path, lines: dict[int, list[Line]]) -> Path:
    """Write the folder of a run with these worker lines."""
    (folder / "workers").mkdir(parents=True)
    for rank, written in lines.items():
        text = "".join(json.dumps(line) + "\n" for line in written)
        (folder / "workers" / f"{rank}.jsonl").write_text(text)
    (folder / "recipe.toml").write_text(Recipe().to_toml())
    summary = {"schema": SCHEMA, "kind": "run", "status": "done", "name": "made-up", "started": ""}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder
