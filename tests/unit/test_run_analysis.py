"""What a run's files say in its result, over repeats and in the terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from made_up import made_up_worker
from made_up_lines import even_steps
from paceline.present import page_in_memory
from paceline.present.measurement_findings import stragglers
from paceline.present.page_parts import Page
from paceline.present.studies.run import run_facts
from paceline.present.terminal import show
from paceline.recipe import Recipe
from paceline.results import RunResult, Straggler, changed, convert, encode, to_json
from paceline.results.worker_report import WorkerReport
from paceline.study.entries import make_entry
from paceline.study.run_analysis import analyse_run, stragglers_of_most_repeats, timed_steps
from paceline.study.run_results import combine, run_result
from report_samples import study_of

NUM_STEPS = 60
USUAL = {"data": 0.5, "forward": 1.0, "backward": 2.0, "optimizer": 0.5}
RECIPE = Recipe().replace({"workers": 2})


def write_lines(folder: Path, *own: dict[str, float]) -> Path:
    """Files of workers that differ in their own work alone."""
    (folder / "workers").mkdir(parents=True)
    for rank, seconds in enumerate(own):
        lines = [{"kind": "head", "rank": rank}, *even_steps(NUM_STEPS, seconds), {"kind": "end", "dropped": 0}]
        (folder / "workers" / f"{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def made_up_workers(count: int = 2) -> list[dict[str, Any]]:
    link = {"to": 1, "bytes": 5, "predicted_bytes": 5, "medium": "network"}
    return [made_up_worker(rank, [10.0] * NUM_STEPS, links=[{"from": rank, **link}]) for rank in range(count)]


def result_of(files: Path | None, label: str = "ring") -> RunResult:
    workers = [convert(worker, WorkerReport) for worker in made_up_workers()]
    measured = analyse_run(RECIPE, workers, files)
    return changed(run_result(RECIPE, make_entry("ring", RECIPE), workers, 9.0, measured), label=label)


@pytest.fixture
def result(tmp_path: Path) -> RunResult:
    return result_of(write_lines(tmp_path / "run", USUAL, USUAL | {"forward": 3.0}))


def test_a_result_holds_what_the_files_say(result: RunResult) -> None:
    mean = result["split"]["mean"]
    assert (mean["step_s"], mean["data_s"], mean["compute_s"]) == pytest.approx((10.0, 0.5, (3.5 + 5.5) / 2))
    assert [row["waiting_s"] for row in result["split"]["per_worker"]] == pytest.approx([2.0, 0.0])
    assert [(one["rank"], one["phase"]) for one in result["stragglers"]] == [(1, "forward")]
    assert result["timeline"]["first_step"] == 29
    assert [(link["from"], link["bytes"]) for link in result["links"]] == [(0, 5), (1, 5)]
    # As a ring would, 1000 bytes of an all-reduce between two go over the wire once, in the four seconds that are left.
    assert result["split"]["per_worker"][1]["bandwidth_bytes_per_s"] == pytest.approx(1000 / 4.0)
    assert json.loads(encode(result)) == to_json(result)


def test_without_files_nothing_is_said() -> None:
    result = result_of(None)
    assert (result["split"], result["stragglers"], result["timeline"]) == (None, None, None)


def test_files_without_spans_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "0.jsonl").write_text('{"step": 0, "iteration_s": 1.0}\n')
    assert result_of(tmp_path)["split"] is None


@pytest.mark.parametrize(
    ("warmup", "limit", "expected"),
    [(1, None, (1, 9)), (0, None, (0, 9)), (1, 5, (1, 4)), (1, 99, (1, 9)), (20, None, (0, 9)), (3, 3, (0, 2))],
)
def test_steps_that_count(warmup: int, limit: int | None, expected: tuple[int, int]) -> None:
    recipe = RECIPE.replace({"train.warmup_iterations": warmup, "train.timed_iterations": limit})
    assert timed_steps(recipe, 10) == expected


def straggler(rank: int, percent: float, phase: str = "forward") -> Straggler:
    return Straggler(
        rank=rank,
        phase=phase,
        excess_s=percent / 1000,
        excess_percent=percent,
        interval95_percent=(percent - 1, percent + 1),
        steps=60,
    )


def slowed(*stragglers: Straggler) -> RunResult:
    return changed(result_of(None), stragglers=list(stragglers))


def test_repeats_agree_by_majority() -> None:
    repeats = [
        slowed(straggler(1, 20.0), straggler(0, 11.0)),
        slowed(straggler(1, 30.0)),
        slowed(straggler(1, 50.0), straggler(2, 90.0, "data")),
        result_of(None),  # not measured: it does not count
    ]
    (found,) = stragglers_of_most_repeats(repeats) or []
    assert (found["rank"], found["excess_percent"], found["interval95_percent"]) == (1, 30.0, (29.0, 31.0))
    assert found["steps"] == 180
    assert stragglers_of_most_repeats([slowed(), slowed(straggler(1, 20.0))]) == []
    assert stragglers_of_most_repeats([result_of(None), result_of(None)]) is None


def shown(page: Page, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    show(console, page)
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("label", ["ring", "parameter-server:mode=bounded:bound=4+topk:ratio=0.05"])
def test_tables_fit_and_show_the_waiting(result: RunResult, width: int, label: str) -> None:
    study = study_of([[changed(result, label=label)] * 3, [result_of(None, "all-reduce")] * 3])
    for page in (page_in_memory(study, Path("x")), page_in_memory(result, Path("x"))):
        lines = shown(page, width)
        assert max(map(len, lines)) <= width
        assert "waiting" in lines[0]
        assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(lines)
    if width == 140:
        assert "train s" in shown(page_in_memory(study, Path("x")), width)[0]
    if width >= 100:
        assert "overlap" in lines[0]


def test_sentences_about_stragglers(result: RunResult) -> None:
    (finding, _) = stragglers([combine([result])])
    assert finding.kind == "problem"
    assert finding.text == (
        "Straggler: worker 1 needs 2000.00 ms per step longer than the others in forward, 50 % of their working time "
        "(95 % interval 50 to 50 %)."
    )
    slow = changed(result, label="ddp", stragglers=[straggler(3, 30.0, "all")])
    fine = changed(result, label="ring", stragglers=[])
    (finding, _) = stragglers([combine([slow]), combine([fine])])
    assert finding.text == (
        "Straggler: worker 3 needs 30.00 ms per step longer than the others in all phases, 30 % of their working time "
        "(95 % interval 29 to 31 %) under ddp, not under ring."
    )
    (finding,) = stragglers([combine([fine])])
    assert finding.text == "No straggler: no worker needs over 10 % longer than the others, waiting not counted."
    assert stragglers([combine([result_of(None)])]) == []


def test_too_few_steps_are_said_with_the_remedy(result: RunResult) -> None:
    short = combine([changed(result, label="short", stragglers=None, timed_steps=19, steps=20)])
    recipe = RECIPE.replace({"train.epochs": 2})
    (finding,) = stragglers([short], recipe)
    assert finding.text == "Straggler detection needs 50 timed steps; this run has 19 (use --epochs 6)."
    (finding,) = stragglers([short], RECIPE.replace({"train.iterations": 20}))
    assert finding.text.endswith("this run has 19 (use --iterations 51).")
    long = changed(short, steps=100)
    (finding,) = stragglers([long], RECIPE.replace({"train.timed_iterations": 20}))
    assert finding.text.endswith("this run has 19 (use --timed-iterations 51).")
    texts = [one.text for one in stragglers([combine([result]), short])]
    assert texts[-1] == "Straggler detection needs 50 timed steps; short has 19."
    assert stragglers([changed(short, workers=1)]) == stragglers([changed(short, split=None)]) == []
    study = study_of([[changed(result, stragglers=None, timed_steps=19)]])
    for page in (page_in_memory(study, Path("x")), page_in_memory(study.results[0], Path("x"))):
        assert any("Straggler detection needs 50 timed steps; this run has 19" in line for line in shown(page, 120))


def test_a_run_says_where_its_steps_went(result: RunResult) -> None:
    facts = dict(run_facts(result))
    assert (
        facts["parts of a step"] == "compute 45 %, communication 40 %, overlap 0 %, waiting 10 %, data 5 %, other 0 %"
    )
    assert "parts of a step" not in dict(run_facts(result_of(None)))
