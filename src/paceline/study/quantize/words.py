"""A quantization in words and cells, the same for the terminal and the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.study.quantize.stages import FLOAT, INTEGER, TUNED

Study = Mapping[str, Any]
Row = Mapping[str, Any]


def row_of(study: Study, stage: str) -> Row | None:
    return next((row for row in study["stages"] if row["stage"] == stage), None)


def last_integer(study: Study) -> Row | None:
    """The row that everything was for: fully integer, fine-tuned where that was asked for."""
    return row_of(study, TUNED) or row_of(study, INTEGER)


def points(change: float | None) -> str:
    """A change in points of accuracy."""
    return "\N{EN DASH}" if change is None else f"{change:+.2f}"


def percents(share: float | None, digits: int = 2) -> str:
    return "\N{EN DASH}" if share is None else f"{100 * share:.{digits}f} %"


def headline(study: Study) -> str:
    """The whole thing in one sentence, without its full stop."""
    first, last = row_of(study, FLOAT), last_integer(study)
    assert first is not None
    if last is None:
        left = ", ".join(f"{op['what']} ({op['name']})" for op in study["left_in_float"])
        return f"Not fully integer: {left} stay in float"
    sizes = study["sizes"]
    weight = f"{100 * sizes['int8_bytes'] / sizes['float_bytes']:.0f} % of the bytes"
    if last["test_accuracy"] is None:
        losses = f"{last['test_loss']:.4g} (float: {first['test_loss']:.4g})"
        return f"In integers alone the test loss is {losses}, with {weight}"
    return (
        f"In integers alone {percents(last['test_accuracy'])} of the test set are right (float: "
        f"{percents(first['test_accuracy'])}, {points(last['change_points'])} points), with {weight}"
    )


def calibration_words(study: Study) -> str:
    """Which method was taken, and why."""
    chosen, distances = study["chosen_calibration"], study["distances"]
    if len(distances) == 1:
        return f"Activations were calibrated by {chosen} on {study['num_calibration_samples']} training samples."
    return (
        f"Of {', '.join(distances)}, {chosen} moved the scores of training images least, and was taken; the test set "
        f"had no say. Calibrated on {study['num_calibration_samples']} training samples."
    )


def deployed_lines(study: Study) -> list[str]:
    """What ONNX Runtime makes of it."""
    found = study["deployed"]
    if found is None:
        return [f"No ONNX files: {study['deployed_reason']}."]
    lines = [
        f"ONNX files: int8 {found['int8_bytes'] / 1e6:.3g} MB, {percents(found['size_ratio'], 1)} of fp32's "
        f"{found['fp32_bytes'] / 1e6:.3g} MB."
    ]
    if found["agreement_with_integer"] is not None:
        lines.append(
            f"ONNX Runtime int8 answers as the integer executor does on {percents(found['agreement_with_integer'])} of "
            "the test set."
        )
    tables = latency_tables(study)
    for one in found["speedups"]:
        words = ", ".join(f"{row['runner']} {1e3 * row['p50_s']:.3g} ms" for row in tables[one["batch"]])
        low, high = one["interval95"]
        lines.append(
            f"Batch of {one['batch']}: {words}; int8 is {one['ratio']:.2f} times as fast as ONNX Runtime's fp32 "
            f"({low:.2f} to {high:.2f})."
        )
    return lines


def latency_tables(study: Study) -> dict[int, list[Row]]:
    """Rows by the size of the batch."""
    found: dict[int, list[Row]] = {}
    for row in (study["deployed"] or {"latency": []})["latency"]:
        found.setdefault(row["batch"], []).append(row)
    return found


def tuned_line(study: Study) -> str:
    """What fine-tuning was; empty where there was none."""
    said = study.get("finetuned")
    if not said:
        return ""
    return (
        f"Fine-tuned for {said['steps']} steps under {said['strategy']} on {said['workers']} workers at learning rate "
        f"{said['lr']:g}: training loss {said['first_loss']:.3g} to {said['last_loss']:.3g}; ranges as before."
    )
