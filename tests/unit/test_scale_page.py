"""The page of a scaling study: charts that plotly accepts, tables, sentences, and nothing that breaks it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from paceline.present import collect, page_of
from paceline.present.chart import Chart, compact
from paceline.present.charts.registry import make_section
from paceline.present.charts.scale import IDEAL, labels_of
from paceline.present.text_renderers import as_markdown
from paceline.results import Failure, Row, changed
from paceline.results.study import ScaleResult
from report_samples import result, write_report, write_run, write_study
from scale_samples import rows, scale_study, scaled

ATTACK = "</script><img src=x onerror=alert(1)>%{y}"
CHARTS = ["time-workers", "beyond-workers", "speedup-workers", "efficiency-workers", "communication-workers", "split"]


def bare(mode: str) -> list[Row]:
    return [changed(row, split=None) for row in rows(mode)]


def make_charts(given: list[Row]) -> list[Chart]:
    return make_section("scale", "Over workers", given).charts


STUDIES = {
    "strong": scale_study("strong"),
    "both": scale_study("strong", "weak"),
    "one repeat": scale_study("weak", repeats=1),
    "without spans": scale_study("strong", results=bare("strong")),
    "without one worker": scale_study("strong", results=[row for row in rows("strong") if row.workers > 1]),
    "one worker alone": scale_study("strong", results=rows("strong")[:1]),
    "a label that attacks": scale_study("strong", results=rows("strong", costs={ATTACK: {2: 3.0, 4: 4.0}})),
}


def html_of(folder: Path, study: ScaleResult, name: str = "study") -> str:
    path = write_study(folder / name, study)
    text = write_report([path], folder / f"{name}.html").read_text(encoding="utf-8")
    return text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_plotly_knows_every_word(study: ScaleResult) -> None:
    for chart in make_charts(study.results):
        sizes = [len(choice.options) for choice in chart.choices]
        assert len(chart.views) == (sizes[0] if sizes else 1) * (sizes[1] if len(sizes) > 1 else 1)
        for view in compact(chart.spec)["views"]:
            go.Figure(data=view["data"], layout=view["layout"])
        assert chart.table.rows, chart.id
        assert all(len(row) == len(chart.table.heads) for row in chart.table.rows), chart.id


def test_there_is_a_chart_for_everything() -> None:
    assert [chart.id for chart in make_charts(STUDIES["both"].results)] == CHARTS
    without = [chart.id for chart in make_charts(STUDIES["without spans"].results)]
    assert without == [name for name in CHARTS if name not in ("communication-workers", "split")]
    alone = [chart.id for chart in make_charts(STUDIES["without one worker"].results)]
    assert alone == ["time-workers", "communication-workers", "split"]


def test_every_line_begins_at_the_one_worker() -> None:
    time, *_ = make_charts(STUDIES["both"].results)
    for view in time.views:
        ideal, *lines = view.traces
        assert ideal["name"] == IDEAL
        assert [line["name"] for line in lines] == labels_of(STUDIES["both"].results)
        for line in lines:
            assert line["x"] == [1, 2, 3, 4]
            assert line["y"][0] == pytest.approx(40.0)
    strong, weak = (view.traces[0]["y"] for view in time.views)
    assert strong == pytest.approx([40, 20, 40 / 3, 10])
    assert weak == pytest.approx([40.0] * 4)


def test_what_is_drawn_is_what_was_measured() -> None:
    charts = {chart.id: chart for chart in make_charts(STUDIES["strong"].results)}
    overlap = labels_of(STUDIES["strong"].results).index("overlap")

    def last(name: str, dashes: int = 0) -> float:
        traces = [t for t in charts[name].views[0].traces if t.get("meta") == overlap and t["type"] == "scatter"]
        return float(traces[dashes]["y"][-1])

    assert last("efficiency-workers") == pytest.approx(100 * 10 / 11.5)
    assert last("speedup-workers") == pytest.approx(40 / 11.5)
    assert last("beyond-workers") == pytest.approx(1.5)
    assert last("beyond-workers", 1) == pytest.approx(1.5)  # measured
    assert last("communication-workers") == pytest.approx(100 * 1.35 / 11.5)


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_the_page(tmp_path: Path, study: ScaleResult) -> None:
    text = html_of(tmp_path, study)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert "<img" not in text
    specs = json.loads(re.search(r'id="chart-specs">(.*?)</script>', text, re.DOTALL)[1])
    assert "<img" not in json.dumps(specs)
    assert not re.search(r"onerror=alert\(1\)(>|&gt;)%\{y\}", json.dumps(specs))


def test_the_page_says_it_in_words(tmp_path: Path) -> None:
    text = html_of(tmp_path, STUDIES["both"])
    for sentence in (
        "Strong scaling: overlap scales best, 3.48 times one worker on 4 workers (efficiency 87 %). Weak scaling:",
        "gather-scatter gains throughput up to 2 workers; 3 have 0.93 times the throughput of 2",
        "overlap gains throughput up to 4 workers, the most tried",
        "Beyond t_1/N",
        "gather-scatter on 4 30.00 ms (communication 27.00, waiting 3.00, the rest 0.00)",
        "Speed, 4 workers (strong)",
        "the global batch of 100 is kept",
        "every worker keeps its batch of 25",
    ):
        assert sentence in text, sentence


def test_what_was_refused_and_what_failed_is_said(tmp_path: Path) -> None:
    where: dict[str, Any] = {"label": "ring", "point": {"workers": 4, "mode": "strong"}}
    refused, failed = Failure(**where, reason="no"), Failure(**where, repeat=1, error="worker 2 died")
    folder = write_study(tmp_path / "study", scale_study("strong", refused=[refused], failed=[failed]))
    found = {finding.title: finding for finding in page_of(collect([folder])).findings}
    assert found["Refused"].text == "ring on 4 workers (strong) cannot run: no."
    assert found["Failed"].text == "ring on 4 workers (strong) failed in repeat 1: worker 2 died."
    assert found["Failed"].kind == "problem"


def test_an_interrupted_study_says_how_far_it_came(tmp_path: Path) -> None:
    some = scaled(rows("strong")[:4])
    text = html_of(tmp_path, scale_study("strong", results=some, status="interrupted", num_points=10))
    assert "This study was interrupted. Measured until then: 4 of 10 rows" in text


def test_markdown_has_a_line_per_point(tmp_path: Path) -> None:
    path = write_study(tmp_path / "study", STUDIES["both"])
    text = as_markdown(page_of(collect([path])))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 * 2 + 20
    assert text.index("Strong scaling: the global batch") < text.index(
        "Weak scaling: every worker keeps its batch of 25"
    )
    cells = [cell.strip() for cell in lines[-1].strip("| ").split(" | ")]
    assert cells[:4] == ["overlap", "4", "100", "41.50"]


def test_beside_other_runs_its_points_are_rows(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", STUDIES["both"])
    run = write_run(tmp_path / "run", result("ddp", 0.02))
    text = write_report([study, run], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "overlap on 4 workers, mode weak" in text
    assert "with different workloads: no fastest strategy" in text
