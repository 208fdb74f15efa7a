"""Two runs or studies side by side, on made-up results: ratios, intervals, what differs, and the gate."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from command import run_command
from paceline.errors import UsageError
from paceline.results import Split, SplitMean, changed, to_json
from paceline.runs import read
from paceline.study.diff import diff
from report_samples import ENVIRONMENT, recipe, result, study_of, write_run, write_study

PARTS = {"step_s": 0.02, "compute_s": 0.01, "communication_s": 0.004, "overlap_s": 0.001}
PARTS |= {"waiting_s": 0.003, "data_s": 0.001, "rest_s": 0.001}


def split_of(parts: dict[str, float]) -> Split:
    facts = {"overlap_fraction": 0.2, "bandwidth_bytes_per_s": None, "phases_s": {}, "caused_waiting_s": 0.0}
    return Split(mean=SplitMean(**parts, **facts), per_worker=[])


def study(folder: Path, times: dict[str, list[float]], **changes: Any) -> Path:
    rows = [[result(label, time_s) for time_s in repeats] for label, repeats in times.items()]
    return write_study(folder, study_of(rows, **changes))


def run_of(folder: Path, label: str, steps: list[float], **changes: Any) -> Path:
    """A stored run whose two workers took those times; the first step is warm-up."""
    mean = sum(steps[1:]) / (len(steps) - 1)
    row = result(label, 0.01, warmup_steps=1, timed_steps=len(steps) - 1, **changes)
    row = changed(row, iteration_s=changed(row.iteration_s, mean=mean))
    path = write_run(folder, row)
    (path / "workers").mkdir()
    for rank in range(2):
        shift = 0.001 * (1 if rank else -1)
        lines = [{"kind": "head", "rank": rank}]
        lines += [{"kind": "step", "step": step, "iteration_s": value + shift} for step, value in enumerate(steps)]
        (path / "workers" / f"{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def compared(a: Path, b: Path, **options: Any) -> dict[str, Any]:
    return to_json(diff(read(a), read(b), **options))


def around(value: float, *, num_steps: int = 200, seed: int = 0) -> list[float]:
    generator = random.Random(seed)
    return [9.0, *(value * generator.gauss(1.0, 0.02) for _ in range(num_steps))]


def test_studies_are_compared_by_repeats(tmp_path: Path) -> None:
    a = study(tmp_path / "a", {"ring": [0.010, 0.0101, 0.0099], "ddp": [0.020, 0.0201, 0.0199], "gossip": [0.01] * 3})
    b = study(tmp_path / "b", {"ring": [0.012, 0.0121, 0.0119], "ddp": [0.0200, 0.0202, 0.0198], "none": [0.01] * 3})
    found = compared(a, b)
    ring, ddp = found["rows"]
    assert (ring["label"], ring["verdict"], ring["interval_from"]) == ("ring", "slower", "repeats")
    assert ring["ratio"] == pytest.approx(1.2)
    assert ring["interval95"][0] < 1.2 < ring["interval95"][1]
    assert (ddp["verdict"], ddp["gate"]) == ("no difference", None)
    assert (found["only_a"], found["only_b"], found["gate"]) == (["gossip"], ["none"], None)
    assert (found["recipe"], found["environment"]) == ({}, {})


def test_runs_are_compared_by_their_steps(tmp_path: Path) -> None:
    a = run_of(tmp_path / "a", "ring", around(0.010))
    b = run_of(tmp_path / "b", "ring", around(0.011, seed=1))
    (row,) = compared(a, b)["rows"]
    assert (row["verdict"], row["interval_from"]) == ("slower", "steps")
    assert row["interval95"][0] < row["ratio"] < row["interval95"][1]
    assert row["ratio"] == pytest.approx(1.1, rel=0.01)  # the first step, of nine seconds, is left out


def test_a_study_of_one_repeat_finds_the_steps_of_its_runs(tmp_path: Path) -> None:
    for name, value in (("a", 0.010), ("b", 0.020)):
        folder = study(tmp_path / name, {"ring": [value], "ddp": [value]})
        (folder / "runs").mkdir()
        run_of(folder / "runs" / "ring-1", "ring", around(value))
    ring, ddp = compared(tmp_path / "a", tmp_path / "b")["rows"]
    assert (ring["interval_from"], ring["verdict"]) == ("steps", "slower")
    assert (ddp["interval_from"], ddp["interval95"], ddp["verdict"]) == (None, None, "cannot tell")


def test_single_runs_need_not_have_the_same_strategy(tmp_path: Path) -> None:
    a, b = (run_of(tmp_path / label, label, around(0.01)) for label in ("ring", "ddp"))
    (row,) = compared(a, b)["rows"]
    assert (row["label"], row["labels"]) == ("ring to ddp", ["ring", "ddp"])


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    a = study(tmp_path / "a", {"ring": [0.01], "ddp": [0.01]})
    b = study(tmp_path / "b", {"gossip": [0.01], "none": [0.01]})
    with pytest.raises(
        UsageError, match="have no strategy in common: the first has ring, ddp, and the second gossip, none"
    ):
        compared(a, b)
    unfinished = write_run(tmp_path / "c", None, status="failed")
    with pytest.raises(UsageError, match="'c' has no results to compare, because it is failed"):
        compared(a, unfinished)


@pytest.mark.parametrize(
    ("factor", "spread", "limit", "gate"),
    [
        (1.2, 0.001, 5.0, "failed"),
        (1.02, 0.001, 5.0, "passed"),
        (0.8, 0.001, 5.0, "passed"),
        (1.2, 0.2, 5.0, "cannot tell"),
        (1.06, 0.02, 5.0, "cannot tell"),
        (1.2, 0.001, 30.0, "passed"),
    ],
)
def test_the_gate_asks_for_an_interval(tmp_path: Path, factor: float, spread: float, limit: float, gate: str) -> None:
    def repeats(middle: float) -> list[float]:
        return [middle, middle * (1 + spread), middle * (1 - spread)]

    a = study(tmp_path / "a", {"ring": repeats(0.01)})
    b = study(tmp_path / "b", {"ring": repeats(0.01 * factor)})
    found = compared(a, b, most_percent=limit)
    assert (found["gate"], found["rows"][0]["gate"]) == (gate, gate)


def test_one_slow_row_closes_the_gate(tmp_path: Path) -> None:
    a = study(tmp_path / "a", {"ring": [0.01, 0.01], "ddp": [0.01, 0.01], "none": [0.01, 0.02]})
    b = study(tmp_path / "b", {"ring": [0.01, 0.01], "ddp": [0.02, 0.02], "none": [0.02, 0.01]})
    found = compared(a, b, most_percent=5.0)
    assert [row["gate"] for row in found["rows"]] == ["passed", "failed", "cannot tell"]
    assert found["gate"] == "failed"


def test_recipes_and_machines_that_differ(tmp_path: Path) -> None:
    other = recipe(**{"train.batch_size": 50, "optimizer.lr": 0.5})
    machine = {**ENVIRONMENT, "num_cores": 2, "torch": "2.14.0", "load_average": [9.0, 9.0, 9.0], "gpus": ["H1"]}
    plain = recipe().to_dict()
    del plain["measure"]  # a study from before there was such a section
    a = study(tmp_path / "a", {"ring": [0.01]}, recipe=plain)
    b = study(tmp_path / "b", {"ring": [0.01]}, recipe=other.to_dict(), environment=machine)
    found = compared(a, b)
    assert found["recipe"] == {"optimizer.lr": [0.1, 0.5], "train.batch_size": [None, 50]}
    assert found["environment"] == {"torch": ["2.13.0", "2.14.0"], "num_cores": [8, 2], "gpus": [[], ["H1"]]}


def test_splits_are_compared_part_by_part(tmp_path: Path) -> None:
    double = {part: 2 * value for part, value in PARTS.items()}
    a = run_of(tmp_path / "a", "ring", around(0.01), split=split_of(PARTS))
    b = run_of(tmp_path / "b", "ring", around(0.02), split=split_of(double))
    (row,) = compared(a, b)["rows"]
    assert row["split"]["communication_s"] == [0.004, 0.008]
    assert list(row["split"]) == list(PARTS)
    without = run_of(tmp_path / "c", "ring", around(0.02), split=None)
    assert compared(a, without)["rows"][0]["split"] is None
    shown = run_command("runs", "diff", str(a), str(b)).out
    assert "ring A" in shown
    assert "communication" in shown
    assert "8.00" in shown


def gated(a: Path, b: Path, *options: str) -> tuple[int, str]:
    done = run_command("runs", "diff", str(a), str(b), *options)
    return done.code, f"{done.out}{done.err}"


def test_exit_codes_of_the_gate(tmp_path: Path) -> None:
    a = study(tmp_path / "a", {"ring": [0.01, 0.01, 0.01]})
    slow = study(tmp_path / "slow", {"ring": [0.02, 0.02, 0.0201]})
    unsure = study(tmp_path / "unsure", {"ring": [0.01, 0.02, 0.01]})
    assert gated(a, slow)[0] == 0  # nobody asked for a gate
    code, text = gated(a, slow, "--fail-if-slower", "5%")
    assert code == 1
    assert "ring: is slower by more than 5 %" in text
    assert "paceline: slower by more than 5 %: ring" in text
    code, text = gated(a, slow, "--fail-if-slower", "150%")
    assert code == 0
    assert "ring: is not slower by more than 150 %" in text
    code, text = gated(a, unsure, "--fail-if-slower", "5%")
    assert code == 0
    assert "uncertain" in text
    assert gated(a, unsure, "--fail-if-slower", "5%", "--strict")[0] == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--fail-if-slower", "5"], "'5' is not a percentage such as 5%"),
        (["--fail-if-slower", "-5%"], "is not a percentage"),
        (["--fail-if-slower", "nan%"], "is not a percentage"),
        (["--strict"], "--strict needs --fail-if-slower"),
        (["--json", "nowhere/x.json"], "does not exist"),
    ],
)
def test_wrong_requests_are_2(tmp_path: Path, options: list[str], sentence: str) -> None:
    a = study(tmp_path / "a", {"ring": [0.01]})
    code, text = gated(a, a, *options)
    assert code == 2
    assert sentence in text.replace("\n", " ")
    assert gated(a, tmp_path / "missing")[0] == 2


def test_a_diff_as_json(tmp_path: Path) -> None:
    a, b = (study(tmp_path / name, {"ring": [value, value]}) for name, value in (("a", 0.01), ("b", 0.02)))
    done = run_command("runs", "diff", str(a), str(b), "--json", "-", "--fail-if-slower", "5%")
    assert done.code == 1
    found = json.loads(done.out)
    assert (found["gate"], found["a"]["name"], found["b"]["kind"]) == ("failed", "a", "study")


@pytest.mark.parametrize("width", [80, 100])
def test_a_diff_fits_and_shows_text_as_it_is(tmp_path: Path, width: int) -> None:
    label = "odd.py:[/b]Way:option=long"
    a = study(tmp_path / "a[bold]", {label: [0.01, 0.02], "gather-scatter": [0.01, 0.01]})
    b = study(
        tmp_path / "b", {label: [0.01, 0.02], "gather-scatter": [0.01, 0.01]}, recipe=recipe(name="[i]").to_dict()
    )
    done = run_command("runs", "diff", str(a), str(b), width=width)
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= width
    assert "gather-scatter" in done.out
    assert "a[bold]" in done.out
    assert "[/b]" in done.out
    assert "[i]" in done.out
