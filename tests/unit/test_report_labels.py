"""Names of rows that differ in more than their strategy: short, in a user's words, and explained."""

from __future__ import annotations

from pathlib import Path

import pytest
from paceline.report.chart import shortened, wrapped
from paceline.report.collect import Material, collect, notices
from paceline.report.labels import MAX_LABEL, names_to_explain
from paceline.report.page import _heads, render
from paceline.report.table import MAIN_COLUMNS, SPEED_COLUMNS

from report_samples import recipe, result, study_of, write_run, write_study

SLOW = "slow:rank=1,ms=20,phase=backward"


@pytest.fixture
def material(tmp_path: Path) -> Material:
    """Three runs of one strategy, of which one was slowed and one was slowed twice and trained for longer."""
    once, twice = (SLOW,), (SLOW, "slow:rank=0,ms=5,phase=data")
    recipes = [recipe(), recipe(**{"measure.inject": once}), recipe(**{"measure.inject": twice, "train.epochs": 9})]
    folders = [write_run(tmp_path / str(n), result("overlap", 0.01), of=one) for n, one in enumerate(recipes)]
    return collect([*folders, write_run(tmp_path / "ring", result("ring", 0.01))])


def test_only_what_differs_as_a_user_writes_it(tmp_path: Path) -> None:
    plain = write_run(tmp_path / "a", result("overlap", 0.01))
    slowed = write_run(tmp_path / "b", result("overlap", 0.01), of=recipe(**{"measure.inject": (SLOW,)}))
    other = write_run(tmp_path / "c", result("ring", 0.01), of=recipe(**{"train.epochs": 5}))
    labels = [row["label"] for row in collect([plain, slowed, other]).results]
    assert labels == ["overlap, no inject", f"overlap, inject {SLOW}", "ring"]


def test_a_long_name_is_shortened_and_explained(material: Material) -> None:
    names = dict(names_to_explain(material.results))
    longest = material.results[2]
    assert len(longest["full_label"]) > MAX_LABEL >= len(longest["label"])
    assert names[longest["label"]] == longest["full_label"]
    page = render(material)
    assert 'id="names"' in page
    assert f'title="{longest["full_label"]}"' in page


def test_names_at_an_axis_are_short_and_differ(material: Material) -> None:
    ticks = [shortened(row) for row in material.results]
    assert len(set(ticks)) == len(ticks)
    assert max(len(tick) for tick in ticks) <= 22
    assert max(wrapped(row).count("<br>") for row in material.results) <= 3


def test_nothing_on_the_page_is_a_python_value(material: Material) -> None:
    assert not any("('" in notice or "()" in notice for notice in notices(material))
    assert "(&#39;slow" not in render(material)


class TestTables:
    def test_every_head_stands_once_in_the_table_of_strategies(self) -> None:
        heads = [*(column.name for column in MAIN_COLUMNS), *(group for group, _ in _heads(MAIN_COLUMNS) if group)]
        assert heads.count("Iteration, ms") == 1

    def test_what_is_no_rival_has_no_verdict(self, tmp_path: Path) -> None:
        rows = [[result("one-worker", 0.01)], [result("none", 0.011, guarantee="NONE")], [result("ring", 0.02)]]
        results = collect([write_study(tmp_path / "study", study_of(rows))]).results
        verdict = next(column for column in SPEED_COLUMNS if column.name == "Verdict")
        to_fastest = next(column for column in MAIN_COLUMNS if column.name == "To fastest")
        for column in (verdict, to_fastest):
            assert [column.text(row) for row in results] == ["one worker", "limit", "fastest"]

    def test_without_rivals_all_are_compared(self, tmp_path: Path) -> None:
        rows = [[result("one-worker", 0.02)], [result("none", 0.011, guarantee="NONE")]]
        results = collect([write_study(tmp_path / "study", study_of(rows))]).results
        assert [row["role"] for row in results] == [None, None]
