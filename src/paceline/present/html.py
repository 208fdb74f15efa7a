"""Render pages of results as HTML files that load nothing from elsewhere. All user text is escaped."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from paceline.errors import UsageError
from paceline.output_files import atomic_file
from paceline.present.chart import compact
from paceline.present.page_parts import Column, Finding, Page, Table, Visibility
from paceline.runs.store import disk_errors

HTML = Visibility.HTML


def write_page(page: Page, output: Path) -> Path:
    """Render a page and write it to the file `output` atomically. Return `output`."""
    if output.is_dir():
        raise UsageError(f"{str(output)!r} is a folder; name a file, such as {str(output / 'report.html')!r}")
    write_atomically(output, render(page))
    return output


def render(page: Page) -> str:
    """Return the page as HTML."""
    sections = [section for section in page.make_sections() if section.charts or section.tables or section.missing]
    charts = [chart for section in sections for chart in section.charts]
    plotly, plotly_script = plotly_sources()
    script = Markup(template_file("report.js"))
    notices, points = _split_findings(page.findings_in(HTML))
    facts = [one for one in page.facts if one.places & HTML]
    tables = [table for table in page.tables if table.places & HTML]
    return render_template(
        "page.html",
        page=page,
        title=page.title,
        notices=notices,
        points=points,
        sections=sections,
        tables=tables,
        facts=facts,
        columns_of=_columns,
        groups_of=_groups,
        legend_of=_legend,
        style_of=lambda table, row: page.key[table.keys[row]].style if table.keys else None,
        chart_specs=compact([chart.spec for chart in charts]),
        style=Markup(template_file("report.css")),
        plotly=plotly,
        script=script,
        policy=policy_for([plotly_script, script]),
    )


def _split_findings(findings: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return the findings before the headline, and the findings after it, without the headline.

    If there is no headline, the first list is empty and the second has all findings.
    """
    places = [index for index, finding in enumerate(findings) if finding.kind == "headline"]
    first = places[0] if places else 0
    return list(findings[:first]), [finding for finding in findings[first:] if finding.kind != "headline"]


def _columns(table: Table[Any]) -> list[Column[Any]]:
    return table.columns_in(HTML)


def _groups(columns: Sequence[Column[Any]]) -> list[tuple[str, int]]:
    """Return the upper heading row of a table: the title of each group of columns, and how many columns it spans."""
    spans: list[tuple[str, int]] = []
    for column in columns:
        if spans and column.group and spans[-1][0] == column.group:
            spans[-1] = (column.group, spans[-1][1] + 1)
        else:
            spans.append((column.group, 1))
    return spans


def _legend(table: Table[Any]) -> str:
    """Return the text below a table: explanations of its columns, and its notes."""
    titles: dict[str, list[str]] = {}
    for column in _columns(table):
        if column.help.lower() not in column.full_title.lower():
            titles.setdefault(column.help, []).append(column.full_title)
    sentences = [f"{', '.join(names)}: {words}." for words, names in titles.items()]
    return " ".join([*sentences, *(f"{text}." for text in table.definitions), *table.notes])


def render_template(name: str, **values: Any) -> str:
    """Return a rendered template. Values other than `Markup` are escaped; undefined names are errors."""
    environment = Environment(
        loader=PackageLoader("paceline.present"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"join_units": _join_units, "breakable": _breakable, "grouped": _grouped}
    return environment.get_template(name).render(**values)


def _grouped(findings: Sequence[Finding]) -> Iterator[tuple[str, Finding]]:
    """Yield (title, finding) for each finding. The title is empty if the previous finding has the same title."""
    previous = ""
    for finding in findings:
        yield "" if finding.title == previous else finding.title, finding
        previous = finding.title


def _join_units(text: str) -> str:
    """Replace the space between a number and its unit by a no-break space."""
    units = r"(?=(%|ms|s|B|kB|MB|GB|times|(worker|core|thread|repeat|step)s?)(?!\w))"
    return re.sub(rf"(?<=\d) {units}", "\N{NO-BREAK SPACE}", text)


def _breakable(text: str) -> Markup:
    """Return a label as HTML in which a line may break before options, before the codec and after commas."""
    return escape(text).replace(":", Markup("<wbr>:")).replace("+", Markup("<wbr>+")).replace(",", Markup(",<wbr>"))


def policy_for(scripts: Sequence[str]) -> str:
    """Return a content security policy for a page that loads nothing from elsewhere.

    It allows only inline styles, embedded images and the given scripts.
    """
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


@lru_cache(maxsize=1)
def plotly_sources() -> tuple[str, str]:
    """Return plotly.js twice: compressed (gzip in base64) and as plain text.

    The page contains the compressed text and unpacks it. The content security policy needs a digest of the plain text.
    """
    script = get_plotlyjs()
    return base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode(), script


def template_file(name: str) -> str:
    return (resources.files("paceline.present") / "templates" / name).read_text(encoding="utf-8")


def write_atomically(output: Path, text: str) -> None:
    """Write a file atomically, and create its parent folders."""
    with disk_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(output) as file:
            file.write(text)
