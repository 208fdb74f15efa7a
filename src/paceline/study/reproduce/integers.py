"""The model of an experiment in integers: every stage of its quantization as a row of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.study.quantize import Request, find_source, load_source, quantize
from paceline.study.quantize.stages import ACTIVATIONS, Listener
from paceline.study.reproduce.plan import Plan

Row = dict[str, Any]


def integer_rows(plan: Plan, folder: Path) -> list[Row]:
    """Quantize the experiment's first run, in a study of its own inside the folder; a row for every stage."""
    part = plan.parts[0]
    (run,) = (path.parent for path in sorted((folder / "runs").glob("*-1/summary.json"))[:1])
    loaded = load_source(find_source(str(run), folder, {}))
    study, _ = quantize(loaded, Request(), out=folder / "quantize", listener=Listener())
    return [_row(plan, stage, study, part.total_steps) for stage in study["stages"]]


def _row(plan: Plan, stage: Row, study: Row, steps: int) -> Row:
    key = stage_key(stage, study["chosen_calibration"])
    accuracy = {"value": stage["test_accuracy"], "is_extrapolated": False}
    return {
        "key": key,
        "label": key,
        "point": {},
        "is_first_point": True,
        "workers": 1,
        "steps": steps,
        "figures": {"test_accuracy": accuracy} if plan.compares_accuracy else {},
        "load": [],
    }


def stage_key(stage: Row, chosen: str) -> str:
    """The chosen calibration stands for all of them; the others say which they are."""
    if stage["stage"] != ACTIVATIONS or stage["calibration"] == chosen:
        return str(stage["stage"])
    return f"{stage['stage']}:{stage['calibration']}"
