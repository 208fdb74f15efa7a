"""Pages as the text and the HTML that a result shows in a Python session and in a notebook."""

from __future__ import annotations

import html
from typing import Any

from paceline.present.model import Page, Table, Visibility
from paceline.text import plain_text


def text(page: Page) -> str:
    """Tables as aligned columns, the findings, and the folder of the results."""
    parts = [_aligned(table) for table in _tables(page)]
    parts += [line for finding in _findings(page) for line in finding.splitlines()]
    return "\n".join([*parts, *([plain_text(page.foot)] if page.foot else [])])


def as_html(page: Page) -> str:
    parts = [_html_table(table) for table in _tables(page)]
    parts += [f"<p>{html.escape(finding)}</p>" for finding in _findings(page)]
    return "".join([*parts, *([f"<p>{html.escape(page.foot)}</p>"] if page.foot else [])])


def _tables(page: Page) -> list[Table[Any]]:
    return [table for table in page.tables if table.places & Visibility.NOTEBOOK]


def _findings(page: Page) -> list[str]:
    shown = [finding for finding in page.findings_in(Visibility.NOTEBOOK) if finding.kind != "detail"]
    return [plain_text(finding.text, keep_lines=finding.kind == "code") for finding in shown]


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
