"""One self-contained HTML page: it loads nothing, and nothing that a user wrote can become part of its code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup, escape

from paceline.errors import UsageError
from paceline.report import facts, words
from paceline.report.chart import compact
from paceline.report.collect import Material, collect, notices
from paceline.report.html import packed_plotly, policy_for, template_file, templates, write_whole
from paceline.report.labels import names_to_explain
from paceline.report.sections import all_charts, make_sections
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
    return markdown_table(collect(paths).results)


def render(material: Material) -> str:
    """The page as text."""
    recipe, environment, results = material.recipe, material.environment, material.results
    sections = [*study_sections(material), *make_sections(results)]
    plotly, plotly_script = packed_plotly()
    script = Markup(template_file("report.js"))
    is_study = material.sources[0].kind == "study"
    recipes = [source.recipe for source in material.sources]
    names = list(dict.fromkeys(source.recipe.name for source in material.sources))
    jinja = templates()
    jinja.filters |= {"tied": _tied, "breakable": _breakable}
    return jinja.get_template("report.html").render(
        title=", ".join(names),
        description=recipe.description if len(names) == 1 else "",
        sources=material.sources,
        notices=notices(material),
        headline=words.headline(results),
        tiles=tiles(results),
        points=[*study_points(material), *words.points(results)],
        cautions=[
            *facts.interventions(recipes, results),
            *facts.cautions(recipe, environment, results, is_study=is_study),
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


def _tied(text: str) -> str:
    """Numbers stay with their units at the end of a line."""
    units = r"(?=(%|ms|s|B|kB|MB|GB|times|(worker|core|thread|repeat|step)s?)(?!\w))"
    return re.sub(rf"(?<=\d) {units}", "\N{NO-BREAK SPACE}", text)


def _breakable(text: str) -> Markup:
    """A label may be broken where its options and its codec begin."""
    return escape(text).replace(":", Markup("<wbr>:")).replace("+", Markup("<wbr>+")).replace(",", Markup(",<wbr>"))
