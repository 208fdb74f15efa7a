"""What a report makes of spans, samples and counters: sentences, charts that plotly accepts, words for the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from measured_samples import KINDS, SLOW, Kind, measured, measured_study
from paceline.errors import UsageError
from paceline.report import findings, markdown_of, pictures, write_figures, write_report
from paceline.report.chart import Chart, Choice, Table, compact, new_figure
from paceline.report.curves import MAX_POINTS, thinned
from paceline.report.sections import all_charts, make_sections, shown_first
from paceline.report.tiles import tiles
from paceline.report.timeline import MAX_SPANS, timeline
from paceline.report.words import headline
from report_samples import result, study_of, usual_study, write_run, write_study

STUDY = measured_study()
RESULTS = STUDY["results"]
EVERY_CHART = ["iteration-time", "time-steps", "train-time", "split", "timeline", "loss", "accuracy"]
EVERY_CHART += ["accuracy-workers", "target", "trade-off", "links", "bytes-workers", "resources-time", "measuring-cost"]


def named(label: str) -> dict[str, Any]:
    return next(r for r in RESULTS if r["label"] == label)


def page_of(folder: Path, study: dict[str, Any]) -> str:
    write_study(folder / "study", study)
    return write_report([folder / "study"], folder / "report.html").read_text(encoding="utf-8")


class TestSentences:
    def test_the_headline_names_the_fastest_the_hidden_and_the_slow(self) -> None:
        assert headline(RESULTS).startswith("overlap is the fastest of 5 strategies on 4 workers: 14.6 ms")
        assert headline(RESULTS).endswith("; overlap hides 93 % of communication; worker 2 is slow in backward by 31 %")

    def test_two_strategies_in_one_sentence(self) -> None:
        kinds = {name: KINDS[name] for name in ("ring", "gather-scatter")}
        assert headline(measured_study(kinds=kinds)["results"]) == (
            "ring took 32 % less time per iteration than gather-scatter on 4 workers (95 % interval 32 to 32 %); "
            "worker 2 is slow in backward by 31 %"
        )

    def test_a_slow_worker_that_one_strategy_shows(self) -> None:
        even = {**named("ddp"), "stragglers": []}
        assert findings.clauses([named("ring"), even])[-1] == "worker 2 is slow in backward by 31 % under ring"
        point = findings.slow_workers([named("ring"), even])
        assert point is not None
        assert point.is_problem
        assert point.text == (
            "Worker 2 is slow in backward by 31 % (1.90 ms per step, 95 % interval 28 to 34 %) under ring. "
            "Not so under ddp. Own work is compared, so the others' waiting is not held against them."
        )

    def test_a_worker_that_is_slow_in_everything(self) -> None:
        row = {**named("ring")["stragglers"][0], "phase": "all", "rank": 0, "excess_percent": 50.4}
        assert findings.clauses([{**named("ring"), "stragglers": [row]}]) == ["worker 0 is slow in all phases by 50 %"]

    def test_strategies_that_differ_give_a_range(self) -> None:
        row = {**named("ddp")["stragglers"][0], "excess_percent": 25.0, "excess_s": 0.0015}
        point = findings.slow_workers([named("ring"), {**named("ddp"), "stragglers": [row]}])
        assert point is not None
        assert "by 25 to 31 % (1.50 to 1.90 ms per step, 95 % intervals within 28 to 34 %)" in point.text
        assert "under ring and ddp." in point.text

    def test_nobody_is_named_on_an_even_run(self) -> None:
        even = measured_study(has_slow=False)["results"]
        assert "slow" not in headline(even)
        point = findings.slow_workers(even)
        assert point is not None
        assert not point.is_problem
        assert point.text == "None: no worker's own work took over 10 % longer than the others'."

    def test_time_of_a_step(self) -> None:
        point = findings.time_of_a_step([named("ring")])
        assert point is not None
        assert point.text == (
            "A step of ring, 18.2 ms: 61 % computing, 29 % communicating only, 7 % waiting for others, 2 % loading "
            "data and 1 % between spans. Communication hidden under computing: next to nothing with ring."
        )

    def test_targets(self) -> None:
        rows = [named(name) for name in ("ring", "overlap", "none")]
        point = findings.target(rows)
        assert point is not None
        assert point.text == (
            "90.00 % reached first by overlap, after 123 ms (8 steps, 12.4 MB sent), then by ring (153 ms). "
            "Never reached by none (best 87.10 %)."
        )
        point = findings.target([named("none")])
        assert point is not None
        assert point.text == "90.00 % was never reached by none (best 87.10 %)."

    def test_what_the_kernel_saw(self) -> None:
        point = findings.traffic(RESULTS)
        assert point is not None
        assert point.text.startswith(
            "The kernel saw no worker send over 2.10 % more or less than theory predicts; worker"
        )

    def test_what_measuring_cost(self) -> None:
        point = findings.measuring([named("ring")])
        assert point is not None
        assert point.text == (
            "Measuring made steps 1.0 % longer (ring, 95 % interval -0.2 to 1.9 %). That cannot be told from nothing."
        )

    def test_old_runs_have_nothing_to_say(self) -> None:
        old = usual_study()["results"]
        subjects = (findings.time_of_a_step, findings.slow_workers, findings.target, findings.traffic)
        assert all(subject(old) is None for subject in (*subjects, findings.measuring))
        assert findings.clauses(old) == []

    def test_a_sentence_is_no_table(self) -> None:
        many = [{**named("ring"), "label": f"s{number}", "stragglers": []} for number in range(12)]
        point = findings.time_of_a_step(many)
        assert point is not None
        assert point.text.endswith("next to nothing with s0, s1, s2, s3, s4 and 7 others.")

    def test_tiles(self) -> None:
        found = {tile.name: tile.value for tile in tiles(RESULTS)}
        assert found["Time per iteration"] == "14.6 ms"
        assert found["Communication hidden"] == "93 %"
        assert "Communication hidden" not in {tile.name for tile in tiles(usual_study()["results"])}


class TestCharts:
    def test_there_is_one_for_everything(self) -> None:
        assert [chart.id for chart in all_charts(make_sections(RESULTS))] == EVERY_CHART

    @pytest.mark.parametrize("results", [RESULTS, usual_study()["results"], RESULTS[3:4]], ids=["all", "old", "one"])
    def test_plotly_knows_every_word(self, results: Any) -> None:
        """The page's figures are plain values; plotly's own checks refuse a name or a value that it does not know."""
        for chart in all_charts(make_sections(results)):
            sizes = [len(choice.options) for choice in chart.choices]
            assert len(chart.views) == (sizes[0] if sizes else 1) * (sizes[1] if len(sizes) > 1 else 1)
            for view in compact(chart.spec)["views"]:
                go.Figure(data=view["data"], layout=view["layout"])

    def test_every_chart_has_a_table(self) -> None:
        for chart in all_charts(make_sections(RESULTS)):
            assert chart.table.rows, chart.id
            assert all(len(row) == len(chart.table.heads) for row in chart.table.rows), chart.id

    def test_the_split_is_drawn_as_it_adds_up(self) -> None:
        chart = next(chart for chart in all_charts(make_sections(RESULTS)) if chart.id == "split")
        ring = [r["label"] for r in RESULTS].index("ring")
        for view, whole in ((0, named("ring")["split"]["mean"]["step_s"] * 1e3), (1, 100.0)):
            bars = [trace for trace in chart.views[view].traces if trace.get("meta") == ring]
            assert sum(bar["x"][0] for bar in bars) == pytest.approx(whole)

    def test_bytes_switch_off_who_sends_nothing(self) -> None:
        chart = next(chart for chart in all_charts(make_sections(RESULTS)) if chart.id == "loss")
        names = [{trace["name"] for trace in view.traces} for view in chart.views]
        assert names[0] - names[2] == {"one-worker", "none"}

    def test_a_chart_of_one_strategy_begins_with_the_fastest_or_a_slow_one(self) -> None:
        assert RESULTS[shown_first(RESULTS)]["label"] == "overlap"
        only = [{**r, "stragglers": r["stragglers"] if r["label"] == "ring" else []} for r in RESULTS]
        assert only[shown_first(only)]["label"] == "ring"

    def test_thousands_of_operations_are_drawn_as_few(self) -> None:
        busy = measured("ring", KINDS["ring"])
        lane = busy["timeline"]["lanes"][0]["spans"]
        first = next(span for span in lane if span["kind"] == "op")
        tiny = [{**first, "begin_s": 1 + n * 1e-6, "end_s": 1 + (n + 1) * 1e-6, "bytes": 2} for n in range(5000)]
        busy["timeline"]["lanes"][0]["spans"] = [*lane, *tiny]
        chart = timeline([busy], 0)
        assert chart is not None
        assert sum(len(trace["x"]) for trace in chart.views[0].traces) < MAX_SPANS
        assert "together" in json.dumps(chart.views[0].traces)

    def test_lines_are_thinned(self) -> None:
        assert thinned(range(5)) == [0, 1, 2, 3, 4]
        kept = thinned(range(100_000))
        assert len(kept) == len(set(kept)) == MAX_POINTS
        assert (kept[0], kept[-1]) == (0, 99_999)

    def test_views_are_counted_as_choices_are(self) -> None:
        choices = [Choice("strategy", ("a", "b")), Choice("in", ("ms", "%", "s"))]
        chart = Chart("c", "C", "", [new_figure()] * 6, Table([], []), choices=choices, initial=4)
        assert chart.picks == [1, 1]
        assert chart.options_of(5) == ["b", "s"]
        assert chart.title_of(2) == "C: a, s"


class TestPage:
    def test_no_two_elements_share_a_name(self, tmp_path: Path) -> None:
        ids = re.findall(r'\bid="([^"]+)"', page_of(tmp_path, STUDY))
        assert len(ids) == len(set(ids))

    def test_what_is_missing_is_said_where_one_looks(self, tmp_path: Path) -> None:
        text = page_of(tmp_path, usual_study())
        for sentence in (
            "No split of a step and no timeline: these runs hold no spans",
            "No bytes per link",
            "The kernel&#39;s count of network bytes is not in these runs",
            "No resources over time",
            "nothing is shown over bytes",
        ):
            assert sentence in text
        assert 'id="split"' not in text
        assert 'class="missing"' not in page_of(tmp_path / "2", STUDY)

    def test_a_study_of_old_and_new_runs_names_those_without(self, tmp_path: Path) -> None:
        text = page_of(tmp_path, study_of([[result("ddp", 0.02)], [measured("ring", KINDS["ring"])]]))
        assert "Without spans, and so not shown here: ddp." in text
        assert 'id="split"' in text

    def test_one_run_alone(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", measured("ring", KINDS["ring"]))
        text = write_report([run], tmp_path / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
        assert "ring took 18.1 ms per iteration on 4 workers; worker 2 is slow in backward by 31" in text
        assert 'id="trade-off"' not in text
        assert "What measuring cost is not known here" not in text

    def test_nothing_that_was_measured_becomes_code(self, tmp_path: Path) -> None:
        attack = "</script><img src=x onerror=alert(1)>%{y}"
        row = measured("ring", KINDS["ring"], label=attack)
        row["timeline"]["lanes"][0]["spans"][0]["name"] = attack
        row["links"][0]["medium"] = attack
        row["stragglers"][0]["phase"] = attack
        text = page_of(tmp_path, study_of([[row], [measured("ddp", KINDS["ddp"])]], status="failed", error=attack))
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
    line = markdown_of([run]).splitlines()[2]
    assert line.startswith(r"| a\|b\_c\<i\>\&nbsp;\~x\~ \[l\](javascript:1) \$x\$ \@team \#1 | 4 |")


class TestFigures:
    def test_without_the_extra_it_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "playwright", None)
        with pytest.raises(UsageError, match=r"pip install 'paceline\[figures\]'"):
            write_figures([tmp_path], tmp_path / "figures")

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(UsageError, match="is a file; --figures names a folder"):
            write_figures([tmp_path], tmp_path / "file")

    def test_names_of_files_are_safe_and_differ(self) -> None:
        rows = [measured("ring", KINDS["ring"], label=label) for label in ("../a:b", "..\\a b", "con")]
        rows[0]["label"], rows[1]["label"] = "../a:b", "..\\a b"
        charts = all_charts(make_sections(study_of([[row] for row in rows])["results"]))
        names = [name for name, *_ in pictures._named(charts)]
        assert len(names) == len(set(names))
        assert all(re.fullmatch(r"[a-z0-9.=-]+", name) and ".." not in name for name in names)
        assert {"timeline-a-b", "timeline-a-b-2", "timeline-con"} <= set(names)


def test_the_slow_worker_of_the_samples_is_the_one_that_does_not_wait() -> None:
    waits = {row["rank"]: row["waiting_s"] for row in named("ring")["split"]["per_worker"]}
    assert min(waits, key=lambda rank: waits[rank]) == SLOW
