"""Print pages of results in a terminal.

In a table that is wider than the terminal, long names are wrapped first. Then the least important columns are left out,
and a line below the table lists them. If the table is still too wide, each row is printed as a block of lines. Names
are wrapped only after `:` and spaces; numbers are not wrapped. Text is never interpreted as rich markup, and control
characters in it are removed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from paceline.present.page_parts import ALWAYS_SHOWN, Column, Facts, Finding, Page, Table, Visibility
from paceline.text import plain_text, wrapped

NAME_SHARE = 0.25  # share of the terminal width; columns are left out before text columns get narrower than this
MAX_WORD = 24  # characters; longer words in a column of text may be broken
FACT_WIDTH = 16
STYLES = {"headline": "bold", "problem": "bold red", "caution": "yellow"}


def show(console: Console, page: Page, *, with_intro: bool = False) -> None:
    """Print the tables, findings and facts of a page.

    With `with_intro`, first print the lines that identify the stored results: name, status, model and data.
    """
    for line in page.intro if with_intro else ():
        say(console, line, is_unbroken=True)
    tables = [table for table in page.tables if table.places & Visibility.TERMINAL]
    findings = page.findings_in(Visibility.TERMINAL)
    show_tables(console, tables)
    if tables and any(finding.kind != "detail" for finding in findings):
        console.print()
    show_findings(console, findings)
    for facts in page.facts:
        if facts.places & Visibility.TERMINAL:
            show_facts(console, facts)


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.kind == "detail":
            continue
        if finding.kind == "code":
            for number, line in enumerate(finding.text.splitlines()):
                name = finding.title.lower() if number == 0 else ""
                say(console, f"{name:<7} {line}", is_unbroken=True)
        else:
            say(console, finding.text, STYLES.get(finding.kind, ""))


def show_facts(console: Console, facts: Facts) -> None:
    """Print names and values in two aligned columns. Long values are wrapped."""
    for name, value in facts.rows:
        lines = wrapped(plain_text(value), max(console.width - FACT_WIDTH, 20))
        for number, line in enumerate(lines):
            _print(console, f"{plain_text(name) if number == 0 else '':<{FACT_WIDTH}}{line}")


def say(console: Console, text: str, style: str = "", *, is_unbroken: bool = False) -> None:
    """Print text, wrapped between words to the width of the console.

    With `is_unbroken`, the text is not wrapped, so that it can be copied from the terminal as one line.
    """
    text = plain_text(text)
    if is_unbroken:
        _print(console, text, style)
    else:
        for line in wrapped(text, console.width):
            _print(console, line, style)


def show_tables(console: Console, tables: Sequence[Table[Any]]) -> None:
    """Print tables with their legends. Consecutive tables with the same columns share one legend."""
    shown: dict[str, Column[Any]] = {}
    definitions: dict[str, None] = {}
    for number, table in enumerate(tables):
        shown |= {column.heading: column for column in _show_one(console, table)}
        definitions |= dict.fromkeys(table.definitions)
        after = tables[number + 1 :]
        if after and _legend_key(after[0]) == _legend_key(table):
            continue
        for line in (*legend(list(shown.values())), *definitions):
            say(console, line, "dim")
        shown, definitions = {}, {}


def _legend_key(table: Table[Any]) -> list[tuple[str, str]]:
    return [(column.heading, column.help) for column in table.columns_in(Visibility.TERMINAL)]


def _show_one(console: Console, table: Table[Any]) -> list[Column[Any]]:
    """Print a table without its legend, and return the columns that were printed."""
    if table.title:
        say(console, table.title, "bold")
    columns = table.columns_in(Visibility.TERMINAL)
    cells = [[plain_text(cell) for cell in row] for row in table.cells(columns)]
    layout = _fit(columns, cells, console.width)
    if layout is None:
        _show_blocks(console, columns, cells)
    else:
        _show_grid(console, layout, cells)
    shown = columns if layout is None else [columns[index] for index in layout.shown]
    if dropped := [column.heading for column in columns if column not in shown]:
        say(console, f"Columns that need a wider terminal: {', '.join(dropped)}.", "dim")
    for note in table.notes:
        say(console, note)
    return shown


def legend(columns: Sequence[Column[Any]]) -> list[str]:
    """Return a line for each `help` text, after the heading of its column. Columns with equal texts share a line."""
    headings: dict[str, list[str]] = {}
    for column in columns:
        if column.help:
            headings.setdefault(column.help, []).append(column.heading)
    return [f"{', '.join(names)}: {words}" for words, names in headings.items()]


@dataclass(frozen=True)
class _Layout:
    columns: Sequence[Column[Any]]
    shown: list[int]
    widths: list[int]  # of the columns that are shown


@dataclass(frozen=True)
class _Width:
    least: int  # characters of the longest number or word (up to MAX_WORD), which is not broken
    wanted: int  # characters that the column gets if leaving out less important columns makes enough room
    natural: int  # characters of the longest cell or heading, so that nothing is wrapped


def _fit(columns: Sequence[Column[Any]], cells: Sequence[Sequence[str]], width: int) -> _Layout | None:
    """Return the columns that fit into `width` characters, and the width of each column.

    Returns None if the columns that are never left out do not fit.
    """
    widths = [_width_of(columns, cells, index, width) for index in range(len(columns))]
    removable = sorted(
        (index for index in range(1, len(columns)) if columns[index].importance < ALWAYS_SHOWN),
        key=lambda index: columns[index].importance,
    )
    shown = list(range(len(columns)))
    for removed in (None, *removable):
        if removed is not None:
            shown.remove(removed)
        if _total([widths[index].wanted for index in shown]) <= width:
            return _Layout(columns, shown, _spread([widths[index] for index in shown], width))
    if _total([widths[index].least for index in shown]) <= width:
        tight = [_Width(widths[index].least, widths[index].least, widths[index].natural) for index in shown]
        return _Layout(columns, shown, _spread(tight, width))
    return None


def _width_of(columns: Sequence[Column[Any]], cells: Sequence[Sequence[str]], index: int, width: int) -> _Width:
    heading = columns[index].heading
    texts = [row[index] for row in cells]
    natural = max(map(cell_len, [heading, *texts]))
    if index and columns[index].is_number:
        return _Width(natural, natural, natural)
    pieces = [cell_len(piece.strip()) for text in texts for piece in _pieces(text)]
    least = max(pieces, default=0) if index == 0 else min(max(pieces, default=0), MAX_WORD)
    least = max(least, max(cell_len(word) for word in heading.split(" ")))
    if index and any(
        " / " in text for text in texts
    ):  # values by rank may be wrapped, so the column needs little width
        least = max(least, cell_len(heading))
        return _Width(least, least, natural)
    return _Width(least, max(least, min(natural, int(NAME_SHARE * width))), natural)


def _total(widths: Sequence[int]) -> int:
    """Return the width in characters of a table with the given column widths, with the space between columns."""
    return sum(widths) + 2 * len(widths) + 1


def _spread(widths: Sequence[_Width], width: int) -> list[int]:
    """Return the widths of columns in a table of at most `width` characters.

    Each column gets its `wanted` width. Then, from left to right, columns are widened up to their `natural` width (that
    of the longest cell) as long as the table has room.
    """
    found = [one.wanted for one in widths]
    for index, one in enumerate(widths):
        found[index] += max(0, min(one.natural - one.wanted, width - _total(found)))
    return found


def _show_grid(console: Console, layout: _Layout, cells: Sequence[Sequence[str]]) -> None:
    grid = RichTable(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0))
    for position, (index, width) in enumerate(zip(layout.shown, layout.widths, strict=True)):
        column = layout.columns[index]
        is_text = position == 0 or not column.is_number
        heading = Text(_folded(column.heading, width) if is_text else column.heading)
        grid.add_column(heading, width=width, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in cells:
        texts = []
        for position, (index, width) in enumerate(zip(layout.shown, layout.widths, strict=True)):
            is_text = position == 0 or not layout.columns[index].is_number
            texts.append(Text(_folded(row[index], width) if is_text else row[index]))
        grid.add_row(*texts)
    console.print(grid)


def _show_blocks(console: Console, columns: Sequence[Column[Any]], cells: Sequence[Sequence[str]]) -> None:
    """Print a block of lines for each row: its name, then heading and value of every other column."""
    side = max((cell_len(column.heading) for column in columns[1:]), default=0)
    room = max(console.width - side - 4, 10)
    for row in cells:
        console.print()
        _print(console, _folded(row[0], console.width), "bold")
        for column, cell in zip(columns[1:], row[1:], strict=True):
            for number, line in enumerate(_folded(cell, room).splitlines()):
                _print(console, f"  {column.heading if number == 0 else '':<{side}}  {line}")
    console.print()


def _pieces(text: str) -> list[str]:
    """Split text where a line may break: after `:` and after spaces, but not between a number and its percent sign.

    The `:` of an option stays at the end of a line, so that the next line does not look like another strategy.
    """
    return re.split(r"(?<=:)(?! )|(?<= )(?!%)", text)


def _folded(text: str, width: int) -> str:
    """Wrap text into lines of at most `width` characters. A word longer than a line is broken."""
    lines = [""]
    for piece in _pieces(text):
        if lines[-1] and cell_len(lines[-1]) + cell_len(piece.rstrip()) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
        lines[-1] += piece
        while cell_len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return "\n".join(line.rstrip() for line in lines)


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)
