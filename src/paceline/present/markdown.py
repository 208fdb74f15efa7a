"""Pages in Markdown: tables, and below them the findings as a list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from paceline.present.model import Finding, Page, Table, Visibility


def render(page: Page) -> str:
    tables = [table for table in page.tables if table.places & Visibility.MARKDOWN]
    parts = [_titled(table) if len(tables) > 1 else markdown_table(table) for table in tables]
    shortened = [pair for table in tables for pair in _shortened(table)]
    if shortened:
        parts.append("".join(f"{escaped(short)}: {escaped(full)}\n" for short, full in dict(shortened).items()))
    findings = [finding for finding in page.findings_in(Visibility.MARKDOWN) if finding.kind != "detail"]
    if findings:
        parts.append("".join(map(_bullet, findings)))
    return "\n".join(parts)


def markdown_table(table: Table[Any]) -> str:
    columns = table.columns_in(Visibility.MARKDOWN)
    lines = [
        _line(escaped(column.full_title) for column in columns),
        _line("---:" if column.is_number else ":---" for column in columns),
        *(_line(map(escaped, row)) for row in table.cells(columns)),
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Escape user text, so that it cannot end a cell or become markup."""
    return re.sub(r"([\\|<>`*_~&$@#\[\]])", r"\\\1", " ".join(text.split()))


def _shortened(table: Table[Any]) -> list[tuple[str, str]]:
    """Names in the table that stand for longer ones."""
    names = [cells[0] for cells in table.cells(table.columns[:1])]
    return [(name, full) for name, full in zip(names, table.full_names, strict=False) if name != full]


def _titled(table: Table[Any]) -> str:
    return f"{escaped(table.title)}\n\n{markdown_table(table)}" if table.title else markdown_table(table)


def _bullet(finding: Finding) -> str:
    if finding.kind == "code":
        lines = "".join(f"  {line}\n" for line in finding.text.splitlines())
        return f"- {escaped(finding.title)}:\n  ```\n{lines}  ```\n"
    return f"- {escaped(finding.text)}\n"


def _line(cells: Iterable[str] | Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
