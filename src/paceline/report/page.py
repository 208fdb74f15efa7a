"""One self-contained HTML page: it loads nothing, and nothing that a user wrote can become part of its code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from paceline.errors import UsageError
from paceline.report import facts, quantize_page, scale_page, sweep, words
from paceline.report.chart import Chart, compact
from paceline.report.collect import Material, collect, notices
from paceline.report.html import packed_plotly, policy_for, template_file, templates, write_whole
from paceline.report.labels import names_to_explain
from paceline.report.sections import Section, all_charts, make_sections
from paceline.report.studies import study_points, study_sections
from paceline.report.styles import styles
from paceline.report.table import MAIN_COLUMNS, SPEED_COLUMNS, WORKER_COLUMNS, Column, markdown_table
from paceline.report.tiles import tiles


def write_report(paths: Sequence[Path], output: Path) -> Path:
    """Write the page of one or several runs and studies, whole or not at all."""
    if output.is_dir():
        raise UsageError(f"{str(output)!r} is a folder; name a file, such as {str(output / 'report.html')!r}")
    write_whole(output, render(collect(paths)))
    return output


def markdown_of(paths: Sequence[Path]) -> str:
    """The table of one or several runs and studies in Markdown."""
    material = collect(paths)
    if quantize_page.is_quantize(material):
        return quantize_page.markdown(material)
    return scale_page.markdown(material) if scale_page.is_scale(material) else markdown_table(material.results)


def charts_of(material: Material) -> list[Chart]:
    """Every chart of the page, in its order."""
    if quantize_page.is_quantize(material):
        return quantize_page.charts_of(material)
    if scale_page.is_scale(material):
        return scale_page.charts_of(material)
    return all_charts(_sections(material))


def render(material: Material) -> str:
    """The page as text."""
    if quantize_page.is_quantize(material):
        return quantize_page.render(material)
    if scale_page.is_scale(material):
        return scale_page.render(material)
    recipe, environment, results = material.recipe, material.environment, material.results
    sections = _sections(material)
    plotly, plotly_script = packed_plotly()
    script = Markup(template_file("report.js"))
    is_study = material.sources[0].kind == "study"
    recipes = [source.recipe for source in material.sources]
    names = list(dict.fromkeys(source.recipe.name for source in material.sources))
    return (
        templates()
        .get_template("report.html")
        .render(
            title=", ".join(names),
            description=recipe.description if len(names) == 1 else "",
            sources=material.sources,
            notices=notices(material),
            headline=sweep.headline(results) or words.headline(results),
            tiles=tiles(results),
            points=[*study_points(material), *words.points(results)],
            cautions=[
                *facts.interventions(recipes, results),
                *facts.cautions(recipe, environment, results, is_study=is_study),
                *sweep.cautions(results),
            ],
            main_columns=[c for c in MAIN_COLUMNS if c.name != "Comm" or len({r["comm"] for r in results}) > 1],
            speed_columns=SPEED_COLUMNS,
            worker_columns=WORKER_COLUMNS,
            heads=_heads,
            results=results,
            names=names_to_explain(results),
            looks=styles(results),
            sections=sections,
            chart_specs=compact([chart.spec for chart in all_charts(sections)]),
            replicas_equal=words.replicas_equal,
            training=[*facts.training(recipe, results), *facts.on_purpose(recipes)],
            machine=facts.machine(environment),
            recipes=_recipes(material),
            style=Markup(template_file("report.css")),
            plotly=plotly,
            script=script,
            policy=policy_for([plotly_script, script]),
        )
    )


def _sections(material: Material) -> list[Section]:
    return [*study_sections(material), *make_sections(material.results)]


def _heads(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The upper row of a table's head: each group with the number of columns that it spans."""
    spans: list[tuple[str, int]] = []
    for column in columns:
        if spans and column.group and spans[-1][0] == column.group:
            spans[-1] = (column.group, spans[-1][1] + 1)
        else:
            spans.append((column.group, 1))
    return spans


def _recipes(material: Material) -> list[tuple[str, str]]:
    """Every recipe once, with the folder that it is from."""
    texts: dict[str, str] = {}
    for source in material.sources:
        texts.setdefault(source.recipe.to_toml(), source.name)
    return [(name, text) for text, name in texts.items()]
