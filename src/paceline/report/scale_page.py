"""The page of a scaling study: the verdict in words, charts over workers, and every point in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from paceline.report import facts, findings, words
from paceline.report.chart import Chart, compact
from paceline.report.collect import Material
from paceline.report.html import packed_plotly, policy_for, template_file, templates
from paceline.report.numbers import DASH, accuracy, counted, duration, milliseconds, significant, times, whole
from paceline.report.points import Point
from paceline.report.scaling import IDEAL, labels_of, looks_of, make_charts
from paceline.report.sections import without_holes
from paceline.report.table import Column, markdown_lines
from paceline.report.tiles import Tile
from paceline.study.scaling import best_of, lines_of, modes_of, reference_of
from paceline.study.scaling_words import (
    TITLES,
    batch_words,
    beyond_lines,
    failed_lines,
    headline,
    ideal_name,
    paying_lines,
    refused_lines,
)

Row = Mapping[str, Any]
Results = list[dict[str, Any]]


def is_scale(material: Material) -> bool:
    """Whether a page is of one scaling study alone; beside others its points are rows like theirs."""
    return len(material.sources) == 1 and material.sources[0].study == "scale"


def charts_of(material: Material) -> list[Chart]:
    return without_holes(make_charts(material.sources[0].results))


def markdown(material: Material) -> str:
    """The points of every mode in Markdown."""
    results = material.sources[0].results
    rows = [row for mode in modes_of(results) for row in rows_of(results, mode)]
    return markdown_lines([MODE, *COLUMNS], rows)


def render(material: Material) -> str:
    """The page as text."""
    source = material.sources[0]
    results, recipe, study = source.results, source.recipe, source.stored
    charts = charts_of(material)
    plotly, plotly_script = packed_plotly()
    script = Markup(template_file("report.js"))
    return (
        templates()
        .get_template("scale.html")
        .render(
            title=recipe.name,
            description=recipe.description,
            started=source.started,
            notices=[*material.left_out, *_ending(study)],
            headline=headline(results),
            tiles=tiles(results),
            points=points(study, results),
            cautions=[
                *facts.interventions([recipe], material.results),
                *facts.cautions(recipe, source.environment, results, is_study=True),
            ],
            names=[*labels_of(results), IDEAL],
            looks=looks_of(results),
            look_of=lambda row: looks_of(results)[_place(results, row)],
            charts=charts,
            chart_specs=compact([chart.spec for chart in charts]),
            columns=COLUMNS,
            tables=[
                (f"{TITLES[mode]}: {batch_words(study['modes'], mode)}", rows_of(results, mode))
                for mode in modes_of(results)
            ],
            training=[*_training(study, facts.training(recipe, results)), *facts.on_purpose([recipe])],
            machine=facts.machine(source.environment),
            recipe=recipe.to_toml(),
            style=Markup(template_file("report.css")),
            plotly=plotly,
            script=script,
            policy=policy_for([plotly_script, script]),
        )
    )


def rows_of(results: Results, mode: str) -> list[dict[str, Any]]:
    """The one worker, then strategy by strategy, from few workers to many."""
    reference = reference_of(results, mode)
    rows = [row for line in lines_of(results, mode).values() for row in line]
    return ([reference] if reference is not None else []) + rows


def points(study: Row, results: Results) -> list[Point]:
    """Sentences below the headline, a subject each."""
    found = []
    modes = modes_of(results)
    for mode in modes:
        paid = paying_lines(results, mode)
        if study["repeats"] == 1 and paid:
            paid.append("One repeat cannot tell a gain from noise: repeat to find out.")
        found += [Point(f"{TITLES[mode]}", " ".join(paid))] if paid else []
        beyond = beyond_lines(results, mode)
        found += [Point(f"Beyond {ideal_name(mode)}", f"{'; '.join(beyond)}.")] if beyond else []
        found += _with_most_workers(results, mode, is_only=len(modes) == 1)
    found += [Point("Refused", " ".join(lines))] if (lines := refused_lines(study["refused"])) else []
    found += [Point("Failed", " ".join(lines), is_problem=True)] if (lines := failed_lines(study["failed"])) else []
    measuring = findings.measuring(results)
    return [*found, *([measuring] if measuring is not None else [])]


def _with_most_workers(results: Results, mode: str, *, is_only: bool) -> list[Point]:
    """Strategies against each other where most workers were measured, in the words of a comparison."""
    rows = [row for row in rows_of(results, mode) if row["workers"] > 1]
    most = max((row["workers"] for row in rows), default=0)
    rows = [row for row in rows if row["workers"] == most]
    where = f"{most} workers" if is_only else f"{most} workers, {mode}"
    subjects = (words.speed, words.cost_of_agreeing, findings.slow_workers, words.learning, words.replicas)
    said = [subject(rows) for subject in subjects] if rows else []
    return [Point(f"{p.subject}, {where}", p.text, is_problem=p.is_problem) for p in said if p is not None]


def tiles(results: Results) -> list[Tile]:
    """Of the point with the most throughput in the first mode."""
    mode = modes_of(results)[0]
    rows = [row for row in results if row["point"]["mode"] == mode]
    best = best_of(rows)
    scaling, where = best["scaling"], f"{best['label']} on {counted(best['workers'], 'worker')}, {mode}"
    found = [Tile("Time per iteration", duration(best["iteration_s"]["mean"]), where)]
    found.append(Tile("Samples per second", whole(best["samples_per_s"]), "of all workers together"))
    if scaling["speedup"] is not None:
        found.append(Tile("Speed-up", f"{times(scaling['speedup'])} \N{MULTIPLICATION SIGN}", "over one worker"))
        found.append(Tile("Efficiency", f"{scaling['efficiency'] * 100:.0f} %", "speed-up over workers"))
    if scaling["communication_share"] is not None:
        found.append(Tile("Communication", f"{scaling['communication_share'] * 100:.0f} %", "of a step, not hidden"))
    return found


def _ending(study: Row) -> list[str]:
    if study["status"] == "done":
        return []
    reason = f": {str(study['error']).splitlines()[0].rstrip('.')}" if study.get("error") else ""
    ended = "was interrupted" if study["status"] == "interrupted" else f"failed{reason}"
    have = f"{len(study['results'])} of {counted(study['num_points'], 'point')}"
    return [f"This study {ended}. What was measured until then: {have}, some in fewer than all repeats."]


def _training(study: Row, given: Sequence[facts.Fact]) -> list[facts.Fact]:
    """The conditions, with the batches that the modes keep in place of one batch."""
    batches = [(TITLES[mode], batch_words(study["modes"], mode)) for mode in study["modes"]]
    kept = [fact for fact in given if fact[0] != "Global batch"]
    return [*kept[:3], *batches, *kept[3:]]


def _place(results: Results, row: Row) -> int:
    labels = labels_of(results)
    return labels.index(row["label"]) if row["label"] in labels else len(labels)


def _bounded(value: float | None, bounds: Sequence[float] | None, factor: float = 1.0) -> str:
    if value is None:
        return DASH
    interval = f" ({times(bounds[0] * factor)} to {times(bounds[1] * factor)})" if bounds else ""
    return f"{times(value * factor)}{interval}"


def _gain(row: Row) -> str:
    gain = row["scaling"]["gain"]
    if not gain:
        return DASH
    return f"{_bounded(gain['ratio'], gain['interval95'])} over {gain['over_workers']}"


def _interval(row: Row) -> str:
    bounds = row["iteration_mean_s_interval95"]
    return f"{milliseconds(max(bounds[0], 0.0))} to {milliseconds(bounds[1])}" if bounds else DASH


def _efficiency(row: Row) -> str:
    value = row["scaling"]["efficiency"]
    return DASH if value is None else f"{value * 100:.0f} %"


def _part(key: str) -> Any:
    return lambda row: milliseconds(row["scaling"][key])


MODE = Column("", "Scaling", lambda r: str(r["point"]["mode"]), is_number=False)
COLUMNS = (
    Column("", "Strategy", lambda r: str(r["label"]), is_number=False),
    Column("", "Workers", lambda r: str(r["workers"])),
    Column("", "Global batch", lambda r: whole(r["batch_size"])),
    Column("", "Iteration, ms", lambda r: milliseconds(r["iteration_s"]["mean"])),
    Column("", "95 % interval", _interval),
    Column("", "Samples/s", lambda r: whole(r["samples_per_s"])),
    Column("", "Speed-up", lambda r: _bounded(r["scaling"]["speedup"], r["scaling"]["speedup_interval95"])),
    Column("", "Efficiency", _efficiency),
    Column("", "Throughput gained", _gain),
    Column(
        "", "Beyond ideal, ms", lambda r: DASH if r["workers"] == 1 else milliseconds(r["scaling"]["beyond_ideal_s"])
    ),
    Column("", "Communication, ms", _part("communication_s")),
    Column("", "Waiting, ms", _part("waiting_s")),
    Column("", "Hidden, ms", _part("overlap_s")),
    Column("", "Compute, ms", _part("compute_s")),
    Column("", "Test accuracy", lambda r: accuracy(r["final"]["test_accuracy"])),
    Column("", "Test loss", lambda r: significant(r["final"]["test_loss"])),
)
