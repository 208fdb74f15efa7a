"""Charts of made-up measurements, and the page that shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from measured_samples import KINDS, SLOW, Kind, measured, measured_row, measured_study
from paceline.cli.report import report
from paceline.errors import UsageError
from paceline.present import chart_images, collect, page_of
from paceline.present.chart import Chart, Choice, Values, compact, new_figure
from paceline.present.chart_images import write_figures
from paceline.present.charts import registry
from paceline.present.charts.registry import Rows, make_sections, shown_first
from paceline.present.charts.shared_figures import MAX_POINTS, thinned
from paceline.present.charts.timeline import MAX_SPANS, timeline
from paceline.present.page_parts import Page
from paceline.present.pages import combine_sources
from paceline.present.rows import ShownRow
from paceline.present.text_renderers import as_markdown
from paceline.results import Lane, StudyResult, Timeline, TimelineSpan, changed
from paceline.runs import Stored
from report_samples import result, study_of, usual_study, write_report, write_run, write_study

STUDY = measured_study()
EVERY_CHART = ["iteration-time", "time-steps", "train-time", "split", "timeline", "loss", "accuracy"]
EVERY_CHART += ["accuracy-workers", "target", "trade-off", "links", "bytes-workers", "resources-time", "measuring-cost"]


def rows_of(study: StudyResult) -> list[ShownRow]:
    return combine_sources([Stored(Path("study"), study)]).rows


ROWS = rows_of(STUDY)


def charts_of(rows: Sequence[ShownRow]) -> list[Chart]:
    return [chart for section in make_sections(rows) for chart in section.charts]


def named(label: str) -> ShownRow:
    return next(row for row in ROWS if row.label == label)


def html_of(folder: Path, study: StudyResult) -> str:
    write_study(folder / "study", study)
    return write_report([folder / "study"], folder / "report.html").read_text(encoding="utf-8")


def markdown_of(folder: Path) -> str:
    return as_markdown(page_of(collect([folder])))


class TestCharts:
    def test_there_is_one_for_everything(self) -> None:
        assert [chart.id for chart in charts_of(ROWS)] == EVERY_CHART

    @pytest.mark.parametrize("rows", [ROWS, rows_of(usual_study()), ROWS[3:4]], ids=["all", "old", "one"])
    def test_plotly_knows_every_word(self, rows: list[ShownRow]) -> None:
        """The page's figures are plain values; plotly's own checks refuse a name or a value that it does not know."""
        for chart in charts_of(rows):
            sizes = [len(choice.options) for choice in chart.choices]
            assert len(chart.views) == (sizes[0] if sizes else 1) * (sizes[1] if len(sizes) > 1 else 1)
            for view in compact(chart.spec)["views"]:
                go.Figure(data=view["data"], layout=view["layout"])

    def test_every_chart_has_a_table(self) -> None:
        for chart in charts_of(ROWS):
            assert chart.table.rows, chart.id
            assert all(len(row) == len(chart.table.heads) for row in chart.table.rows), chart.id

    def test_the_split_is_drawn_as_it_adds_up(self) -> None:
        chart = next(chart for chart in charts_of(ROWS) if chart.id == "split")
        ring = [row.label for row in ROWS].index("ring")
        for view, whole in ((0, named("ring").split.mean.step_s * 1e3), (1, 100.0)):
            bars = [trace for trace in chart.views[view].traces if trace.get("meta") == ring]
            assert sum(bar["x"][0] for bar in bars) == pytest.approx(whole)

    def test_bytes_switch_off_who_sends_nothing(self) -> None:
        chart = next(chart for chart in charts_of(ROWS) if chart.id == "loss")
        names = [{trace["name"] for trace in view.traces} for view in chart.views]
        assert names[0] - names[2] == {"one-worker", "none"}

    def test_a_chart_of_one_strategy_begins_with_the_fastest_or_a_slow_one(self) -> None:
        assert ROWS[shown_first(ROWS)].label == "overlap"
        only = [changed(row, stragglers=row.stragglers if row.label == "ring" else []) for row in ROWS]
        assert only[shown_first(only)].label == "ring"

    def test_thousands_of_operations_are_drawn_as_few(self) -> None:
        row = named("ring")
        lane = row.timeline.lanes[0]
        first = next(span for span in lane.spans if span.kind == "op")
        tiny = [changed(first, begin_s=1 + n * 1e-6, end_s=1 + (n + 1) * 1e-6, bytes=2) for n in range(5000)]
        lanes = [changed(lane, spans=[*lane.spans, *tiny]), *row.timeline.lanes[1:]]
        (chart,) = timeline(Rows([changed(row, timeline=changed(row.timeline, lanes=lanes))], 0))
        assert sum(len(trace["x"]) for trace in chart.views[0].traces) < MAX_SPANS
        assert " spans)" in json.dumps(chart.views[0].traces)

    def test_lines_are_thinned(self) -> None:
        assert thinned(range(5)) == [0, 1, 2, 3, 4]
        kept = thinned(range(100_000))
        assert len(kept) == len(set(kept)) == MAX_POINTS
        assert (kept[0], kept[-1]) == (0, 99_999)

    def test_views_are_counted_as_choices_are(self) -> None:
        choices = [Choice("strategy", ("a", "b")), Choice("in", ("ms", "%", "s"))]
        chart = Chart("c", "C", "", [new_figure()] * 6, Values([], []), choices=choices, initial=4)
        assert chart.picks == [1, 1]
        assert chart.options_of(5) == ["b", "s"]
        assert chart.title_of(2) == "C: a, s"


class TestPage:
    def test_no_two_elements_share_a_name(self, tmp_path: Path) -> None:
        ids = re.findall(r'\bid="([^"]+)"', html_of(tmp_path, STUDY))
        assert len(ids) == len(set(ids))

    def test_only_its_own_two_scripts_may_run(self, tmp_path: Path) -> None:
        policy = re.search(r'Security-Policy" content="([^"]+)"', html_of(tmp_path, STUDY))[1]
        assert re.fullmatch(
            "default-src &#39;none&#39;; script-src( &#39;sha256-[A-Za-z0-9+/=]{44}&#39;){2}; "
            "style-src &#39;unsafe-inline&#39;; img-src data: blob:",
            policy,
        )

    def test_values_that_are_null_are_left_out(self, tmp_path: Path) -> None:
        """Nothing but the keys is promised: what could not be measured is null."""
        row = measured_row("ring", KINDS["ring"])
        mean = changed(row.split.mean, overlap_fraction=None, bandwidth_bytes_per_s=None, phases_s={})
        network = changed(row.network.per_worker[0], kernel_sent_bytes=None, kernel_received_bytes=None)
        resources = row.resources.per_worker[0]
        unknown = changed(resources, cpu_percent=[None, *resources.cpu_percent[1:]])
        row = changed(
            row,
            curve=changed(row.curve, sent_bytes=[None, *row.curve.sent_bytes[1:]]),
            split=changed(row.split, mean=mean),
            network=changed(row.network, per_worker=[network, *row.network.per_worker[1:]]),
            links=[changed(row.links[0], predicted_bytes=None), *row.links[1:]],
            measuring=changed(row.measuring, interval95_percent=None),
            resources=changed(row.resources, per_worker=[unknown]),
        )
        assert 'id="resources-time"' in html_of(tmp_path, changed(STUDY, results=[row]))

    def test_what_is_missing_is_said_where_one_looks(self, tmp_path: Path) -> None:
        text = html_of(tmp_path, usual_study())
        for sentence in (
            "No split of a step and no timeline: spans were not recorded in these runs",
            "No bytes per link",
            "byte counts were not recorded in these runs",
            "No resources over time",
            "no chart has bytes on its horizontal axis",
        ):
            assert sentence in text
        assert 'id="split"' not in text
        assert 'class="missing"' not in html_of(tmp_path / "2", STUDY)

    def test_a_study_of_old_and_new_runs_names_those_without(self, tmp_path: Path) -> None:
        text = html_of(tmp_path, study_of([[result("ddp", 0.02)], [measured("ring", KINDS["ring"])]]))
        assert "Not shown, because spans were not recorded: ddp." in text
        assert 'id="split"' in text

    def test_one_run_alone(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", measured("ring", KINDS["ring"]))
        text = write_report([run], tmp_path / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
        assert "18.1 ms" in text
        assert "backward" in text
        assert 'id="trade-off"' not in text
        assert "Profiling overhead is unknown" in text

    def test_nothing_that_was_measured_becomes_code(self, tmp_path: Path) -> None:
        attack = "</script><img src=x onerror=alert(1)>%{y}"
        row = measured("ring", KINDS["ring"], label=attack)
        lane = row.timeline.lanes[0]
        spans = [changed(lane.spans[0], name=attack), *lane.spans[1:]]
        row = changed(
            row,
            timeline=changed(row.timeline, lanes=[changed(lane, spans=spans), *row.timeline.lanes[1:]]),
            links=[changed(row.links[0], medium=attack), *row.links[1:]],
            stragglers=[changed(row.stragglers[0], phase=attack)],
        )
        text = html_of(tmp_path, study_of([[row], [measured("ddp", KINDS["ddp"])]], status="failed", error=attack))
        assert "<img" not in text
        specs = json.loads(re.search(r'id="chart-specs">(.*?)</script>', text, re.DOTALL)[1])
        drawn = [view for spec in specs for view in spec["views"]]
        assert "<img" not in json.dumps(drawn)
        assert not re.search(r"onerror=alert\(1\)(>|&gt;)%\{y\}", json.dumps(drawn))

    def test_a_long_run_makes_no_larger_page(self, tmp_path: Path) -> None:
        sizes = []
        for steps in (1_000, 20_000):
            row = measured("ring", KINDS["ring"], steps=steps)
            run = write_run(tmp_path / str(steps), row)
            sizes.append(write_report([run], tmp_path / f"{steps}.html").stat().st_size)
        assert sizes[1] < 1.02 * sizes[0]
        assert sizes[1] < 2_500_000


def test_markdown_of_a_folder(tmp_path: Path) -> None:
    row = measured("ring", Kind(10.0), label="a|b_c<i>&nbsp;~x~ [l](javascript:1) $x$ @team #1")
    run = write_run(tmp_path / "run", row)
    line = markdown_of(run).splitlines()[2]
    assert line.startswith(r"| a\|b\_c\<i\>\&nbsp;\~x\~ \[l\](javascript:1) \$x\$ \@team \#1 | 4 |")


def test_markdown_says_where_the_time_goes(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", changed(STUDY, results=[measured_row("overlap", KINDS["overlap"])]))
    heads, _, line = (row.strip("| ").split(" | ") for row in markdown_of(folder).splitlines()[:3])
    assert len(heads) <= 13
    cells = dict(zip(heads, line, strict=True))
    assert (cells["Overlap"], cells["Waiting"]) == ("93 %", "7 %")


class TestCommand:
    def test_markdown_stands_alone_on_standard_output(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = write_run(tmp_path / "run", measured("ring", KINDS["ring"]))
        report([str(run)], tmp_path / "report.html", None, "-")
        shown = capsys.readouterr()
        assert shown.out == markdown_of(run)
        assert shown.err.strip() == str(tmp_path / "report.html")

    def test_markdown_in_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = write_run(tmp_path / "run", measured("ring", KINDS["ring"]))
        report([str(run)], tmp_path / "report.html", None, str(tmp_path / "table.md"))
        assert (tmp_path / "table.md").read_text(encoding="utf-8") == markdown_of(run)
        assert capsys.readouterr().out.splitlines() == [str(tmp_path / "report.html"), str(tmp_path / "table.md")]


class TestFigures:
    def test_without_the_extra_it_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "playwright", None)
        with pytest.raises(UsageError, match=r"pip install 'paceline\[figures\]'"):
            write_figures(Page(kind="", title=""), tmp_path / "figures")

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(UsageError, match="is a file; --figures names a folder"):
            write_figures(Page(kind="", title=""), tmp_path / "file")

    def test_names_of_files_are_safe_and_differ(self) -> None:
        rows = [measured("ring", KINDS["ring"], label=label) for label in ("../a:b", "..\\a b", "con")]
        charts = charts_of(rows_of(study_of([[row] for row in rows])))
        names = [name for name, *_ in chart_images._with_file_names(charts)]
        assert len(names) == len(set(names))
        assert all(re.fullmatch(r"[a-z0-9.=-]+", name) and ".." not in name for name in names)
        assert {"timeline-a-b", "timeline-a-b-2", "timeline-con"} <= set(names)


def test_the_slow_worker_of_the_samples_is_the_one_that_does_not_wait() -> None:
    waits = {worker.rank: worker.waiting_s for worker in named("ring").split.per_worker}
    assert min(waits, key=lambda rank: waits[rank]) == SLOW


class TestOperations:
    """In a timeline, what the comm does is told apart by colour, and sending does not hide receiving."""

    def bars(self) -> dict[str, dict[str, Any]]:
        names = ("send", "recv", "gather", "scatter", "reduce_scatter", "all_gather")
        spans = [TimelineSpan(name=n, kind="op", begin_s=1.0, end_s=1.1, bytes=8) for n in names]
        spans.append(TimelineSpan(name="communication", kind="phase", begin_s=1.0, end_s=1.1, bytes=None))
        given = Timeline(first_step=3, lanes=[Lane(rank=0, spans=spans)])
        (chart,) = timeline(Rows([changed(named("ring"), timeline=given)], 0))
        return {trace["name"]: trace for trace in chart.views[0].traces}

    @pytest.mark.parametrize("pair", [("send", "recv"), ("gather", "scatter"), ("reduce_scatter", "all_gather")])
    def test_colours_differ(self, pair: tuple[str, str]) -> None:
        bars = self.bars()
        assert len({bars[name]["marker"]["color"] for name in (*pair, "communication")}) == 3

    def test_sending_lies_beside_receiving(self) -> None:
        send, recv = self.bars()["send"], self.bars()["recv"]
        assert send["y"][0] + send["width"] / 2 <= recv["y"][0] - recv["width"] / 2


def test_a_chart_registers_itself_for_a_section() -> None:
    """A chart is one function in one file: no list names it."""
    figure = Chart("mine", "Mine", "", [new_figure()], Values(["a"], [["b"]]))

    @registry.chart("made-up", order=20)
    def second(content: str) -> list[Chart | str]:
        return [f"{content}: no chart."]

    @registry.chart("made-up", order=10)
    def first(content: str) -> list[Chart | str]:  # noqa: ARG001
        return [figure]

    section = registry.make_section("made-up", "Made up", "nothing measured")
    assert [one.id for one in section.charts] == ["mine"]
    assert section.charts[0].is_wide  # the only one takes the whole width
    assert section.missing == ["nothing measured: no chart."]
