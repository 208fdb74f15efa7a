"""What workers say of themselves while they train, and how it looks in a terminal and elsewhere."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

import report_samples as samples
from paceline.cli import progress
from paceline.cli.progress import StrategyBars, WorkerStatusLines, strategy_progress
from paceline.measure import recorder
from paceline.measure.observer import RunFacts
from paceline.measure.recorder import ProgressObserver
from paceline.recipe import Recipe
from paceline.results import Final, changed
from paceline.study.entries import Entry, make_entry

WIDTH = 100
LONG = "parameter-server:servers=2:mode=bounded:max_staleness=3+bf16"


def entry_of(text: str, workers: int = 2) -> Entry:
    return make_entry(text, Recipe().replace({"workers": workers}))


def event(rank: int, step: int = 5, **changes: Any) -> dict[str, Any]:
    plain = {"kind": "progress", "rank": rank, "step": step, "total_steps": 100000, "epoch": 2, "iteration": 3}
    plain |= {"loss": 2.5, "accuracy": 0.5, "samples_per_s": 123456.7, "in_comm_percent": 10.0 + rank}
    return {**plain, **changes}


RESULT = changed(
    samples.result("ring", 0.1),
    steps=100000,
    train_s=12.34,
    final=Final(train_loss=0.5, train_accuracy=None, test_loss=None, test_accuracy=0.75),
)


def facts(rank: int = 0) -> RunFacts:
    return RunFacts(
        rank=rank,
        world_size=2,
        total_steps=10,
        steps_per_epoch=4,
        folder="",
        write=lambda row: None,  # noqa: ARG005
        run_time=lambda moment: moment,
    )


STEP = {"loss": 0.5, "num_samples": 8, "num_right": 3, "num_answers": 4, "iteration_s": 0.1}


def events_of(count: int, rank: int = 0, **options: Any) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    observer = ProgressObserver(told.append, **options)
    observer.run_begins(facts(rank))
    for step in range(count):
        observer.step_ends(step, STEP)
    return told


def test_a_worker_speaks_at_first_and_at_last_and_seldom_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "PROGRESS_EVERY_S", 1000.0)
    told: list[dict[str, Any]] = []
    sent = iter([100, 700])
    observer = ProgressObserver(told.append, more=lambda: {"sent_bytes": next(sent)})
    observer.run_begins(facts(rank=1))
    for step in range(7):  # of 10: a target was reached
        observer.step_ends(step, STEP)
    observer.steps_end()
    assert [(event["step"], event["sent_bytes"]) for event in told] == [(1, 100), (7, 700)]
    assert recorder.PROGRESS_EVERY_S == 1000.0
    monkeypatch.undo()
    assert recorder.PROGRESS_EVERY_S >= 0.2


def test_what_a_worker_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "PROGRESS_EVERY_S", 0.0)
    waited = iter([(0.0, 0.0), (0.25, 1.0), (0.25, 1.0), (1.0, 2.0), (1.0, 2.0)])
    told = events_of(4, blocked_time=lambda: next(waited), more=lambda: {"sent_bytes": 9})
    assert [event["in_comm_percent"] for event in told] == [25.0, 25.0, 50.0, 50.0]
    last = told[-1]
    assert last["accuracy"] == 0.75
    assert last["samples_per_s"] > 0
    assert (last["step"], last["total_steps"], last["epoch"], last["iteration"]) == (4, 10, 1, 4)
    assert (last["kind"], last["rank"], last["loss"], last["sent_bytes"]) == ("progress", 0, 0.5, 9)


def test_only_the_window_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "PROGRESS_EVERY_S", 0.0)
    monkeypatch.setattr(recorder, "WINDOW_S", 0.0)  # the last step alone
    waited = iter([(0.0, 0.0), (9.0, 10.0), (9.0, 20.0), (10.0, 30.0)])
    told = events_of(3, blocked_time=lambda: next(waited))
    assert [event["in_comm_percent"] for event in told] == pytest.approx([90.0, 0.0, 10.0])


def test_time_in_the_comm_that_nobody_heard_of_is_not_given() -> None:
    assert [event["in_comm_percent"] for event in events_of(1)] == [None]


def test_only_rank_0_says_log_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "PROGRESS_EVERY_S", 1000.0)
    assert [told["step"] for told in events_of(9, log_every=4) if told["kind"] == "log"] == [4, 8]
    assert [told["kind"] for told in events_of(9, rank=1, log_every=4)] == ["progress"]


def shown(entries: list[Entry], *, workers: int, is_terminal: bool) -> list[str]:
    """All lines that a study puts on a console of 100 columns."""
    output = io.StringIO()
    console = Console(file=output, width=WIDTH, force_terminal=is_terminal, legacy_windows=False)
    with strategy_progress(entries, repeats=2, console=console) as bars:
        for entry in entries:
            bars.started(entry, 0)
            for rank in range(workers):
                bars.event(entry, event(rank, step=99990 + rank))
            if isinstance(bars, StrategyBars):
                bars._live.refresh()
            bars.event(entry, {"kind": "warning", "text": "[red]the loss diverged[/red]"})
            bars.event(entry, event(0, kind="log"))
            bars.done(entry, 0, RESULT)
    text = output.getvalue()
    assert is_terminal or "\x1b" not in text
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n").splitlines()


def test_a_terminal_shows_a_line_per_worker_and_fits() -> None:
    lines = shown([entry_of("ring"), entry_of(LONG)], workers=3, is_terminal=True)
    assert max(len(line) for line in lines) <= WIDTH
    first = next(line for line in lines if "worker 0" in line)
    assert re.sub(" +", " ", first).strip() == "worker 0 step 99990 loss 2.5 123,457 samples/s communicating 10 %"
    assert any("worker 2" in line for line in lines)
    assert any(line.startswith("parameter-server:") and "0:00:0" in line for line in lines)


def test_many_workers_share_a_line() -> None:
    workers = WorkerStatusLines()
    for rank in range(8):
        workers.put(event(rank))
    assert [line[0] for line in workers.lines()] == [f"worker {rank}" for rank in range(8)]
    for rank in range(8, 12):
        workers.put(event(rank, step=rank, loss=1.0))
    lines = workers.lines()
    assert [line[0] for line in lines] == [*(f"worker {rank}" for rank in range(7)), "5 more"]
    assert lines[-1][1:] == ("5 to 11", "1.3", "617,284 samples/s", "communicating 17 to 21 %")
    assert workers.sentence().startswith("12 workers at step 5 to 11 of 100000, loss 2, ")


def test_time_in_the_comm_that_is_not_known_is_a_dash() -> None:
    workers = WorkerStatusLines()
    workers.put(event(0, in_comm_percent=None))
    assert workers.lines()[0][-1] == "communicating \N{EN DASH}"


def test_elsewhere_plain_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    seldom = shown([entry_of("ring")], workers=2, is_terminal=False)
    assert seldom == [
        "ring: [red]the loss diverged[/red]",
        "ring: step 3 of epoch 2, loss 2.5 (rank 0)",
        "ring (1 of 2): 100000 steps in 12.3 s, training loss 0.5, test accuracy 75.0 %",
    ]
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    often = shown([entry_of("ring")], workers=2, is_terminal=False)
    assert often[1].startswith(
        "ring: 2 workers at step 99990 to 99991 of 100000, loss 2.5, 246,913 samples/s, communicating"
    )
