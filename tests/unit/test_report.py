"""The report: exact sentences for made-up numbers, tables, and a page that nothing in its input can break."""

from __future__ import annotations

import errno
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import paceline.report
import pytest
from paceline.report import facts, markdown_table, numbers, words, write_report
from paceline.report.chart import wrapped
from paceline.report.collect import collect, notices
from paceline.report.points import Point
from paceline.report.styles import PALETTE, styles
from paceline.report.table import MARKDOWN_COLUMNS

from paceline.errors import RunError, UsageError
from paceline.recipe import Recipe
from report_samples import recipe, result, study_of, usual_study, write_run, write_study


def row(
    label: str, milliseconds: float, verdict: str = "", ratio: float = 1.0, bounds: Any = None, **changes: Any
) -> Any:
    """As little of a result as sentences are made of."""
    return {
        "label": label,
        "workers": 4,
        "guarantee": "EXACT",
        "iteration_s": {"mean": milliseconds / 1e3},
        "iteration_mean_s_interval95": None,
        "repeats": 3,
        "replica_drift": 0.0,
        "replicas_equal": True,
        "final": {"train_loss": 0.1, "test_accuracy": None},
        **({"versus_fastest": {"ratio": ratio, "interval95": bounds, "verdict": verdict}} if verdict else {}),
        **changes,
    }


RING = row("ring", 20, "fastest", iteration_mean_s_interval95=[0.019, 0.021])
GATHER = row("gather-scatter", 34, "slower", 1.695, [1.54, 1.85])
DDP = row("ddp", 21, "no difference", 1.05, [0.92, 1.2])
ALL_REDUCE = row("all-reduce", 60, "slower", 3.0, [2.9, 3.1])
ALONE = row("one-worker", 40, "slower", 2.0, [1.8, 2.2], workers=1)
QUICK_ALONE = row("one-worker", 10, "faster", 0.5, [0.4, 0.8], workers=1)


class TestHeadline:
    def test_two_that_differ(self) -> None:
        assert words.headline([GATHER, RING]) == (
            "ring took 41 % less time per iteration than gather-scatter on 4 workers (95 % interval 35 to 46 %)"
        )

    def test_one_of_several_is_fastest(self) -> None:
        assert words.headline([ALONE, GATHER, RING, ALL_REDUCE]) == (
            "ring is the fastest of 3 strategies on 4 workers: 20.0 ms (95 % interval 19.0 ms to 21.0 ms) per iteration"
        )

    def test_all_tie(self) -> None:
        assert words.headline([RING, DDP]) == "No difference in time per iteration between ring and ddp on 4 workers"

    def test_some_tie(self) -> None:
        assert words.headline([GATHER, RING, DDP]) == (
            "ring took the least time per iteration on 4 workers; no difference from ddp"
        )

    def test_one_repeat_cannot_tell(self) -> None:
        rows = [row("ring", 20, "fastest"), row("ddp", 30, "one repeat cannot tell", 1.5)]
        assert words.headline(rows) == (
            "ring took the least time per iteration on 4 workers, 20.0 ms, "
            "but one repeat cannot tell whether it is faster"
        )

    def test_a_single_run(self) -> None:
        assert words.headline([row("ring", 20)]) == "ring took 20.0 ms per iteration on 4 workers"
        assert words.headline([row("one-worker", 12_500, workers=1)]) == (
            "one-worker took 12.5 s per iteration on 1 worker"
        )

    def test_results_that_cannot_be_compared(self) -> None:
        assert words.headline([row("ring", 20), row("ddp", 20)]) == (
            "2 results side by side: they train different things, so none is the fastest"
        )

    def test_different_numbers_of_workers(self) -> None:
        two = {**GATHER, "workers": 2, "label": "ring on 2 workers"}
        assert "on 2 or 4 workers" in words.headline([RING, two])


class TestSpeed:
    def test_slower_ones_and_ties(self) -> None:
        point = words.speed([ALONE, ALL_REDUCE, GATHER, RING, DDP])
        assert point == Point(
            "Speed",
            "ring took 41 % less time per iteration than gather-scatter (95 % interval 35 to 46 %) and 67 % less than "
            "all-reduce (66 to 68 %). In 3 repeats no difference from ring could be told for ddp "
            "(1.05 times as long, 95 % interval 0.92 to 1.20).",
        )

    def test_one_repeat(self) -> None:
        point = words.speed([row("ring", 20, "fastest"), row("ddp", 30, "one repeat cannot tell", 1.5)])
        assert point is not None
        assert point.text == (
            "In this one repeat, per iteration and against ring: ddp 1.50 times as long. "
            "One repeat cannot tell whether that would come again: repeat to find out."
        )

    def test_nothing_to_compare_with(self) -> None:
        assert words.speed([row("ring", 20)]) is None


class TestAgainstOneWorker:
    def test_faster(self) -> None:
        slow = {**GATHER, "speedup": 0.9}
        point = words.against_one_worker([ALONE, {**RING, "speedup": 2.0}, slow])
        assert point is not None
        assert point.text == (
            "ring on 4 workers is 2.00 times as fast per iteration as one worker with the same global batch, "
            "95 % interval 1.80 to 2.20: an efficiency of 50 %. Slower than one worker: gather-scatter (speed-up 0.90)."
        )

    def test_slower_is_said_plainly(self) -> None:
        point = words.against_one_worker([QUICK_ALONE, RING])
        assert point is not None
        assert point.is_problem
        assert point.text == (
            "Several workers are slower than one here: even ring took 2.00 times as long per iteration on 4 workers "
            "as one worker with the same global batch, 95 % interval 1.25 to 2.50."
        )

    def test_no_difference(self) -> None:
        alone = row("one-worker", 20, "no difference", 1.0, [0.9, 1.1], workers=1)
        point = words.against_one_worker([alone, RING])
        assert point is not None
        assert point.text == "No difference in time per iteration between ring on 4 workers and one worker."

    def test_no_row_of_one_worker(self) -> None:
        point = words.against_one_worker([RING, DDP])
        assert point is not None
        assert point.text == "One worker alone was not measured, so there is no speed-up to give."


class TestOtherPoints:
    def test_cost_of_agreeing(self) -> None:
        loose = row("none", 12, "faster", 0.6, [0.55, 0.65], guarantee="NONE")
        against = {"label": "none", "limit_s": 0.015, "ratio": 4 / 3, "interval95": [1.2, 1.4]}
        point = words.cost_of_agreeing([loose, {**RING, "versus_none": against}])
        assert point is not None
        assert point.text == (
            "Of workers that do not synchronise at all (none), the slowest took 15.0 ms per iteration; "
            "agreeing cost ring another 5.00 ms, 25 % of its time."
        )
        assert words.cost_of_agreeing([loose, RING]) is None

    def test_agreeing_that_costs_nothing(self) -> None:
        loose = row("none", 15, "faster", 0.75, [0.7, 0.8], guarantee="NONE")
        against = {"label": "none", "limit_s": 0.019, "ratio": 1.03, "interval95": [0.9, 1.1]}
        point = words.cost_of_agreeing([loose, {**RING, "versus_none": against}])
        assert point is not None
        assert point.text == "Agreeing cost ring nothing that could be told: no difference from none."

    def test_replicas_that_agree(self) -> None:
        point = words.replicas([ALONE, RING, DDP])
        assert point is not None
        assert point.text == "Replicas agree: every worker ended with the same parameters, bit for bit."

    def test_replicas_that_may_differ(self) -> None:
        loose = row("none", 15, guarantee="NONE", replica_drift=0.38, replicas_equal=False)
        local = row("local", 15, guarantee="PERIODIC", replica_drift=0.01)
        point = words.replicas([RING, loose, local])
        assert point is not None
        assert not point.is_problem
        assert point.text == (
            "Replicas agree: every worker of ring ended with the same parameters, bit for bit. "
            "Apart while training and brought together at the end: local (drift 0.0100). "
            "Replicas ended different, as their guarantee allows: none (drift 0.380, guarantee none)."
        )

    def test_a_broken_promise(self) -> None:
        point = words.replicas([row("ring", 20, replicas_equal=False, replica_drift=1e-5)])
        assert point is not None
        assert point.is_problem
        assert point.text == (
            "ring promises the same replica on every worker, but they ended different (drift 1.00e-05): "
            "do not trust its figures."
        )

    def test_accuracy_by_figure(self) -> None:
        rows = [_scored("ring", 0.798), _scored("ddp", 0.798), _scored("none", 0.8205)]
        point = words.learning(rows)
        assert point is not None
        assert point.text == "Test accuracy at the end: 82.05 % (none) and 79.80 % (ring and ddp)."
        point = words.learning(rows[:2])
        assert point is not None
        assert point.text == "Test accuracy at the end: 79.80 % for all."

    def test_regression_has_no_accuracy(self) -> None:
        assert words.learning([RING, DDP]) is None

    def test_a_loss_that_is_not_finite(self) -> None:
        lost = row("ring", 20, final={"train_loss": None, "test_accuracy": None})
        point = words.learning([lost])
        assert point == Point("Learning", "The training loss of ring was not a finite number at the end.", True)


def _scored(label: str, accuracy: float) -> Any:
    return row(label, 20, final={"train_loss": 0.1, "test_accuracy": accuracy})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, numbers.DASH),
        (0, "0"),
        (9.999, "10.0"),
        (21.44, "21.4"),
        (1234.5, "1,230"),
        (0.0107, "0.0107"),
        (6.7e-5, "6.70e-05"),
    ],
)
def test_significant(value: float | None, text: str) -> None:
    assert numbers.significant(value) == text


def test_cautions() -> None:
    rows = [row("ring", 20)]
    busy = {"num_cores": 2, "load_average": [3.0, 1, 1]}
    assert facts.cautions(recipe(), busy, rows, is_study=True) == [
        "4 workers of 1 thread shared 2 cores: they had to take turns, so their times include waiting for a core.",
        "The machine was busy when this began (load average 3.00 on 2 cores), "
        "so times may be longer than on an idle one.",
    ]
    assert facts.cautions(recipe(), {"num_cores": 8, "load_average": [3.0, 1, 1]}, rows, is_study=True) == []


def test_markdown_table() -> None:
    lines = markdown_table(usual_study()["results"]).splitlines()
    assert len(lines) == 2 + 4
    assert all(len(re.split(r"(?<!\\)\|", line)) == len(MARKDOWN_COLUMNS) + 2 for line in lines)
    assert lines[4].startswith("| ring | 4 | 15.3 | 14.9 to 15.7 | fastest | 2.67 |")
    assert r"\<script\>" in lines[5]
    assert markdown_table([result("a|b", 0.02, epoch_s=None)]).count(numbers.DASH) >= 3
    short = {**result("ring A", 0.02), "full_label": "ring, 8 samples"}
    assert markdown_table([short]).endswith("\n\nring A: ring, 8 samples\n")


def test_servers_and_staleness_have_their_place_in_the_table() -> None:
    late = {"counts": {"0": 1, "3": 1}, "max": 3, "mean": 1.5}
    served = result("parameter-server", 0.02, guarantee="STALE", servers=2, staleness_updates=late)
    before = {key: value for key, value in result("ring", 0.02).items() if key not in ("servers", "staleness_updates")}
    lines = markdown_table([served, before]).splitlines()
    assert "| 4 + 2 servers |" in lines[2]
    assert "| stale (mean 1.50, max 3 updates) |" in lines[2]
    assert "| ring | 4 |" in lines[3]
    assert "| exact |" in lines[3]


def test_colours_stay_with_strategies() -> None:
    rows = [{"strategy": name} for name in ("one-worker", "ring", "none", "ddp")]
    found = [look.colour for look in styles(rows)]
    assert len(set(found)) == 4
    assert found[1] == PALETTE[0]
    assert found[3] == PALETTE[1]


def test_strategies_beyond_the_palette_differ_in_dash_and_marker() -> None:
    found = styles([{"strategy": f"s{number}"} for number in range(3 * len(PALETTE))])
    assert len(set(found)) == len(found)
    again = [look for look in found if look.colour == PALETTE[0]]
    assert len({look.dash for look in again}) == len({look.symbol for look in again}) == 3


def test_long_labels_are_wrapped_as_plain_text() -> None:
    assert wrapped({"label": "overlap:bucket_mb=5+int8"}) == "overlap<br>:bucket_mb=5<br>+int8"
    assert wrapped({"label": "<b>%{y}"}) == "&lt;b&gt;%\N{ZERO WIDTH SPACE}{y}"


def _leaves(address: str | None) -> bool:
    """Whether an address leads out of the page."""
    return bool(address) and address != "data:," and not str(address).startswith("#")


class _Reader(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[dict[str, str | None]] = []
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.scripts += [given] if tag == "script" else []
        self.loaded += [value for key, value in attrs if key in ("src", "href") and _leaves(value)]


class TestPage:
    def test_is_whole_and_loads_nothing(self, tmp_path: Path) -> None:
        study = write_study(tmp_path / "study", usual_study())
        output = write_report([study], tmp_path / "new" / "report.html")
        page = _Reader(output.read_text(encoding="utf-8"))
        assert output == tmp_path / "new" / "report.html"
        assert os.listdir(output.parent) == ["report.html"]
        assert page.loaded == []
        assert [script.get("type") for script in page.scripts] == ["application/json", "text/plain", None]
        assert page.tags.count("h1") == 1

    def test_shows_what_a_reader_asks(self, tmp_path: Path) -> None:
        text = _page(tmp_path, usual_study())
        shown = text.split("<script")[0]
        for words_ in ("61,706", "local: each worker&#39;s own statistics", "Warm-up steps dropped", "Made-up CPU"):
            assert words_ in shown
        assert "ring took 50\N{NO-BREAK SPACE}% less time per iteration than" in shown
        assert "✓" in shown or "&#10003;" in shown
        assert "[optimizer]" in shown

    def test_nothing_a_user_wrote_becomes_code(self, tmp_path: Path) -> None:
        attack = "</title><script>alert(2)</script>"
        hostile = recipe(name=attack, description=attack)
        environment = {**usual_study()["environment"], "processor": attack, "command": [attack]}
        text = _page(tmp_path, usual_study(recipe=hostile.to_dict(), environment=environment))
        assert "<script>alert" not in text
        assert len(_Reader(text).scripts) == 3

    def test_regression_has_no_chart_of_accuracy(self, tmp_path: Path) -> None:
        rows = [[result(label, 0.02, has_accuracy=False)] for label in ("ring", "ddp")]
        text = _page(tmp_path, study_of(rows))
        assert 'id="accuracy"' not in text
        assert 'id="accuracy-workers"' not in text
        assert "No accuracy: this task has none." in text
        assert 'id="loss"' in text
        assert f'<td class="number">{numbers.DASH}</td>' in text

    def test_an_unfinished_study_says_so_first(self, tmp_path: Path) -> None:
        study = study_of([[result("ring", 0.02)]], status="failed", error="worker 2 died\nTraceback", repeats=3)
        shown = _page(tmp_path, study)
        notice = "This study failed: worker 2 died. What was measured until then: 1 of 1 row, 1 of 3"
        assert notice in shown
        assert shown.index(notice) < shown.index('id="verdict"')
        interrupted = study_of([[result("ring", 0.02)]], status="interrupted", error="")
        assert "This study was interrupted." in _page(tmp_path / "2", interrupted)

    def test_a_full_disk_is_one_sentence(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        study = write_study(tmp_path / "study", usual_study())

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(RunError, match=r"^report\.html cannot be written: the disk is full$"):
            write_report([study], tmp_path / "report.html")
        assert sorted(os.listdir(tmp_path)) == ["study"]

    def test_a_folder_is_no_page(self, tmp_path: Path) -> None:
        study = write_study(tmp_path / "study", usual_study())
        with pytest.raises(UsageError, match="is a folder; name a file"):
            write_report([study], tmp_path)


def _page(folder: Path, study: dict[str, Any]) -> str:
    write_study(folder / "study", study)
    return write_report([folder / "study"], folder / "report.html").read_text(encoding="utf-8")


class TestCollect:
    def test_runs_of_one_thing_are_its_repeats(self, tmp_path: Path) -> None:
        for number in (1, 2):
            write_run(tmp_path / f"ring-{number}", result("ring", 0.01 * (1 + number / 100)))
            write_run(tmp_path / f"ddp-{number}", result("ddp", 0.02 * (1 + number / 50)))
        write_run(tmp_path / "ddp-3", result("ddp", 0.02))
        material = collect([tmp_path])
        assert [(r["label"], r["repeats"]) for r in material.results] == [("ddp", 3), ("ring", 2)]
        assert material.results[0]["versus_fastest"]["verdict"] == "slower"
        assert "Put together from 5 folders" in notices(material)[0]

    def test_runs_side_by_side_are_held_against_the_slowest_that_does_not_agree(self, tmp_path: Path) -> None:
        runs = [
            write_run(tmp_path / "ring", result("ring", 0.03)),
            write_run(tmp_path / "none", result("none", 0.02, guarantee="NONE")),
        ]
        ring = next(row for row in collect(runs).results if row["label"] == "ring")
        assert ring["versus_none"]["label"] == "none"
        assert ring["versus_none"]["ratio"] == pytest.approx(1.5)

    def test_different_work_is_not_compared(self, tmp_path: Path) -> None:
        small = write_run(tmp_path / "a", result("ring", 0.01))
        large = write_run(tmp_path / "b", result("ring", 0.02), of=recipe(**{"train.batch_size": 200}))
        material = collect([small, large])
        assert [r["label"] for r in material.results] == ["ring, batch_size 100", "ring, batch_size 200"]
        assert not any("versus_fastest" in r for r in material.results)
        assert "The recipes differ in train.batch_size: 100 and 200." in notices(material)
        write_report([small, large], tmp_path / "report.html")

    def test_a_study_beside_a_run(self, tmp_path: Path) -> None:
        study = write_study(tmp_path / "study", usual_study())
        run = write_run(tmp_path / "run", result("ring", 0.01))
        material = collect([study, run])
        labels = [r["label"] for r in material.results]
        assert labels[-1] == "ring, from run"
        assert len(set(labels)) == 5

    def test_how_far_a_killed_run_came(self, tmp_path: Path) -> None:
        lost = write_run(tmp_path / "lost", None, status="failed")
        (lost / "workers").mkdir()
        for rank, last in enumerate((29, 28)):
            lines = [json.dumps({"kind": "step", "step": step, "iteration_s": 0.1}) for step in range(last + 1)]
            (lost / "workers" / f"{rank}.jsonl").write_text("\n".join([*lines, '{"kind": "st']), encoding="utf-8")
        with pytest.raises(UsageError, match="its workers came to the end of steps 28 to 29, which `paceline trace`"):
            collect([lost])

    def test_a_damaged_file_of_a_worker_is_said(self, tmp_path: Path) -> None:
        lost = write_run(tmp_path / "lost", None, status="failed")
        (lost / "workers").mkdir()
        (lost / "workers" / "0.jsonl").write_text('x\n{"kind": "end"}\n', encoding="utf-8")
        with pytest.raises(UsageError, match=r"before there was a result \('.*0.jsonl' is damaged in line 1"):
            collect([lost])

    def test_what_never_finished_is_left_out(self, tmp_path: Path) -> None:
        done = write_run(tmp_path / "done", result("ring", 0.01))
        lost = write_run(tmp_path / "lost", None, status="interrupted")
        material = collect([done, lost])
        assert notices(material) == ["lost is left out: it was interrupted before anything was measured."]
        with pytest.raises(UsageError, match="nothing to report: lost is left out"):
            collect([lost])

    def test_what_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="neither a run nor a study"):
            collect([tmp_path])
        with pytest.raises(UsageError, match="nothing to report; name the folder"):
            collect([])
        broken = write_run(tmp_path / "broken", result("ring", 0.01))
        (broken / "environment.json").unlink()
        with pytest.raises(UsageError, match="'broken' is damaged"):
            collect([broken])
        whole = write_run(tmp_path / "whole", result("ring", 0.01))
        assert "broken is left out: 'broken' is damaged" in collect([broken, whole]).left_out[0]


def test_public_names() -> None:
    assert paceline.report.__all__ == ["markdown_of", "markdown_table", "write_figures", "write_report"]


def test_facts_name_the_choice_of_batchnorm() -> None:
    found = dict(facts.training(Recipe().replace({"train.epochs": 1}), [result("ring", 0.01) | {"repeats": 1}]))
    assert found["BatchNorm"] == "local: each worker's own statistics"
    assert found["Warm-up steps dropped"] == "1"
    assert found["Timed steps"] == "11"


class TestOnPurpose:
    """What was done to workers on purpose is said before anybody blames a strategy for it."""

    def test_a_slowed_worker_and_who_has_none_of_that_rank(self) -> None:
        slowed = recipe(**{"measure.inject": ("slow:rank=1,ms=20,phase=backward", "slow:rank=0,factor=2")})
        assert facts.interventions([slowed], [result("ring", 0.01), result("one-worker", 0.01)]) == [
            "On purpose (--inject), worker 1 was slowed by 20.0 ms a step in backward.",
            "On purpose (--inject), worker 0 was slowed to 2 times the time.",
            "one-worker has no worker 1, so that did not touch it.",
        ]

    def test_only_some_runs(self) -> None:
        killed = recipe(**{"measure.inject": ("kill:rank=2,step=5",)})
        found = facts.interventions([killed, recipe()], [result("ring", 0.01)])
        assert found == ["On purpose (--inject), worker 2 was killed at step 5 in some of these runs."]
        assert facts.on_purpose([killed, recipe()]) == [("Injected", "kill:rank=2,step=5 or none")]

    def test_profiled_steps(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", result("ring", 0.01), of=recipe(**{"measure.profile": "2:4"}))
        page = write_report([run], tmp_path / "report.html").read_text(encoding="utf-8")
        assert "Steps 2:4 ran under the profiler (--profile), which makes them slower; they are counted." in page
        assert "<dt>Profiled steps</dt><dd>2:4</dd>" in page

    def test_emulated_nodes(self) -> None:
        nodes = recipe(**{"cluster.nodes": 4, "cluster.cpus": 0.5, "cluster.bandwidth": "1gbit"})
        assert facts.on_purpose([nodes]) == [("Emulated nodes", "nodes=4,cpus=0.5,bandwidth=1gbit")]
        # Each has its half of a core to itself.
        assert facts.cautions(nodes, {"num_cores": 2}, [row("ring", 20)], is_study=True) == []
        assert len(facts.cautions(nodes, {"num_cores": 1}, [row("ring", 20)], is_study=True)) == 1

    def test_nothing_on_purpose_is_no_caution(self) -> None:
        assert facts.interventions([recipe()], [result("ring", 0.01)]) == []
        assert facts.on_purpose([recipe()]) == []
