"""What is shown of a sweep: the table in a terminal, sentences, the page's charts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sweep_samples as samples
from command import run_command
from paceline.present import collect, page_of
from paceline.present.html import write_page
from paceline.present.studies.sweep import sweep_findings
from paceline.present.text_renderers import as_markdown
from paceline.results import Failure, changed
from paceline.results.study import SweepResult
from report_samples import result, study_of, write_study

FAILURES = [
    Failure(
        label="batch_size 8192",
        point={"train.batch_size": 8192},
        remedy="",
        status="refused",
        reason="needs 9.10 GB, but 8.00 GB are available here; --micro-batch-size 256 would need 4.00 GB",
    ),
    Failure(
        label="batch_size 2048",
        point={"train.batch_size": 2048},
        remedy="",
        status="failed",
        reason="worker 1 died",
    ),
]


def charts_of(value: SweepResult, folder: Path) -> dict[str, Any]:
    section = page_of(collect([samples.write(folder / "study", value)])).make_sections()[0]
    assert section.title == "What was varied"
    return {chart.id: chart for chart in section.charts}


@pytest.mark.parametrize("make", [samples.batches, samples.grid])
@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits_and_has_every_point(tmp_path: Path, make: Any, width: int) -> None:
    value = make(failures=FAILURES)
    samples.write(tmp_path / "runs" / "one", value)
    said = run_command("runs", "show", "one", "--out", str(tmp_path / "runs"), width=width)
    assert said.code == 0
    assert max(len(line) for line in said.out.splitlines()) <= width
    table = said.out.split("ms/step: mean")[0]
    assert "test" in table
    assert "samples/s" in table
    for row in value.results:
        assert any(str(row.point["train.batch_size"]) in line for line in table.splitlines())
    assert "batch_size 8192 was refused: needs 9.10 GB" in " ".join(said.out.split())
    assert "batch_size 2048 failed: worker 1 died." in said.out
    listed = run_command("runs", "--out", str(tmp_path / "runs"), width=width)
    assert "one" in listed.out


def test_sentences_say_what_large_batches_cost_and_what_brings_it_back() -> None:
    rows = samples.batches().results
    findings = sweep_findings(rows, repeats=1)
    assert [finding.kind for finding in findings] == ["headline", "finding", "finding", "finding", "caution"]
    assert [finding.text for finding in findings] == [
        "Most samples per second: batch_size 512 (1,707).",
        "Highest test accuracy: batch_size 32 and 1 more (90.0 %).",
        "From batch 32 to 512: 5.33 times the samples per second, -20.0 points of test accuracy with equal steps.",
        "Best remedy at batch 512: linear, +16.0 points.",
        "One repeat cannot tell small differences from noise; --repeats 3 gives intervals.",
    ]
    assert sweep_findings(rows, repeats=2) == findings[:-1]
    assert sweep_findings([samples.row({"train.batch_size": 32})], repeats=1) == []
    assert not any("From batch" in finding.text for finding in sweep_findings(samples.grid().results, repeats=1))


def test_one_key_is_drawn_as_lines_a_remedy_each(tmp_path: Path) -> None:
    charts = charts_of(samples.batches(), tmp_path)
    assert list(charts) == ["sweep-time", "sweep-learning", "sweep-memory"]
    learning = charts["sweep-learning"].views[0]
    assert [trace["name"] for trace in learning.traces] == ["as the recipe says", "linear"]
    assert learning.traces[0]["x"] == [32, 128, 512]
    assert learning.traces[0]["y"] == pytest.approx([0.9, 0.8, 0.7])
    assert learning.layout["xaxis"]["type"] == "log"
    assert charts["sweep-time"].views[0].traces[1]["y"] == pytest.approx(
        [result.iteration_s.mean * 1e3 for result in samples.batches().results[1::2]]
    )
    assert charts["sweep-memory"].table.rows[0][1:] == ["310", "300", "+3 %"]


def test_words_are_drawn_as_places(tmp_path: Path) -> None:
    rows = [samples.row({"cluster.bandwidth": rate}) for rate in ("", "100mbit", "1gbit")]
    axis = charts_of(samples.study(rows), tmp_path)["sweep-time"].views[0].layout["xaxis"]
    assert (axis["type"], axis["ticktext"]) == ("linear", ["none", "100mbit", "1gbit"])


def test_two_keys_are_drawn_as_a_grid_with_holes(tmp_path: Path) -> None:
    value = samples.grid()
    value = changed(value, results=[value.results[0], *value.results[2:]])
    chart = charts_of(value, tmp_path)["sweep-grid"]
    [trace] = chart.views[0].traces
    assert trace["type"] == "heatmap"
    assert trace["z"][0][1] is None
    assert trace["text"][0][1] == "\N{EN DASH}"
    assert (len(trace["z"]), len(trace["z"][0])) == (2, 3)
    assert len(chart.views) == len(chart.choices[0].options)


def test_three_keys_have_tables_and_bars(tmp_path: Path) -> None:
    rows = [samples.row({"train.batch_size": 8, "optimizer.lr": lr, "workers": 2}) for lr in (0.1, 0.2)]
    assert list(charts_of(samples.study(rows), tmp_path)) == ["sweep-memory"]


def test_the_page_says_what_was_varied_and_what_is_missing(tmp_path: Path) -> None:
    value = samples.batches(failures=FAILURES, status="failed", error="batch_size 2048: worker 1 died", num_points=8)
    folder = samples.write(tmp_path / "study", value)
    material = collect([folder])
    page = write_page(page_of(material), tmp_path / "report.html").read_text()
    assert "Rows differ in train.batch_size." in page
    assert "Most samples per second: batch_size 512" in page
    said = [finding.text for finding in page_of(material).findings]
    assert any("6 of 8 rows" in sentence for sentence in said)
    assert "batch_size 2048 failed: worker 1 died." in said
    assert any(sentence.startswith("batch_size 8192 was refused: needs 9.10 GB") for sentence in said)
    assert "batch\\_size 32" in as_markdown(page_of(material))


def test_other_studies_have_no_such_section(tmp_path: Path) -> None:
    rows = [changed(row, point=None, remedy=None) for row in samples.batches().results]
    folder = write_study(tmp_path / "study", changed(study_of([[result("ring", 0.01)]]), results=rows))
    assert page_of(collect([folder])).make_sections()[0].id == "speed"
