"""Invented sweeps for tests of their pages and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import report_samples as samples
from paceline.recipe import Recipe
from paceline.results import MemoryUse, Row, changed, convert, encode
from paceline.results.study import SweepResult
from paceline.study.run_results import combine
from paceline.study.sweep_axes import choice_label

RECIPE = Recipe(name="sample", description="Made up").replace({"train.epochs": 3, "strategy": "overlap"})


def row(point: dict[str, Any], remedy: str = "", *, iteration_s: float = 0.1, accuracy: float = 0.8) -> Row:
    label = ", ".join(part for part in (choice_label(point), remedy) if part)
    result = combine([samples.result("overlap", iteration_s)])
    batch_size = int(point.get("train.batch_size", 100))
    return changed(
        result,
        label=label,
        point=point,
        remedy=remedy,
        batch_size=batch_size,
        samples_per_s=batch_size / iteration_s,
        final=changed(result.final, test_accuracy=accuracy),
        memory=MemoryUse(predicted={"worker_bytes": 310_000_000}, peak_rss_bytes=300_000_000),
    )


def study(rows: list[Row], **changes: Any) -> SweepResult:
    keys = list(rows[0].point or {})
    axes = [{"key": key, "values": list(dict.fromkeys(one["point"][key] for one in rows))} for key in keys]
    values = {
        "schema": 1,
        "kind": "study",
        "study": "sweep",
        "name": "sample",
        "started": "2026-01-31T12:00:00+0000",
        "status": "done",
        "recipe": RECIPE.to_dict(),
        "vary": axes,
        "remedies": list(dict.fromkeys(one["remedy"] for one in rows if one["remedy"])),
        "repeats": 1,
        "environment": samples.ENVIRONMENT,
        "num_points": len(rows),
        "failures": [],
        **changes,
    }
    return changed(convert(values, SweepResult), results=rows)


def batches(**changes: Any) -> SweepResult:
    """A sweep of batch sizes with falling accuracy, some of which a remedy recovers."""
    rows = []
    for number, size in enumerate((32, 128, 512)):
        point = {"train.batch_size": size}
        rows.append(row(point, iteration_s=0.1 * (number + 1), accuracy=0.9 - 0.1 * number))
        rows.append(row(point, "linear", iteration_s=0.1 * (number + 1), accuracy=0.9 - 0.02 * number))
    return study(rows, **changes)


def grid(**changes: Any) -> SweepResult:
    rows = [
        row({"train.batch_size": size, "strategy.bucket_mb": bucket}, iteration_s=0.01 * size / bucket)
        for size in (32, 64)
        for bucket in (1, 5, 25)
    ]
    return study(rows, **changes)


def write(folder: Path, value: SweepResult) -> Path:
    folder.mkdir(parents=True)
    (folder / "study.json").write_bytes(encode(value))
    return folder
