"""The page of a quantization: the verdict in words, every stage in a table, charts of what rounding did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from paceline.report import facts
from paceline.report.chart import Chart, compact
from paceline.report.collect import Material
from paceline.report.html import packed_plotly, policy_for, template_file, templates
from paceline.report.numbers import DASH, accuracy, amount, significant
from paceline.report.points import Point
from paceline.report.quantize_charts import make_charts
from paceline.report.sections import without_holes
from paceline.report.table import Column, markdown_lines
from paceline.report.tiles import Tile
from paceline.study.quantize.words import (
    calibration_words,
    deployed_lines,
    headline,
    last_integer,
    points,
    tuned_line,
)

Study = Mapping[str, Any]

COLUMNS = (
    Column("", "Stage", lambda r: str(r["name"]), is_number=False),
    Column("", "Calibration", lambda r: r["calibration"] or DASH, is_number=False),
    Column("", "Test accuracy", lambda r: accuracy(r["test_accuracy"])),
    Column("", "Points against float", lambda r: points(r["change_points"])),
    Column("", "Answers as float", lambda r: accuracy(r["agreement"])),
    Column("", "Test loss", lambda r: significant(r["test_loss"])),
)


def is_quantize(material: Material) -> bool:
    """Whether a page is of a quantization; beside others there is nothing to compare it by."""
    return len(material.sources) == 1 and material.sources[0].study == "quantize"


def charts_of(material: Material) -> list[Chart]:
    return without_holes(make_charts(material.sources[0].stored))


def markdown(material: Material) -> str:
    return markdown_lines(list(COLUMNS), material.sources[0].stored["stages"])


def render(material: Material) -> str:
    """The page as text."""
    source = material.sources[0]
    study, recipe = source.stored, source.recipe
    charts = charts_of(material)
    plotly, plotly_script = packed_plotly()
    script = Markup(template_file("report.js"))
    return (
        templates()
        .get_template("quantize.html")
        .render(
            title=f"{recipe.model.name} on {recipe.data.name} in int8",
            started=source.started,
            notices=material.left_out,
            headline=headline(study),
            tiles=tiles(study),
            points=_points(study),
            charts=charts,
            chart_specs=compact([chart.spec for chart in charts]),
            columns=COLUMNS,
            rows=study["stages"],
            conditions=_conditions(study),
            machine=facts.machine(source.environment),
            recipe=recipe.to_toml(),
            style=Markup(template_file("report.css")),
            plotly=plotly,
            script=script,
            policy=policy_for([plotly_script, script]),
        )
    )


def tiles(study: Study) -> list[Tile]:
    """What a reader takes away."""
    found, last, sizes = [], last_integer(study), study["sizes"]
    if last is not None and last["test_accuracy"] is not None:
        found.append(Tile("Accuracy in integers", accuracy(last["test_accuracy"]), str(last["name"])))
        found.append(Tile("Against float", f"{points(last['change_points'])} points", "of test accuracy"))
    share = f"{100 * sizes['int8_bytes'] / sizes['float_bytes']:.0f} %"
    found.append(Tile("Weights", amount(sizes["int8_bytes"]), f"{share} of float's {amount(sizes['float_bytes'])}"))
    for one in (study["deployed"] or {"speedups": []})["speedups"]:
        note = f"ONNX Runtime int8 over its fp32, batch of {one['batch']}"
        found.append(Tile("Speed-up", f"{one['ratio']:.2f} \N{MULTIPLICATION SIGN}", note))
    return found


def _points(study: Study) -> list[Point]:
    found = [Point("Calibration", calibration_words(study))]
    if study["left_in_float"]:
        left = ", ".join(f"{op['what']} ({op['name']})" for op in study["left_in_float"])
        found.append(Point("Left in float", f"{left}: there is no integer form.", is_problem=True))
    found += [Point("Fine-tuning", line)] if (line := tuned_line(study)) else []
    return [*found, Point("Deployed", " ".join(deployed_lines(study)))]


def _conditions(study: Study) -> list[facts.Fact]:
    request, recipe = study["request"], study["recipe"]
    return [
        ("Model", f"{recipe['model']['name']}, {study['num_parameters']:,} parameters"),
        ("From", str(study["source"])),
        ("Data", str(recipe["data"]["name"])),
        ("Test samples", f"{study['num_test_samples']:,}"),
        ("Calibration samples", f"{study['num_calibration_samples']:,}, of the training data"),
        ("Calibrations tried", ", ".join(request["calibrations"])),
        ("Activations", "int8, symmetric" if request["symmetric"] else "int8, asymmetric"),
        ("Weights", f"int8, symmetric, {request['weights']}"),
        ("Biases", "int32, in the scale of the input times that of the weights"),
    ]
