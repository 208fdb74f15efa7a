"""Render pages of results as Markdown, plain text (Python sessions) or HTML (notebooks)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any

from paceline.present.page_parts import Finding, Page, Table, Visibility
from paceline.text import plain_text


def as_markdown(page: Page) -> str:
    """Return a page as Markdown: its tables, the full names of shortened labels, and a list of findings."""
    tables = _tables(page, Visibility.MARKDOWN)
    titles = [f"{escaped(table.title)}\n\n" if len(tables) > 1 and table.title else "" for table in tables]
    parts = [title + markdown_table(table) for title, table in zip(titles, tables, strict=True)]
    full_names = {short: full for table in tables for short, full in _short_names(table)}
    if full_names:
        parts.append("".join(f"{escaped(short)}: {escaped(full)}\n" for short, full in full_names.items()))
    findings = _findings(page, Visibility.MARKDOWN)
    if findings:
        parts.append("".join(map(_bullet, findings)))
    return "\n".join(parts)


def as_text(page: Page) -> str:
    """Return a page as plain text: tables with aligned columns, findings, and the folder of the results."""
    parts = [_aligned(table) for table in _tables(page, Visibility.NOTEBOOK)]
    parts += [line for finding in _plain_findings(page) for line in finding.splitlines()]
    return "\n".join([*parts, *([plain_text(page.foot)] if page.foot else [])])


def as_html(page: Page) -> str:
    """Return a page as HTML for a notebook: tables, findings, and the folder of the results."""
    parts = [_html_table(table) for table in _tables(page, Visibility.NOTEBOOK)]
    parts += [f"<p>{html.escape(text)}</p>" for text in [*_plain_findings(page), *([page.foot] if page.foot else [])]]
    return "".join(parts)


def markdown_table(table: Table[Any]) -> str:
    columns = table.columns_in(Visibility.MARKDOWN)
    lines = [
        _markdown_line(escaped(column.full_title) for column in columns),
        _markdown_line("---:" if column.is_number else ":---" for column in columns),
        *(_markdown_line(map(escaped, row)) for row in table.cells(columns)),
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Escape user text for Markdown, so that it cannot end a cell or become markup."""
    return re.sub(r"([\\|<>`*_~&$@#\[\]])", r"\\\1", " ".join(text.split()))


def _tables(page: Page, place: Visibility) -> list[Table[Any]]:
    return [table for table in page.tables if table.places & place]


def _findings(page: Page, place: Visibility) -> list[Finding]:
    return [finding for finding in page.findings_in(place) if finding.kind != "detail"]


def _plain_findings(page: Page) -> list[str]:
    findings = _findings(page, Visibility.NOTEBOOK)
    return [plain_text(finding.text, keep_lines=finding.kind == "code") for finding in findings]


def _short_names(table: Table[Any]) -> list[tuple[str, str]]:
    """Return each shortened label in the table together with the full label."""
    names = [cells[0] for cells in table.cells(table.columns[:1])]
    return [(name, full) for name, full in zip(names, table.full_names, strict=False) if name != full]


def _bullet(finding: Finding) -> str:
    if finding.kind == "code":
        lines = "".join(f"  {line}\n" for line in finding.text.splitlines())
        return f"- {escaped(finding.title)}:\n  ```\n{lines}  ```\n"
    return f"- {escaped(finding.text)}\n"


def _markdown_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _aligned(table: Table[Any]) -> str:
    columns = table.columns_in(Visibility.NOTEBOOK)
    rows = [[column.full_title for column in columns]]
    rows += [[plain_text(cell) for cell in row] for row in table.cells(columns)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(columns))]
    lines = [
        "  ".join(
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in rows
    ]
    return "\n".join([*([plain_text(table.title)] if table.title else []), *lines])


def _html_table(table: Table[Any]) -> str:
    columns = table.columns_in(Visibility.NOTEBOOK)
    rows = [("th", [column.full_title for column in columns]), *(("td", row) for row in table.cells(columns))]
    body = "".join(
        "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>" for tag, cells in rows
    )
    title = f"<p><b>{html.escape(table.title)}</b></p>" if table.title else ""
    return f"{title}<table>{body}</table>"
