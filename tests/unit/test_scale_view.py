"""A scaling study in the terminal: tables that fit, sentences, the list of runs, and progress while it runs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from command import run_command
from paceline.cli.progress import StudyProgress
from paceline.recipe import Recipe
from paceline.results import Failure, changed
from paceline.results.study import ScaleResult
from paceline.study.base import Cell
from paceline.study.entries import make_entry
from report_samples import result, write_study
from scale_samples import rows, scale_study, scaled

REFUSED = Failure(label="stepwise:exact_every=3", point={"workers": 3, "mode": "strong"}, reason="it shares [bold]")
FAILED = Failure(label="ring", point={"workers": 4, "mode": "weak"}, repeat=2, error="worker 1 died")


def shown(tmp_path: Path, study: ScaleResult, width: int = 100) -> str:
    write_study(tmp_path / "runs" / "s", study)
    done = run_command("runs", "show", "s", "--out", str(tmp_path / "runs"), width=width)
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= width
    return str(done.out)


@pytest.mark.parametrize("width", [80, 100])
def test_tables_fit_and_say_everything(tmp_path: Path, width: int) -> None:
    costs = {"parameter-server:servers=2:mode=bounded:max_staleness=3+bf16": {2: 3000.0, 4: 12345.0}}
    results = [*rows("strong"), *rows("strong", costs=costs)[1:], *rows("weak")]
    text = shown(tmp_path, scale_study("strong", "weak", results=results), width)
    words = " ".join(text.split())
    assert "Strong scaling: the global batch of 100 is kept." in words
    assert "Weak scaling: every worker keeps its batch of 25." in words
    assert "overlap gains throughput up to 4 workers, the most tried: 1.26 times the throughput of 3" in words
    for head in ("ms/step", "speed-up", "eff.", "comm", "beyond", "comm ms"):
        assert head in text
    assert "3.48x" in text
    assert "One repeat" not in text


def test_figures_stand_in_their_columns(tmp_path: Path) -> None:
    lines = shown(tmp_path, scale_study("strong")).splitlines()
    heads = next(line for line in lines if "ms/step" in line and "strategy" in line).split()
    row = next(line for line in lines if line.split()[:2] == ["all-reduce", "2"])
    assert heads[:3] == ["strategy", "N", "ms/step"]
    assert "28.00 \N{PLUS-MINUS SIGN}1 %" in row
    assert all(head in heads for head in ("samples/s", "compute", "wait"))
    assert "1.43x" in row
    assert "71 %" in row
    assert row.split()[-2:] == ["8.00", "7.20"]  # beyond t_1/N, beside the communication


def test_how_far_from_not_agreeing_at_all(tmp_path: Path) -> None:
    costs = {"none": {2: 0.0, 4: 0.0}, "ring": {2: 2.0, 4: 2.0}}
    text = " ".join(shown(tmp_path, scale_study("strong", results=rows("strong", costs=costs))).split())
    assert "On 4 workers: time per step relative to workers that never synchronise (none, slowest worker" in text
    assert "): ring 1.2" in text


def test_one_repeat_is_called_one_repeat(tmp_path: Path) -> None:
    text = shown(tmp_path, scale_study("strong", repeats=1))
    assert "One repeat cannot tell a gain from noise" in text
    assert "\N{PLUS-MINUS SIGN}" not in text


def test_what_was_refused_and_what_failed_is_said(tmp_path: Path) -> None:
    text = " ".join(shown(tmp_path, scale_study("strong", refused=[REFUSED], failed=[FAILED])).split())
    assert "stepwise:exact_every=3 on 3 workers (strong) cannot run: it shares [bold]." in text
    assert "ring on 4 workers (weak) failed in repeat 2: worker 1 died." in text


def test_without_spans_or_without_the_one_worker(tmp_path: Path) -> None:
    bare = [changed(row, split=None) for row in rows("strong")]
    assert "3.48x" in shown(tmp_path / "bare", scale_study("strong", results=bare))
    alone = [row for row in rows("strong") if row.workers > 1]
    text = shown(tmp_path / "alone", scale_study("strong", results=alone))
    assert "one-worker" not in text
    assert "\N{EN DASH}" in text


def test_a_study_that_was_interrupted_shows_what_it_has(tmp_path: Path) -> None:
    some = scaled(rows("strong")[:3])
    assert "interrupted" in shown(tmp_path / "some", scale_study("strong", results=some, status="interrupted"))
    nothing = scale_study("strong", results=[], status="interrupted")
    assert "Nothing was measured." in shown(tmp_path / "nothing", nothing)


def test_the_list_names_the_point_with_most_throughput(tmp_path: Path) -> None:
    write_study(tmp_path / "runs" / "s", scale_study("strong", "weak"))
    listed = run_command("runs", "--out", str(tmp_path / "runs"))
    line = next(line for line in listed.out.splitlines() if "study" in line)
    assert "fastest: overlap" in line
    assert "11.50" in line


def test_two_studies_are_compared_point_by_point(tmp_path: Path) -> None:
    faster = {"overlap": {2: 0.5, 4: 0.5}}
    write_study(tmp_path / "a", scale_study("strong", "weak"))
    results = [row for mode in ("strong", "weak") for row in rows(mode, costs=faster)]
    write_study(tmp_path / "b", scale_study("strong", "weak", results=results))
    done = run_command("runs", "diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json", "-")
    assert done.code == 0, done.err
    found = {row["label"]: row for row in json.loads(done.out)["rows"]}
    assert len(found) == 6
    row = found["overlap, workers 4, mode weak"]
    assert row["workers"] == [4, 4]
    assert row["ratio"] == pytest.approx(40.5 / 41.5)
    assert found["overlap, workers 4, mode strong"]["ratio"] == pytest.approx(10.5 / 11.5)


EVENT = {"kind": "progress", "rank": 0, "step": 5, "total_steps": 10, "epoch": 2, "iteration": 3, "loss": 2.5}
EVENT |= {"accuracy": 0.5, "samples_per_s": 1234.5, "in_comm_percent": 10.0}


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_names_points_and_warnings(is_terminal: bool) -> None:
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=is_terminal, legacy_windows=False)
    recipe = Recipe()
    entry = make_entry("ring", recipe)
    keys = [(key, repeat) for repeat in (0, 1) for key in ("a", "b")]
    cells = [Cell(key=key, recipe=recipe, entry=entry, folder_name=key, repeat=repeat) for key, repeat in keys]
    with StudyProgress(console, has_bar_per_entry=False) as following:
        following.planned(cells)
        following.started(entry, 0)
        following.event(entry, EVENT)
        following.done(entry, 0, result("ring", 0.01))
        following.started(entry, 1)
        following.event(entry, {"kind": "warning", "text": "failed: worker 1 died"})
    text = output.getvalue()
    assert "ring (1 of 2): " in text
    assert "ring: failed: worker 1 died" in text
    assert ("1 of 4 runs" in text) == is_terminal
