"""What `paceline bench` shows: a table that fits, and a page that loads nothing."""

from __future__ import annotations

import html
import io
import re
from typing import Any

import pytest
from rich.console import Console

from made_up import made_up_bench
from paceline.present.charts.bench import series_of
from paceline.present.html import render
from paceline.present.numbers import gigabytes_per_s, short_duration
from paceline.present.studies.bench import bandwidth_table, bench_page
from paceline.present.terminal import show_tables
from paceline.results import changed
from paceline.results.commands import Bench
from paceline.study.bench_trials import OPS


def printed(outcome: Bench, width: int = 100) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    show_tables(console, [bandwidth_table(outcome)])
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def every_operation(comms: list[tuple[str, str]]) -> Bench:
    """Rows with the longest words that can occur."""
    row = made_up_bench().results[0]
    rows = [changed(row, op=op, comm=comm, result=result) for op in OPS for comm, result in comms]
    return changed(made_up_bench(), results=rows)


def with_first(**changes: Any) -> Bench:
    """The made-up bench with a changed first row."""
    outcome = made_up_bench()
    return changed(outcome, results=[changed(outcome.results[0], **changes), *outcome.results[1:]])


def test_a_row_says_everything() -> None:
    head, _, fast, torch_row, *_ = printed(made_up_bench(), width=140)
    assert " ".join(head.split()) == "op comm result bytes p50 p90 p95 algbw busbw % copy x torch check"
    assert (
        re.sub(" +", " ", fast).strip()
        == "all_reduce Fast private 4K 4.50 s 4.90 s 4.95 s 0.0000 0.0000 33.3 2.00 wrong"
    )
    assert torch_row.split()[-2:] == ["\N{EN DASH}", "ok"]


def test_the_table_fits_a_hundred_columns() -> None:
    comms = [("hierarchical", "shared"), ("hierarchical", "private"), ("hierarchical", "plain"), ("torch", "private")]
    lines = printed(every_operation(comms))
    assert max(map(len, lines)) <= 100
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(lines)
    assert "p95" in lines[0]


def test_a_narrow_terminal_shows_the_columns_that_matter() -> None:
    lines = printed(every_operation([("hierarchical", "private"), ("torch", "private")]), width=80)
    assert max(map(len, lines)) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(lines)
    assert "busbw" in lines[0]
    assert "p95" not in lines[0]


def test_one_comm_is_compared_with_nothing() -> None:
    outcome = made_up_bench()
    alone = changed(outcome, results=outcome.results[1:])
    assert not any("x torch" in line for line in printed(alone))
    assert "x torch: time of torch over that of this row" in " ".join(printed(outcome))


def test_a_difference_that_may_be_noise_is_marked() -> None:
    speedup = made_up_bench().results[0].speedup
    assert "2.00 ~" in printed(with_first(speedup=changed(speedup, interval95=(0.5, 3.0))))[2]
    assert "~" not in printed(with_first(speedup=changed(speedup, interval95=(1.1, 3.0))))[2]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.56e-6, "4.56 \N{MICRO SIGN}s"), (0.0009994, "999 \N{MICRO SIGN}s"), (0.0009996, "1.00 ms"), (12.345, "12.3 s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text


def test_small_bandwidths_keep_their_digits() -> None:
    assert [gigabytes_per_s(value * 1e9) for value in (123.4, 12.34, 1.234, 0.1234, 0.01234, 0)] == [
        "123",
        "12.3",
        "1.23",
        "0.12",
        "0.0123",
        "0",
    ]


def test_the_page_is_whole_and_loads_nothing() -> None:
    page = render(bench_page(made_up_bench()))
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    head = page[: page.index("<body>")]
    assert "default-src 'none'" in html.unescape(head)
    named = re.findall(r'\s(?:src|href)="([^"]*)"', head + page[page.index("<body>") :].split("<script>")[0])
    assert [name for name in named if not name.startswith("#")] == ["data:,"]
    assert 'id="busbw-all_reduce"' in page
    assert "it is &lt;far&gt; away" in page


def test_nothing_that_a_comm_is_called_becomes_code() -> None:
    page = render(bench_page(with_first(comm="x.py:<script>alert(1)</script>")))
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_lines_are_named_by_comm_and_by_result_where_there_is_a_choice() -> None:
    rows = every_operation([("a.py:Fast", "shared"), ("a.py:Fast", "private"), ("torch", "private")]).results
    assert list(series_of(rows).values()) == ["Fast, shared", "Fast, private", "torch"]
