"""Pages of results: sources side by side, names of rows, Markdown, and HTML that no input can break."""

from __future__ import annotations

import errno
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import RunError, UsageError
from paceline.present import collect, page_in_memory, page_of
from paceline.present.chart import short_label_of, wrapped_label_of
from paceline.present.charts import registry
from paceline.present.columns import comparison_table, speed_table
from paceline.present.comparison_page import notices
from paceline.present.html import render
from paceline.present.numbers import DASH
from paceline.present.page_parts import Finding, Page, Table, Visibility
from paceline.present.pages import PageContent, presenters
from paceline.present.rows import MAX_LABEL, ShownRow, named_rows, names_to_explain
from paceline.present.styles import PALETTE, styles
from paceline.present.text_renderers import as_markdown, markdown_table
from paceline.results import Row, Staleness, StudyResult, changed, study_types
from paceline.runs import Stored
from paceline.study.run_results import combine
from report_samples import recipe, result, study_of, usual_study, write_report, write_run, write_study


def shown(*rows: Row) -> list[ShownRow]:
    return named_rows([(row, {}) for row in rows])


def column_texts(table: Table[Any], title: str, place: Visibility = Visibility.HTML) -> list[str]:
    (column,) = [column for column in table.columns_in(place) if column.full_title == title]
    return [column.text(row) for row in table.rows]


class TestMarkdown:
    def test_a_table_has_a_line_per_row(self) -> None:
        table = comparison_table(shown(*usual_study().results))
        lines = markdown_table(table).splitlines()
        assert len(lines) == 2 + 4
        cells = len(table.columns_in(Visibility.MARKDOWN))
        assert all(len(re.split(r"(?<!\\)\|", line)) == cells + 2 for line in lines)
        assert lines[4].startswith("| ring | 4 | 15.32 | 14.94 to 15.70 | fastest | 2.67x |")
        assert r"\<script\>" in lines[5]
        one = markdown_table(comparison_table(shown(combine([result("a|b", 0.02, epoch_s=None)]))))
        assert r"| a\|b |" in one
        assert one.count(DASH) >= 3

    def test_short_names_are_explained_below(self, tmp_path: Path) -> None:
        label = "overlap:" + ":".join(f"option_{number}=value" for number in range(8))
        folder = write_run(tmp_path / "run", result(label, 0.02))
        text = as_markdown(page_of(collect([folder])))
        (line,) = [line for line in text.splitlines() if re.match(r"overlap.*\N{HORIZONTAL ELLIPSIS}: ", line)]
        assert line.replace("\\", "").endswith(f": {label}")

    def test_findings_follow_as_a_list(self, tmp_path: Path) -> None:
        study = study_of([[result("ring", 0.01)], [result("ddp", 0.02)]])
        page = page_of(collect([write_study(tmp_path / "study", study)]))
        text = as_markdown(page)
        for finding in page.findings:
            assert (f"- {finding.text}" in text.replace("\\", "")) == (finding.kind != "detail")
        assert "- One repeat cannot tell small differences from noise; --repeats 3 gives intervals." in text

    def test_code_is_fenced(self) -> None:
        page = Page(kind="", title="", findings=[Finding("paceline run x_y\nmore", "Command", "code")])
        assert as_markdown(page) == "- Command:\n  ```\n  paceline run x_y\n  more\n  ```\n"

    def test_servers_and_staleness(self) -> None:
        late = Staleness(counts={"0": 1, "3": 1}, max=3, mean=1.5)
        served = result("parameter-server", 0.02, guarantee="STALE", servers=2, staleness_updates=late)
        lines = markdown_table(comparison_table(shown(combine([served]), combine([result("ring", 0.02)])))).splitlines()
        assert "| 4 + 2 servers |" in lines[2]
        assert "| stale (mean 1.50, max 3 updates) |" in lines[2]
        assert "| ring | 4 |" in lines[3]
        assert "| exact |" in lines[3]


def test_colours_stay_with_strategies() -> None:
    found = [look.colour for look in styles(["one-worker", "ring", "none", "ddp"])]
    assert len(set(found)) == 4
    assert found[1] == PALETTE[0]
    assert found[3] == PALETTE[1]


def test_strategies_beyond_the_palette_differ_in_dash_and_marker() -> None:
    found = styles([f"s{number}" for number in range(3 * len(PALETTE))])
    assert len(set(found)) == len(found)
    again = [look for look in found if look.colour == PALETTE[0]]
    assert len({look.dash for look in again}) == len({look.symbol for look in again}) == 3


def test_long_labels_are_wrapped_as_plain_text() -> None:
    rows = shown(combine([result("overlap:bucket_mb=5+int8", 0.01)]), combine([result("<b>%{y}", 0.01)]))
    assert wrapped_label_of(rows[0]) == "overlap<br>:bucket_mb=5<br>+int8"
    assert wrapped_label_of(rows[1]) == "&lt;b&gt;%\N{ZERO WIDTH SPACE}{y}"


def _leaves(address: str | None) -> bool:
    """Whether an address leads out of the page."""
    return bool(address) and address != "data:," and not str(address).startswith("#")


class _Reader(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[dict[str, str | None]] = []
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.scripts += [given] if tag == "script" else []
        self.loaded += [value for key, value in attrs if key in ("src", "href") and _leaves(value)]  # type: ignore[misc]


class TestHtml:
    def test_is_whole_and_loads_nothing(self, tmp_path: Path) -> None:
        study = write_study(tmp_path / "study", usual_study())
        output = write_report([study], tmp_path / "new" / "report.html")
        page = _Reader(output.read_text(encoding="utf-8"))
        assert output == tmp_path / "new" / "report.html"
        assert os.listdir(output.parent) == ["report.html"]
        assert page.loaded == []
        assert [script.get("type") for script in page.scripts] == ["application/json", "text/plain", None]
        assert page.tags.count("h1") == 1

    def test_shows_what_a_reader_asks(self, tmp_path: Path) -> None:
        text = _page(tmp_path, usual_study())
        visible = text.split("<script")[0]
        for words in ("61,706", "local: each worker&#39;s own statistics", "Warm-up steps dropped", "Made-up CPU"):
            assert words in visible
        assert "ring takes 50\N{NO-BREAK SPACE}% less time per step than" in visible
        assert "✓" in visible or "&#10003;" in visible or "parameters equal on all" in visible
        assert "[optimizer]" in visible

    def test_says_what_the_terminal_says(self, tmp_path: Path) -> None:
        folder = write_study(tmp_path / "study", usual_study())
        page = page_of(collect([folder]))
        visible = render(page).split("<script")[0].replace("\N{NO-BREAK SPACE}", " ")
        for finding in page.findings:
            assert finding.text.replace("<", "&lt;").replace(">", "&gt;") in visible

    def test_nothing_a_user_wrote_becomes_code(self, tmp_path: Path) -> None:
        attack = "</title><script>alert(2)</script>"
        hostile = recipe(name=attack, description=attack)
        study = usual_study(recipe=hostile.to_dict())
        study = changed(study, environment=changed(study.environment, processor=attack, command=[attack]))
        text = _page(tmp_path, study)
        assert "<script>alert" not in text
        assert len(_Reader(text).scripts) == 3

    def test_regression_has_no_chart_of_accuracy(self, tmp_path: Path) -> None:
        rows = [[result(label, 0.02, has_accuracy=False)] for label in ("ring", "ddp")]
        text = _page(tmp_path, study_of(rows))
        assert 'id="accuracy"' not in text
        assert 'id="accuracy-workers"' not in text
        assert "No accuracy: this task does not define one." in text
        assert 'id="loss"' in text
        assert f'<td class="number">{DASH}</td>' in text

    def test_an_unfinished_study_says_so_first(self, tmp_path: Path) -> None:
        study = study_of([[result("ring", 0.02)]], status="failed", error="worker 2 died\nTraceback", repeats=3)
        text = _page(tmp_path, study)
        notice = "This study failed: worker 2 died. Measured until then: 1 of 1 row, 1 of 3"
        assert notice in text
        assert text.index(notice) < text.index('id="verdict"')
        interrupted = study_of([[result("ring", 0.02)]], status="interrupted")
        assert "This study was interrupted." in _page(tmp_path / "2", interrupted)

    def test_a_full_disk_is_one_sentence(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        study = write_study(tmp_path / "study", usual_study())

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(RunError, match=r"^report\.html cannot be written: the disk is full$"):
            write_report([study], tmp_path / "report.html")
        assert sorted(os.listdir(tmp_path)) == ["study"]

    def test_a_folder_is_no_page(self, tmp_path: Path) -> None:
        study = write_study(tmp_path / "study", usual_study())
        with pytest.raises(UsageError, match="is a folder; name a file"):
            write_report([study], tmp_path)

    def test_profiled_steps(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", result("ring", 0.01), of=recipe(**{"measure.profile": "2:4"}))
        page = write_report([run], tmp_path / "report.html").read_text(encoding="utf-8")
        assert "Steps 2:4 ran under the profiler (--profile), which slows them; their times are included." in page
        assert "<dt>Profiled steps</dt><dd>2:4</dd>" in page


def _page(folder: Path, study: StudyResult) -> str:
    write_study(folder / "study", study)
    return write_report([folder / "study"], folder / "report.html").read_text(encoding="utf-8")


class TestCollect:
    def test_runs_of_one_thing_are_its_repeats(self, tmp_path: Path) -> None:
        for number in (1, 2):
            write_run(tmp_path / f"ring-{number}", result("ring", 0.01 * (1 + number / 100)))
            write_run(tmp_path / f"ddp-{number}", result("ddp", 0.02 * (1 + number / 50)))
        write_run(tmp_path / "ddp-3", result("ddp", 0.02))
        material = collect([tmp_path])
        assert [(row.label, row.repeats) for row in material.rows] == [("ddp", 3), ("ring", 2)]
        assert material.rows[0].versus_fastest is not None
        assert material.rows[0].versus_fastest.verdict == "slower"
        assert "Combined from 5 folders" in notices(material)[0].text

    def test_runs_side_by_side_are_compared_with_those_that_never_synchronise(self, tmp_path: Path) -> None:
        runs = [
            write_run(tmp_path / "ring", result("ring", 0.03)),
            write_run(tmp_path / "none", result("none", 0.02, guarantee="NONE")),
        ]
        ring = next(row for row in collect(runs).rows if row.label == "ring")
        assert ring.versus_none is not None
        assert ring.versus_none.label == "none"
        assert ring.versus_none.ratio == pytest.approx(1.5)

    def test_different_work_is_not_compared(self, tmp_path: Path) -> None:
        small = write_run(tmp_path / "a", result("ring", 0.01))
        large = write_run(tmp_path / "b", result("ring", 0.02), of=recipe(**{"train.batch_size": 200}))
        material = collect([small, large])
        assert [row.label for row in material.rows] == ["ring, batch_size 100", "ring, batch_size 200"]
        assert not any(row.versus_fastest for row in material.rows)
        assert "The recipes differ in train.batch_size: 100 and 200." in [finding.text for finding in notices(material)]
        assert "with different workloads" in page_of(material).headline
        write_report([small, large], tmp_path / "report.html")

    def test_a_study_beside_a_run(self, tmp_path: Path) -> None:
        study = write_study(tmp_path / "study", usual_study())
        run = write_run(tmp_path / "run", result("ring", 0.01))
        labels = [row.label for row in collect([study, run]).rows]
        assert labels[-1] == "ring, from run"
        assert len(set(labels)) == 5

    def test_how_far_a_killed_run_came(self, tmp_path: Path) -> None:
        lost = write_run(tmp_path / "lost", None, status="failed")
        (lost / "workers").mkdir()
        for rank, last in enumerate((29, 28)):
            lines = [json.dumps({"kind": "step", "step": step, "iteration_s": 0.1}) for step in range(last + 1)]
            (lost / "workers" / f"{rank}.jsonl").write_text("\n".join([*lines, '{"kind": "st']), encoding="utf-8")
        with pytest.raises(UsageError, match="its workers finished steps 28 to 29, which `paceline trace` shows"):
            collect([lost])

    def test_a_damaged_file_of_a_worker_is_said(self, tmp_path: Path) -> None:
        lost = write_run(tmp_path / "lost", None, status="failed")
        (lost / "workers").mkdir()
        (lost / "workers" / "0.jsonl").write_text('x\n{"kind": "end"}\n', encoding="utf-8")
        with pytest.raises(UsageError, match=r"before it had a result \('.*0.jsonl' is damaged in line 1"):
            collect([lost])

    def test_results_that_were_never_finished_are_left_out(self, tmp_path: Path) -> None:
        done = write_run(tmp_path / "done", result("ring", 0.01))
        lost = write_run(tmp_path / "lost", None, status="interrupted")
        (notice,) = notices(collect([done, lost]))
        assert notice.text == "lost is left out: it was interrupted before anything was measured."
        with pytest.raises(UsageError, match="nothing to report: lost is left out"):
            collect([lost])

    def test_what_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="neither a run nor a study"):
            collect([tmp_path])
        with pytest.raises(UsageError, match="nothing to report; name the folder"):
            collect([])
        broken = write_run(tmp_path / "broken", result("ring", 0.01))
        (broken / "recipe.toml").unlink()
        with pytest.raises(UsageError, match="broken is left out: 'broken' has no recipe that can be read"):
            collect([broken])
        whole = write_run(tmp_path / "whole", result("ring", 0.01))
        assert "broken is left out" in collect([broken, whole]).left_out[0]
        (broken / "summary.json").write_text("{", encoding="utf-8")
        assert "is damaged" in collect([tmp_path]).left_out[0]

    def test_a_run_without_facts_of_its_machine_is_shown(self, tmp_path: Path) -> None:
        folder = write_run(tmp_path / "run", result("ring", 0.01))
        (folder / "environment.json").unlink()
        page = page_of(collect([folder]))
        machine = next(facts for facts in page.facts if facts.id == "machine")
        assert dict(machine.rows)["Processor"] == DASH


SLOW = "slow:rank=1,ms=20,phase=backward"


class TestNames:
    @pytest.fixture
    def material(self, tmp_path: Path) -> PageContent:
        """Three runs of one strategy, of which one was slowed and one was slowed twice and trained for longer."""
        once, twice = (SLOW,), (SLOW, "slow:rank=0,ms=5,phase=data")
        recipes = [recipe(), recipe(**{"measure.inject": once}), recipe(**{"measure.inject": twice, "train.epochs": 9})]
        folders = [write_run(tmp_path / str(n), result("overlap", 0.01), of=one) for n, one in enumerate(recipes)]
        return collect([*folders, write_run(tmp_path / "ring", result("ring", 0.01))])

    def test_only_what_differs_as_a_user_writes_it(self, tmp_path: Path) -> None:
        plain = write_run(tmp_path / "a", result("overlap", 0.01))
        slowed = write_run(tmp_path / "b", result("overlap", 0.01), of=recipe(**{"measure.inject": (SLOW,)}))
        other = write_run(tmp_path / "c", result("ring", 0.01), of=recipe(**{"train.epochs": 5}))
        labels = [row.label for row in collect([plain, slowed, other]).rows]
        assert labels == ["overlap, no inject", f"overlap, inject {SLOW}", "ring"]

    def test_a_long_name_is_shortened_and_explained(self, material: PageContent) -> None:
        names = dict(names_to_explain(material.rows))
        longest = material.rows[2]
        assert len(longest.full_label) > MAX_LABEL >= len(longest.label)
        assert names[longest.label] == longest.full_label
        page = render(page_of(material))
        assert 'id="names"' in page
        assert f'title="{longest.full_label}"' in page

    def test_names_at_an_axis_are_short_and_differ(self, material: PageContent) -> None:
        ticks = [short_label_of(row) for row in material.rows]
        assert len(set(ticks)) == len(ticks)
        assert max(len(tick) for tick in ticks) <= 22
        assert max(wrapped_label_of(row).count("<br>") for row in material.rows) <= 3

    def test_nothing_on_the_page_is_a_python_value(self, material: PageContent) -> None:
        page = page_of(material)
        assert not any("('" in finding.text or "()" in finding.text for finding in page.findings)
        assert "(&#39;slow" not in render(page)


class TestRoles:
    def rows(self, *given: tuple[str, float, str]) -> list[ShownRow]:
        runs = [[result(label, seconds, guarantee=guarantee)] for label, seconds, guarantee in given]
        return shown(*study_of(runs).results)

    def test_a_baseline_has_no_verdict(self) -> None:
        rows = self.rows(("one-worker", 0.01, "EXACT"), ("none", 0.011, "NONE"), ("ring", 0.02, "EXACT"))
        expected = ["one worker", "limit", "fastest in one repeat"]
        assert column_texts(speed_table(rows), "Verdict") == expected
        assert column_texts(comparison_table(rows), "To fastest") == expected

    def test_one_repeat_has_no_intervals(self) -> None:
        once = shown(*study_of([[result("ring", 0.01)], [result("ddp", 0.02)]]).results)
        twice = shown(*study_of([[result("ring", 0.01)] * 2, [result("ddp", 0.02)] * 2]).results)
        for rows, has_interval in ((once, False), (twice, True)):
            for table in (speed_table(rows), comparison_table(rows)):
                assert ("95 % interval" in [column.title for column in table.columns]) is has_interval
            assert bool(speed_table(rows).notes) is has_interval

    def test_an_interval_that_is_wider_than_half_of_the_time(self) -> None:
        [row] = shown(*study_of([[result("ring", 0.01)] * 2]).results)
        mean = row.iteration_s.mean
        wide = changed(row, iteration_mean_s_interval95=(0.0, 2.6 * mean))
        narrow = changed(row, iteration_mean_s_interval95=(0.8 * mean, 1.2 * mean))
        table = comparison_table([wide, narrow])
        assert column_texts(table, "95 %", Visibility.TERMINAL) == ["too wide", "\N{PLUS-MINUS SIGN}20 %"]
        helps = {column.title: column.help for column in table.columns}
        assert helps["95 %"].endswith("(too wide: over \N{PLUS-MINUS SIGN}50 %)")

    def test_exact_is_defined_where_a_strategy_is_exact(self) -> None:
        rows = self.rows(("one-worker", 0.01, "EXACT"), ("none", 0.011, "NONE"), ("ring", 0.02, "EXACT"))
        assert comparison_table(rows).definitions == ("exact: the same update as one worker with the whole batch",)
        assert comparison_table(rows[:2]).definitions == ()

    def test_without_rivals_all_are_compared(self) -> None:
        rows = self.rows(("one-worker", 0.02, "EXACT"), ("none", 0.011, "NONE"))
        assert [row.role for row in rows] == [None, None]


class TestPresenters:
    def test_every_study_has_one(self) -> None:
        ours = {name for name, kind in study_types.items() if kind.__module__.startswith("paceline.")}
        assert ours - {""} <= {*presenters.classes}

    def test_a_study_without_one_is_shown_as_a_comparison(self) -> None:
        study = changed(usual_study(), study="example")
        page = page_of(Stored(Path("x"), study))
        assert page.headline.startswith("Fastest exact strategy: ring,")
        assert [table.id for table in page.tables] == ["strategies"]

    def test_charts_are_made_for_pages_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = []
        monkeypatch.setattr(registry, "make_sections", lambda rows: made.append(len(rows)) or [])
        page = page_of(Stored(Path("x"), usual_study()))
        as_markdown(page)
        assert made == []
        page.make_sections()
        assert made == [4]

    def test_a_caution_of_the_engine_is_shown(self) -> None:
        study = changed(usual_study(), cautions=["the overhead is not known: no core"])
        findings = page_of(Stored(Path("x"), study)).findings
        assert Finding("The overhead is not known: no core.", "Caution", "caution") in findings

    def test_a_stored_result_whose_values_contradict_each_other_is_refused(self) -> None:
        study = usual_study()
        first, *others = study.results
        curve = changed(first.curve, loss=[0.5])  # shorter than its steps
        stored = Stored(Path("broken"), changed(study, results=[changed(first, curve=curve), *others]))
        page = page_of(stored)
        with pytest.raises(UsageError, match="'broken' is damaged: its values contradict each other"):
            page.make_sections()
        with pytest.raises(IndexError):
            page_in_memory(stored.content, stored.folder).make_sections()  # ours: a bug shows where it is
