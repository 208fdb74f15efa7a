"""Tables in a terminal keep their meaning at any width, with long names, for every study."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from made_up import made_up_bench
from paceline.present import page_of
from paceline.present.page_parts import ALWAYS_SHOWN, Column, Finding, Page, Table, Visibility, plain_table
from paceline.present.studies.bench import bench_page
from paceline.present.studies.dataflow import network_page
from paceline.present.studies.runs import diff_page, list_page
from paceline.present.terminal import show, show_tables
from paceline.results import changed, convert, encode
from paceline.results.dataflow import NetworkCost
from paceline.runs import Stored, read
from paceline.study.diff import diff

GOLDEN = Path(__file__).parents[1] / "golden"
LONG = {"ring": "overlap:bucket_mb=0.25:accumulate=4+powersgd", "overlap": "my_strategy.py:VeryLongClassName"}
WIDTHS = (80, 100, 160)
STORED = sorted(folder.name for folder in (GOLDEN / "stored").iterdir())


def printed(page: Page, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    show(console, page, with_intro=True)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def with_long_names(name: str) -> Stored:
    """A stored run or study whose strategies have long names."""
    stored = read(GOLDEN / "stored" / name)
    assert stored.content is not None
    text = encode(stored.content).decode()
    for short, long in LONG.items():
        text = text.replace(f'"{short}"', f'"{long}"').replace(f'"{short}@', f'"{long}@')
    return Stored(stored.folder, convert(msgspec.json.decode(text), type(stored.content)))


def check_page(page: Page, width: int) -> None:
    """Every row is named whole by parts, every figure of a shown column is whole, columns left out are named."""
    text = printed(page, width)
    lines = text.splitlines()
    words = " ".join(text.split())
    unbroken = [line for finding in page.findings if finding.kind == "code" for line in finding.text.splitlines()]
    unbroken += page.intro
    assert all(len(line) <= width for line in lines if not any(part in line for part in unbroken)), text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    tables = [table for table in page.tables if table.places & Visibility.TERMINAL]
    assert tables or page.findings
    left_out = ", ".join(re.findall(r"Columns that need a wider terminal: (.*?)\.(?: |$)", words)).split(", ")
    for table in tables:
        columns = table.columns_in(Visibility.TERMINAL)
        for number, column in enumerate(columns):
            if column.heading in left_out:
                assert number > 0
                assert column.importance < ALWAYS_SHOWN
                continue
            assert all(word in words for word in column.heading.split())
            for cell in (row[number] for row in table.cells(columns)):
                parts = re.split(r"[: ]", cell) if number == 0 or not column.is_number else [cell]
                assert all(part in text for part in parts if len(part) <= 24 or number == 0), (column.heading, cell)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", STORED)
def test_every_study_keeps_its_meaning(name: str, width: int) -> None:
    check_page(page_of(with_long_names(name)), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_of_runs_and_a_diff(width: int) -> None:
    stored = [with_long_names(name) for name in STORED]
    check_page(list_page(stored), width)
    compared = [with_long_names(name) for name in ("study-compare", "study-compare-old")]
    check_page(diff_page(diff(*compared, most_percent=5.0)), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_bench_and_dataflow(width: int) -> None:
    check_page(bench_page(made_up_bench()), width)
    cost = convert(msgspec.json.decode((GOLDEN / "json" / "dataflow-network-alexnet.json").read_bytes()), NetworkCost)
    check_page(network_page(cost), width)


def table(**changes: Any) -> Table[Any]:
    """Names of two parts, and nine columns of which every other may go."""
    rows = [("overlap:bucket_mb=0.25", "1,234.50"), ("ring", "1.50")]
    columns: list[Column[Any]] = [Column(title="strategy", text=lambda row: row[0], is_number=False)]
    for number in range(9):
        columns.append(
            Column(
                title=f"column-{number}",
                text=lambda row: row[1],
                importance=number if number % 2 else ALWAYS_SHOWN,
                help=f"help {number}",
            )
        )
    return Table(columns=columns, rows=rows, **changes)


def shown(given: Table[Any] | list[Table[Any]], width: int) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    show_tables(console, given if isinstance(given, list) else [given])
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_least_important_columns_go_first_and_are_named() -> None:
    wide, narrow = shown(table(), 160), shown(table(), 100)
    assert "Not shown" not in wide
    assert all(f"help {number}" in " ".join(wide.split()) for number in range(9))
    assert "Columns that need a wider terminal: column-1, column-3." in narrow
    assert "help 1" not in narrow
    assert "help 2" in narrow


def test_a_table_that_cannot_fit_is_one_block_per_row() -> None:
    lines = shown(table(), 40).splitlines()
    assert "overlap:bucket_mb=0.25" in lines
    assert lines.count("  column-1  1,234.50") == 1
    assert lines.count("  column-8  1.50") == 1
    assert not any("Not shown" in line for line in lines)


def test_tables_of_the_same_columns_share_a_legend() -> None:
    text = " ".join(shown([table(title="First"), table(title="Second")], 160).split())
    assert text.count("column-0: help 0") == 1
    assert text.index("Second") < text.index("column-0: help 0")


def test_columns_of_the_same_help_are_explained_together() -> None:
    columns: list[Column[Any]] = [Column(title=name, text=str, help="a share") for name in ("compute", "comm")]
    assert "compute, comm: a share\n" in shown(Table(columns=columns, rows=[1]), 80)


def test_every_column_is_explained_in_a_line_of_its_own() -> None:
    columns: list[Column[Any]] = [Column(title=name, text=str, help=f"{name} of a step") for name in ("time", "share")]
    lines = shown(Table(columns=columns, rows=[1], definitions=["exact: no loss"]), 80).splitlines()
    assert lines[-3:] == ["time: time of a step", "share: share of a step", "exact: no loss"]


def test_control_characters_and_markup_are_shown_as_text() -> None:
    name = "\x1b[31mred[/bold]\x07 [bold]x[/]"
    page = Page(
        kind="",
        title="",
        tables=[plain_table(("name", "value"), [(name, "\x1b]0;title\x07" + "1")], numbers=("value",))],
        findings=[Finding(f"{name} failed.", kind="problem"), Finding(f"{name}\nline", "Command", "code")],
        intro=[name],
    )
    text = printed(page, 80)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.count("[bold]x[/]") == 4


def test_what_is_copied_is_not_broken() -> None:
    command = "paceline run " + " ".join(f"--option-{number} value" for number in range(12))
    page = Page(kind="", title="", findings=[Finding(command, "Command", "code")])
    assert f"command {command}" in printed(page, 80).splitlines()


def test_details_are_for_the_page_alone() -> None:
    findings = [Finding("It is so.", kind="detail"), Finding("Look.", places=Visibility.HTML), Finding("Fine.")]
    assert printed(Page(kind="", title="", findings=findings), 80) == "Fine.\n"


def test_a_percentage_stays_with_its_sign() -> None:
    text = f"{'x' * 77} 12 % of it"
    lines = printed(Page(kind="", title="", findings=[Finding(text)]), 80).splitlines()
    assert lines == ["x" * 77, "12 % of it"]


def test_a_study_in_memory_is_shown_as_it_is_stored() -> None:
    stored = read(GOLDEN / "stored" / "study-compare")
    assert stored.content is not None
    again = Stored(stored.folder, changed(stored.content))
    assert printed(page_of(stored), 100) == printed(page_of(again), 100)
