"""What a notebook shows of a run and of a study: a short table with where the time went, and the findings."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.api import RunView, StudyView
from paceline.results import Split, SplitMean, WorkerSplit, changed, to_json
from report_samples import result, study_of, usual_study

PARTS = {"compute_s": 0.5, "communication_s": 0.5, "overlap_s": 0.0, "waiting_s": 1.0, "data_s": 0.0, "rest_s": 0.0}
MEAN = SplitMean(
    **PARTS, step_s=2.0, overlap_fraction=0.25, bandwidth_bytes_per_s=None, phases_s={}, caused_waiting_s=0.0
)


def split(num_workers: int) -> Split:
    return Split(mean=MEAN, per_worker=[WorkerSplit(**MEAN, rank=rank) for rank in range(num_workers)])


def test_a_run_is_a_dict_that_prints_as_a_table() -> None:
    run = changed(result("ring", 0.01), split=split(4))
    shown = RunView(run, Path("runs/<b>x"))
    assert shown == {**to_json(run), "folder": "runs/<b>x"}
    assert json.loads(json.dumps(shown)) == shown
    assert shown["iteration_s"]["mean"] == run.iteration_s.mean
    lines = str(shown).splitlines()
    assert str(shown) == repr(shown)
    head, rows = lines[0].split(), lines[1:5]
    assert head[head.index("Overlap") : head.index("Overlap") + 2] == ["Overlap", "Waiting"]
    assert all("25 %     50 %" in row for row in rows)
    assert lines[5] == "ring: 10.1 ms per step on 4 workers."
    assert lines[-1] == "run runs/<b>x"
    page = shown._repr_html_()
    assert "<b>x" not in page
    assert page.count("<tr>") == 1 + 4


def test_a_run_that_was_not_measured_has_dashes() -> None:
    lines = str(RunView(changed(result("ring", 0.01), split=None), Path("x"))).splitlines()
    assert lines[1].count("\N{EN DASH}") == 2


def test_a_study_shows_overlap_and_waiting() -> None:
    study = study_of([[result("ring", 0.01)], [result("ddp", 0.01)]])
    ring, ddp = study.results
    study = changed(study, results=[changed(ring, split=split(4)), changed(ddp, split=None)])
    shown = StudyView(study, Path("x"))
    lines = repr(shown).splitlines()
    head = lines[0].split()
    assert head[head.index("Overlap") + 1] == "Waiting"
    assert "25 %     50 %" in lines[1]
    assert lines[2].count("\N{EN DASH}") == 2
    assert "Fastest exact strategy: ring, 10.1 ms per step on 4 workers (one repeat)." in lines
    assert lines[-1] == "study x"
    assert [row["strategy"] for row in shown.rows] == ["ring", "ddp"]
    assert shown["results"][0]["label"] == "ring"
    assert len(shown) == len(list(shown))


def test_the_notebook_says_what_the_terminal_says() -> None:
    study = study_of([[result("ring", 0.01)], [result("ddp", 0.02)]])
    shown = StudyView(study, Path("x"))
    caution = "One repeat cannot tell small differences from noise; --repeats 3 gives intervals."
    assert caution in repr(shown).splitlines()
    assert f"<p>{caution}</p>" in shown._repr_html_()


def test_everything_by_key_is_a_plain_value(tmp_path: Path) -> None:
    table = StudyView(usual_study(), tmp_path)
    assert json.loads(json.dumps(table["results"]))[2]["label"] == "ring"
    assert json.loads(json.dumps(dict(table)))["folder"] == str(tmp_path)
    assert table["results"][2] == to_json(table.study.results[2])
