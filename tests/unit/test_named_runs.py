"""Commands that read stored runs find them by the same names, and write nothing where they cannot do all of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from command import run_command
from paceline.cli.output import wrap_long
from paceline.cli.trace import trace_lines
from paceline.measure.steps import StepRange
from paceline.measure.trace_file import TraceSummary
from paceline.runs import folder_of
from report_samples import result, usual_study, write_run, write_study


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    write_run(folder / "a-ring", result("ring", 0.01))
    write_study(folder / "b-study", usual_study(started="2026-01-03T10:00:00+0000"))
    return folder


@pytest.mark.parametrize("name", ["last", "last~1", "a-ring", "runs/a-ring", "runs"])
def test_a_report_takes_every_name(runs: Path, tmp_path: Path, name: str) -> None:
    done = run_command("report", name, "-o", "page.html")
    assert done.code == 0, done.err
    assert (tmp_path / "page.html").is_file()
    elsewhere = run_command("report", "a-ring", "--runs", str(runs), "-o", "page.html")
    assert elsewhere.code == 0, elsewhere.err


def test_a_trace_takes_every_name(runs: Path) -> None:
    assert "b-study' is a study" in run_command("trace", "last").err
    for name in ("last~1", "a-ring", "runs/a-ring"):
        assert "a-ring" in run_command("trace", name, "--out", str(runs)).err
    assert "did you mean 'a-ring'" in run_command("trace", "a-rng").err


def test_the_current_folder_is_not_one_of_the_runs(runs: Path) -> None:
    assert folder_of(".", runs) == Path()
    assert folder_of("../", runs) == Path("..")
    assert "neither a run nor a study" in run_command("trace", ".").err


def test_nothing_is_written_where_pictures_cannot_be_drawn(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "playwright", None)
    before = sorted(tmp_path.iterdir())
    done = run_command("report", str(runs), "-o", "page.html", "--figures", "figures", "--markdown", "table.md")
    assert done.code == 2
    assert "pip install 'paceline[figures]'" in done.err
    assert sorted(tmp_path.iterdir()) == before


def test_a_number_stays_with_its_percent_sign() -> None:
    line = "Worker 0 is slow in forward by 8.13 ms a step, 60 % of the others' own work (95 %: 55 to 64)."
    for width in range(20, 100):
        lines = wrap_long(line, width).splitlines()
        assert max(map(len, lines)) <= width
        assert not any(text.startswith("%") for text in lines)
        assert " ".join(lines) == line


def test_an_option_with_nothing_in_it_is_refused(runs: Path) -> None:
    done = run_command("run", "--inject", "", "--out", str(runs))
    assert done.code == 2
    assert "--inject was given without a value" in done.err


def test_a_trace_says_whom_the_profiler_saw(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    written = TraceSummary(
        path=tmp_path / "trace.json",
        steps=StepRange(0, 5),
        num_workers=2,
        num_events=9,
        num_arrows=3,
        num_profiled=2,
        clock_error_s=None,
    )
    assert "        with torch profiler events of 2 workers" in trace_lines(written)
