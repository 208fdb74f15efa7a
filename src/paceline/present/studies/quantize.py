"""The page of a quantization to int8: accuracy and loss by stage, and charts of weights and activations.

The stages lead from the float model to inference with integers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from paceline.present import conditions
from paceline.present.charts.quantize import change_points, latency_tables
from paceline.present.charts.registry import make_section
from paceline.present.comparison_page import frame, notices, study_of
from paceline.present.numbers import DASH, TIMES, accuracy, amount, join_words, number, significant
from paceline.present.page_parts import (
    Column,
    Facts,
    Finding,
    Page,
    Presenter,
    RunSummary,
    Table,
    Tile,
    Visibility,
)
from paceline.present.pages import PageContent
from paceline.recipe import Recipe
from paceline.results.quantize import FLOAT, INTEGER, TUNED, Quantization, Stage
from paceline.runs import Stored

STAGES_NOTE = (
    "Each stage adds to the previous ones. Every calibration method is tried, and later stages use the chosen one. All "
    "stages up to the biases simulate integers in float, with values rounded as integers would be. Fully integer means "
    "int8 between operations, int32 inside them, and every rescaling as a multiplier and a shift."
)


class QuantizePresenter(Presenter):
    name: ClassVar[str] = "quantize"
    shows_empty: ClassVar[bool] = True

    def page(self, material: PageContent) -> Page:
        study = study_of(material, Quantization)
        recipe = Recipe.from_dict(study.recipe)
        title = f"{recipe.model.name} on {recipe.data.name} in int8"
        return Page(
            **{**frame(material), "kind": "Paceline quantization", "title": title},
            findings=[*notices(material), *findings(study)],
            tiles=tiles(study),
            tables=[stage_table(study.stages)],
            tables_title="Stages",
            facts=[
                Facts(_conditions(study, recipe), "Conditions", "conditions", Visibility.HTML),
                Facts(
                    conditions.machine_facts(material.environment), "Machine and versions", "machine", Visibility.HTML
                ),
            ],
            make_sections=lambda: [make_section("quantize", "Weights, activations and answers", study)],
        )

    def summary(self, stored: Stored) -> RunSummary:
        """Summarise a quantization by its last integer-only stage, or else by its last stage.

        The summary has the stage's name and test accuracy, but no step time.
        """
        study = stored.content
        if not isinstance(study, Quantization) or not study.stages:
            return super().summary(stored)
        stage = last_integer(study) or study.stages[-1]
        return RunSummary(strategy=stage.name, test_accuracy=stage.test_accuracy)


def stage_table(stages: Sequence[Stage]) -> Table[Stage]:
    columns: list[Column[Stage]] = [
        Column(title="Stage", short="stage", text=lambda row: row.name, is_number=False),
        Column(
            title="Calibration",
            short="calibration",
            text=lambda row: row.calibration or DASH,
            is_number=False,
            importance=40,
        ),
        Column(
            title="Test loss",
            short="test loss",
            text=lambda row: number(row.test_loss),
            importance=50,
            places=Visibility.TERMINAL | Visibility.NOTEBOOK,
        ),
        Column(title="Test accuracy", short="test", text=lambda row: accuracy(row.test_accuracy)),
        Column(
            title="Points against float",
            short="points",
            text=lambda row: change_points(row.change_points),
            help="change of accuracy against the float model, in percentage points",
        ),
        Column(
            title="Answers as float",
            short="as float",
            text=lambda row: accuracy(row.agreement),
            help="share of test samples with the same prediction as the float model",
        ),
        Column(
            title="Test loss", text=lambda row: significant(row.test_loss), places=Visibility.MARKDOWN | Visibility.HTML
        ),
    ]
    return Table(id="stages", columns=columns, rows=stages)


def last_integer(study: Quantization) -> Stage | None:
    """Return the last integer-only stage: the fine-tuned one, or else the one before fine-tuning.

    Returns None if no stage is integer-only.
    """
    return _stage(study, TUNED) or _stage(study, INTEGER)


def findings(study: Quantization) -> list[Finding]:
    return [
        headline(study),
        *_left_in_float(study),
        *_noise(study),
        _calibration(study),
        *_finetuned(study),
        *_deployed(study),
        Finding(STAGES_NOTE, "Stages", "detail"),
    ]


def headline(study: Quantization) -> Finding:
    first, last = _stage(study, FLOAT), last_integer(study)
    assert first is not None
    if last is None:
        left = join_words([f"{op.what} ({op.name})" for op in study.left_in_float])
        return Finding(f"Not fully integer: {left} stay in float.", kind="headline")
    size = f"{100 * study.sizes.int8_bytes / study.sizes.float_bytes:.0f} % of the bytes"
    if last.test_accuracy is None:
        losses = f"test loss {number(last.test_loss)} (float: {number(first.test_loss)})"
        return Finding(f"Integer-only: {losses}, with {size}.", kind="headline")
    change = f"{accuracy(first.test_accuracy)}, {change_points(last.change_points)} points"
    return Finding(
        f"Integer-only: test accuracy {accuracy(last.test_accuracy)} (float: {change}), with {size}.",
        kind="headline",
    )


def tiles(study: Quantization) -> list[Tile]:
    found, last, sizes = [], last_integer(study), study.sizes
    if last is not None and last.test_accuracy is not None:
        found.append(Tile("Integer-only accuracy", accuracy(last.test_accuracy), last.name))
        found.append(Tile("Against float", f"{change_points(last.change_points)} points", "of test accuracy"))
    share = f"{100 * sizes.int8_bytes / sizes.float_bytes:.0f} %"
    found.append(Tile("Weights", amount(sizes.int8_bytes), f"{share} of float's {amount(sizes.float_bytes)}"))
    for one in study.deployed.speedups if study.deployed is not None else ():
        note = f"ONNX Runtime int8 over its fp32, batch of {one.batch}"
        found.append(Tile("Speed-up", f"{one.ratio:.2f} {TIMES}", note))
    return found


def _stage(study: Quantization, stage: str) -> Stage | None:
    return next((row for row in study.stages if row.stage == stage), None)


def _left_in_float(study: Quantization) -> list[Finding]:
    if not study.left_in_float:
        return []
    left = join_words([f"{op.what} ({op.name})" for op in study.left_in_float])
    return [Finding(f"Left in float: {left}. They have no integer form.", "Left in float", "problem")]


def _noise(study: Quantization) -> list[Finding]:
    known = [(row.snr_db, row.tensor) for row in study.activations if row.snr_db is not None]
    if not known:
        return []
    least, tensor = min(known)
    return [Finding(f"Most quantization noise: {tensor}, signal-to-noise ratio {least:.1f} dB.", "Noise")]


def _calibration(study: Quantization) -> Finding:
    chosen, samples = study.chosen_calibration, f"{study.num_calibration_samples} training samples"
    if len(study.distances) == 1:
        return Finding(f"Ranges of activations: method {chosen}, calibrated on {samples}.", "Calibration")
    return Finding(
        f"Ranges of activations: {chosen}, which changed the outputs least among {join_words(list(study.distances))}. "
        f"All were calibrated on {samples}; the test set was not used.",
        "Calibration",
    )


def _finetuned(study: Quantization) -> list[Finding]:
    tuning = study.finetuned
    if tuning is None:
        return []
    return [
        Finding(
            f"Fine-tuned for {tuning.steps} steps under {tuning.strategy} on {tuning.workers} workers at learning rate "
            f"{tuning.lr:g}: training loss from {number(tuning.first_loss, 3)} to {number(tuning.last_loss, 3)}; "
            "ranges of activations unchanged.",
            "Fine-tuning",
        )
    ]


def _deployed(study: Quantization) -> list[Finding]:
    """Return findings on the size of the ONNX files, and on their predictions and speed in ONNX Runtime."""
    deployed, title = study.deployed, "Deployment"
    if deployed is None:
        return [Finding(f"No ONNX files: {study.deployed_reason}.", title)]
    lines = [
        f"ONNX files: int8 {deployed.int8_bytes / 1e6:.3g} MB, {100 * deployed.size_ratio:.1f} % of the "
        f"{deployed.fp32_bytes / 1e6:.3g} MB of fp32."
    ]
    if deployed.agreement_with_integer is not None:
        lines.append(
            "ONNX Runtime int8 and the integer executor predict the same class for "
            f"{accuracy(deployed.agreement_with_integer)} of the test set."
        )
    tables = latency_tables(study)
    for one in deployed.speedups:
        words = ", ".join(f"{row.runner} {1e3 * row.p50_s:.3g} ms" for row in tables[one.batch])
        low, high = one.interval95
        lines.append(
            f"Batch of {one.batch}: {words}; int8 is {one.ratio:.2f} times as fast as ONNX Runtime's fp32 "
            f"(95 % interval {low:.2f} to {high:.2f})."
        )
    return [Finding(line, title) for line in lines]


def _conditions(study: Quantization, recipe: Recipe) -> list[tuple[str, str]]:
    request = study.request
    return [
        ("Model", f"{recipe.model.name}, {study.num_parameters:,} parameters"),
        ("Source", study.source),
        ("Data", recipe.data.name),
        ("Test samples", f"{study.num_test_samples:,}"),
        ("Calibration samples", f"{study.num_calibration_samples:,}, of the training data"),
        ("Calibration methods", ", ".join(request.calibrations)),
        ("Activations", "int8, symmetric" if request.symmetric else "int8, asymmetric"),
        ("Weights", f"int8, symmetric, {request.weights}"),
        ("Biases", "int32, with the scale of the input times the scale of the weights"),
    ]
