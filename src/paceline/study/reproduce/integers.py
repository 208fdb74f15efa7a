"""The model of an experiment in integers: every stage of its quantization as a row of ours."""

from __future__ import annotations

from pathlib import Path

from paceline.results.quantize import ACTIVATIONS, Stage
from paceline.results.study import Figure, OurRow
from paceline.study.quantize import Request, find_source, load_source, quantize
from paceline.study.quantize.stages import Listener
from paceline.study.reproduce.plan import Plan


def integer_rows(plan: Plan, folder: Path, run: Path) -> list[OurRow]:
    """Quantize the model of a run, in a study of its own inside the folder; a row for every stage."""
    loaded = load_source(find_source(str(run), folder, {}))
    study, _ = quantize(loaded, Request(), out=folder / "quantize", listener=Listener())
    return [_row(plan, stage_key(stage, study.chosen_calibration), stage) for stage in study.stages]


def _row(plan: Plan, key: str, stage: Stage) -> OurRow:
    accuracy = Figure(value=stage.test_accuracy, is_extrapolated=False)
    return OurRow(
        key=key,
        label=key,
        point={},
        is_first_point=True,
        workers=1,
        steps=plan.parts[0].total_steps,
        figures={"test_accuracy": accuracy} if plan.compares_accuracy else {},
        load=[],
    )


def stage_key(stage: Stage, chosen: str) -> str:
    """The chosen calibration stands for all of them; the others say which they are."""
    if stage.stage != ACTIVATIONS or stage.calibration == chosen:
        return stage.stage
    return f"{stage.stage}:{stage.calibration}"
