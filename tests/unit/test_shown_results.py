"""What a notebook shows of a run and of a study: a short table, with where the time went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.api import Comparison, RunResult
from report_samples import result, study_of

SPLIT = {"overlap_fraction": 0.25, "waiting_s": 1.0, "step_s": 2.0}


def split(num_workers: int) -> dict[str, Any]:
    return {"mean": SPLIT, "per_worker": [{"rank": rank, **SPLIT} for rank in range(num_workers)]}


def test_a_run_is_a_dict_that_prints_as_a_table() -> None:
    plain = {**result("ring", 0.01), "folder": "runs/<b>x"}
    plain["split"] = split(len(plain["per_worker"]))
    shown = RunResult(plain)
    assert shown == plain
    assert json.loads(json.dumps(shown)) == json.loads(json.dumps(plain))
    lines = str(shown).splitlines()
    assert str(shown) == repr(shown)
    assert len(lines) == len(plain["per_worker"]) + 2
    assert lines[0].split()[-2:] == ["Overlap", "Waiting"]
    assert lines[1].endswith("25 %     50 %")
    assert "runs/<b>x" in lines[-1]
    assert "<b>" not in shown._repr_html_()
    assert shown._repr_html_().count("<tr>") == len(plain["per_worker"]) + 1


def test_a_run_that_was_not_measured_has_dashes() -> None:
    shown = RunResult({**result("ring", 0.01), "split": None, "folder": "x"})
    assert str(shown).splitlines()[1].endswith("\N{EN DASH}")


def test_a_study_shows_overlap_and_waiting() -> None:
    study = study_of([[result("ring", 0.01)], [result("ddp", 0.01)]])
    study["results"][0]["split"] = split(2)
    study["results"][1]["split"] = None
    lines = repr(Comparison(study, Path("x"))).splitlines()
    assert lines[0].split()[-2:] == ["Overlap", "Waiting"]
    assert lines[1].split()[-4:] == ["25", "%", "50", "%"]
    assert lines[2].endswith("\N{EN DASH}")
