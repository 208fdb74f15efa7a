"""`paceline runs`: the list and its filters, a stored table again, and deleting nothing but runs and studies."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from command import run_command
from paceline.errors import RunError, UsageError
from paceline.present import conditions, measurement_findings
from paceline.present.columns import worker_table
from paceline.present.terminal import show_tables
from paceline.recipe import Recipe
from paceline.results import Overhead, Split, SplitMean, Target, WorkerSplit, changed
from paceline.runs import Filter, Stored, check_deletable, delete, find, list_runs
from report_samples import recipe, result, study_of, usual_study, write_run, write_study


def at(when: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime(when))


def run(folder: Path, label: str = "ring", *, days_ago: float = 0, of: Recipe | None = None, **summary: Any) -> Path:
    status = summary.get("status", "done")
    path = write_run(folder, result(label, 0.01) if status == "done" else None, of=of, status=status)
    values = json.loads((path / "summary.json").read_text())
    values |= {"started": at(time.time() - 86_400 * days_ago), **summary}
    (path / "summary.json").write_text(json.dumps(values))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Five of them; the names do not sort by time."""
    folder = tmp_path / "runs"
    write_study(folder / "d-study", usual_study(started=at(time.time() - 40 * 86_400)))
    run(folder / "c-ring", days_ago=20)
    run(folder / "a-ddp", "ddp:bucket_mb=1", days_ago=10, of=recipe(**{"model.name": "vgg11"}))
    run(folder / "b-failed", days_ago=5, status="failed", error="worker 1 died [bold]")
    run(folder / "e-interrupted", days_ago=1, status="interrupted")
    return folder


def names(found: list[Stored]) -> list[str]:
    return [item.name for item in found]


EVERYTHING = ["d-study", "c-ring", "a-ddp", "b-failed", "e-interrupted"]


def test_newest_come_last(out: Path) -> None:
    assert names(list_runs(out)) == EVERYTHING
    assert [find(name, out).folder for name in ("last", "last~1", "a-ddp")] == [
        out / name for name in ("e-interrupted", "b-failed", "a-ddp")
    ]
    assert find(str(out / "a-ddp"), Path("elsewhere")) == find("a-ddp", out)
    assert find(str(out / "a-ddp" / "summary.json"), out) == find("a-ddp", out)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("last~5", "has 5 readable runs and studies"),
        ("a-dpd", "did you mean 'a-ddp'"),
        ("last~x", "unknown run or study"),
    ],
)
def test_what_is_not_there(out: Path, name: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        find(name, out)
    with pytest.raises(UsageError, match="there is no run or study 'x' in"):
        find("x", out / "nowhere")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, EVERYTHING),
        ({"model": "vgg11"}, ["a-ddp"]),
        ({"model": "LENET*"}, ["d-study", "c-ring", "b-failed", "e-interrupted"]),
        ({"strategy": "ring"}, ["d-study", "c-ring"]),
        ({"strategy": "ddp*"}, ["a-ddp"]),
        ({"strategy": "all-reduce"}, ["b-failed", "e-interrupted"]),  # as their recipe says
        ({"status": "failed"}, ["b-failed"]),
        ({"kind": "study"}, ["d-study"]),
        ({"kind": "run", "status": "done"}, ["c-ring", "a-ddp"]),
        ({"since": "15d"}, ["a-ddp", "b-failed", "e-interrupted"]),
        ({"since": time.strftime("%Y-%m-%d", time.gmtime(time.time() - 7 * 86_400))}, ["b-failed", "e-interrupted"]),
        ({"last": 2}, ["b-failed", "e-interrupted"]),
        ({"kind": "run", "status": "done", "last": 1}, ["a-ddp"]),
        ({"model": "resnet*"}, []),
    ],
)
def test_filters(out: Path, wanted: dict[str, Any], expected: list[str]) -> None:
    assert names(Filter(**wanted).apply(list_runs(out))) == expected


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"status": "don"}, "did you mean 'done'"),
        ({"kind": "studies"}, "did you mean 'study'"),
        ({"since": "yesterday"}, "neither a date"),
        ({"last": 0}, "at least 1"),
    ],
)
def test_filters_that_are_wrong(wanted: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Filter(**wanted)


@pytest.mark.parametrize("width", [80, 100])
def test_the_list_fits(out: Path, width: int) -> None:
    run(out / "20260102-030405-compare-transformer_lm-synthetic", "gather-scatter")
    done = run_command("runs", "--out", str(out), width=width)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= width
    for word in ("20260102-030405-compare-transformer_lm", "gather-scatter", "interrupted", "10.11"):
        assert word in done.out
    order = [line.split()[0] for line in lines if line.strip() and line.split()[0] in EVERYTHING]
    assert order == EVERYTHING


def test_the_list_as_json_is_filtered_too(out: Path) -> None:
    done = run_command("runs", "--out", str(out), "--status", "done", "--kind", "run", "--json", "-")
    assert [Path(item["folder"]).name for item in json.loads(done.out)["runs"]] == ["c-ring", "a-ddp"]


def test_empty_lists_say_why(out: Path, tmp_path: Path) -> None:
    assert "No match among 5 runs and studies" in run_command("runs", "--out", str(out), "--model", "x").out
    assert "No runs in" in run_command("runs", "--out", str(tmp_path / "none[b]")).out
    assert "none[b]" in run_command("runs", "--out", str(tmp_path / "none[b]")).out.replace("\n", "")


def test_what_cannot_be_read_is_listed_with_the_reason(out: Path) -> None:
    (out / "bad[bold]").mkdir()
    (out / "bad[bold]" / "summary.json").write_text("{")
    done = run_command("runs", "--out", str(out))
    assert done.code == 0
    assert "bad[bold]" in done.out
    assert "unreadable" in done.out
    assert "is damaged" in " ".join(done.out.split())


def test_options_of_the_list_before_another_word_are_refused(out: Path) -> None:
    done = run_command("runs", "--status", "done", "show", "last")
    assert done.code == 2
    assert "--status before 'show' applies to the list only" in done.err
    assert run_command("runs", "--out", str(out), "show", "c-ring").code == 0  # --out is for all of them


@pytest.mark.parametrize("width", [80, 100])
def test_show_prints_tables_again(out: Path, width: int) -> None:
    study = run_command("runs", "show", "d-study", "--out", str(out), width=width)
    assert study.code == 0, study.err
    for word in (
        "one-worker",
        "Fastest exact strategy: ring",
        "workers that never synchronise (none, slowest worker 12.3 ms): ring 1.25x",
    ):
        assert word in study.out.replace("\n", " ").replace("  ", " ")
    one = run_command("runs", "show", "c-ring", "--out", str(out), width=width)
    assert "p90 10.20" in one.out
    assert run_command("runs", "show", "c-r", "--out", str(out), width=width).out == one.out  # its beginning will do
    assert "lenet5 on mnist-mini, global batch 100, 4 workers" in one.out
    assert "samples/s" in one.out
    assert max(len(line) for line in (study.out + one.out).splitlines()) <= width


def test_show_of_what_never_got_there(out: Path) -> None:
    done = run_command("runs", "show", "b-failed", "--out", str(out))
    assert done.code == 0
    assert "worker 1 died [bold]" in done.out
    assert "Nothing was measured." in done.out
    (out / "old").mkdir()
    (out / "old" / "study.json").write_text('{"schema": 99}')
    assert run_command("runs", "show", "old", "--out", str(out)).code == 2


def test_show_of_a_failed_run_says_what_workers_had_written(out: Path) -> None:
    (out / "b-failed" / "workers").mkdir()
    for rank, count in ((0, 30), (1, 29)):
        steps = [{"kind": "step", "step": step, "iteration_s": 0.02, "loss": 2.0 - step / 100} for step in range(count)]
        text = "".join(json.dumps(line) + "\n" for line in [{"kind": "head"}, *steps])
        (out / "b-failed" / "workers" / f"{rank}.jsonl").write_text(text)
    done = run_command("runs", "show", "b-failed", "--out", str(out), width=80)
    assert done.code == 0, done.err
    assert "Nothing was measured" not in done.out
    rows = [line.split() for line in done.out.splitlines()]
    assert ["0", "30", "20.00", "1.71"] in rows
    assert ["1", "29", "20.00", "1.72"] in rows
    assert "paceline trace b-failed" in done.out


def test_what_was_done_on_purpose_is_said(out: Path) -> None:
    slowed = recipe(**{"measure.inject": ["slow:rank=1,ms=20,phase=backward"], "measure.profile": "2:4"})
    run(out / "f-slowed", of=slowed)
    listed = run_command("runs", "--out", str(out))
    marked = [line.split()[0] for line in listed.out.splitlines() if "inject" in line]
    assert marked == ["f-slowed"]
    shown = run_command("runs", "show", "f-slowed", "--out", str(out)).out.replace("\n", " ")
    assert "Worker 1 was slowed down on purpose (--inject slow:rank=1,ms=20,phase=backward)." in shown
    assert "Steps 2:4 ran under the profiler (--profile)" in shown
    assert "on purpose" not in run_command("runs", "show", "c-ring", "--out", str(out)).out
    compared = run_command("runs", "diff", "c-ring", "f-slowed", "--out", str(out)).out.replace("\n", " ")
    assert "B: Worker 1 was slowed down on purpose" in compared
    assert "A: " not in compared


def test_who_has_no_such_worker_is_not_touched() -> None:
    values = {"measure": {"inject": ["slow:rank=1,factor=2"], "spans": False}}
    results = [result("one-worker", 0.01), result("ring", 0.01)]
    first, second = conditions.interventions([values], results)
    assert first.text.endswith(
        "(--inject slow:rank=1,factor=2). Not affected, because they have no worker 1: one-worker."
    )
    assert second.text.endswith("were not recorded (--no-measure), so stragglers cannot be detected.")
    assert first.kind == second.kind == "caution"
    assert conditions.interventions([{"measure": {"inject": [], "spans": True}}], results) == []
    assert conditions.interventions([{}], results) == []
    some = conditions.interventions([values, {}], results)[0].text
    assert "(--inject slow:rank=1,factor=2) in some of these runs." in some


def test_the_list_has_a_name_of_its_own(out: Path) -> None:
    for options in ([], ["--status", "failed"], ["--last", "2"]):
        named = run_command("runs", "list", "--out", str(out), *options)
        assert named.code == 0, named.err
        assert named == run_command("runs", "--out", str(out), *options)


def test_a_list_names_strategies(out: Path) -> None:
    values = json.loads((out / "b-failed" / "summary.json").read_text())
    (out / "b-failed" / "summary.json").write_text(json.dumps({**values, "label": "gossip"}))
    lines = {line.split()[0]: line for line in run_command("runs", "--out", str(out)).out.splitlines() if line.split()}
    assert "strategy" in lines["folder"]
    assert "fastest: ring" in lines["d-study"]
    assert "gossip" in lines["b-failed"]
    assert "all-reduce" in lines["e-interrupted"]  # as its recipe says


@pytest.mark.parametrize(
    ("percents", "bounds", "sentence"),
    [
        (-3.3, (-18.0, 32.6), "longer by an amount too noisy to measure here (95 % interval -18.0 to +32.6 %)."),
        (2.1, (1.0, 3.0), "2.1 % longer (95 % interval +1.0 to +3.0 %)."),
        (2.1, None, "2.1 % longer (too few steps for an interval)."),
    ],
)
def test_profiling_overhead_in_words(percents: float, bounds: tuple[float, float] | None, sentence: str) -> None:
    cost = Overhead(cost_percent=percents, interval95_percent=bounds, repeats=5)
    ring, ddp = study_of([[result("ring", 0.01)], [result("ddp", 0.01)]]).results
    (finding,) = measurement_findings.overhead([changed(ring, measuring=cost), ddp])
    assert finding.text == f"Recording spans makes a step of ring (the strategy with most to record) {sentence}"


def test_a_narrow_terminal_keeps_overlap() -> None:
    parts = {"compute_s": 0.5, "communication_s": 0.5, "overlap_s": 0.0, "waiting_s": 1.0, "data_s": 0.0, "rest_s": 0.0}
    parts |= {"step_s": 2.0, "overlap_fraction": 0.25, "bandwidth_bytes_per_s": None}
    parts |= {"phases_s": {}, "caused_waiting_s": 0.0}
    run = result("ring", 0.01)
    splits = [WorkerSplit(rank=worker.rank, **parts) for worker in run.per_worker]
    table = worker_table(changed(run, split=Split(mean=SplitMean(**parts), per_worker=splits)))
    console = Console(width=80, file=io.StringIO())
    show_tables(console, [table])
    head = console.file.getvalue().splitlines()[1]
    assert "overlap" in head
    assert "waiting" in head


def test_show_says_what_became_of_a_target(tmp_path: Path) -> None:
    reached = Target(accuracy=0.9, reached=True, step=8, epoch=2, train_s=0.5, sent_bytes=4_000_000)
    never = Target(accuracy=0.9, reached=False, best=0.7)
    early = changed(reached, train_s=0.1)
    rows = [[result("ring", 0.01, target=reached)], [result("ddp[b]", 0.02, target=never)]]
    rows += [[result("none", 0.01, target=early, guarantee="NONE")]]  # a limit, not a rival
    write_study(tmp_path / "s", study_of(rows))
    text = " ".join(run_command("runs", "show", str(tmp_path / "s")).out.split())
    assert "s to 0.9" in text
    assert "First to reach the target accuracy of 90.0 %: ring, after 8 steps (epoch 2), 500 ms of training" in text
    assert "Also reached by none (100 ms)." in text
    assert "Target accuracy of 90.0 % not reached: ddp[b] (best 70.0 %)." in text
    write_run(tmp_path / "r", result("ring", 0.01, target=changed(never, best=None)))
    text = run_command("runs", "show", str(tmp_path / "r")).out
    assert "Target accuracy of 90.0 % not reached: nothing was evaluated." in text
    above = result("local-sgd", 0.01, target=changed(never, accuracy=0.75))
    write_run(tmp_path / "a", above)
    text = " ".join(run_command("runs", "show", str(tmp_path / "a")).out.split())
    assert "best 70.0 %, 80.0 % once replicas were averaged at the end." in text


def left(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


def deleting(out: Path, *arguments: str, answer: str | None = None) -> tuple[int, str]:
    done = run_command("runs", "delete", *arguments, "--out", str(out), answer=answer)
    return done.code, " ".join((done.out + done.err).split())


def test_deleting_asks_first(out: Path) -> None:
    code, text = deleting(out, "c-ring", "d-study")
    assert code == 2
    assert "no terminal to confirm in" in text
    code, text = deleting(out, "c-ring", answer="n\n")
    assert (code, left(out)) == (0, sorted(EVERYTHING))
    assert "Nothing was deleted" in text
    code, text = deleting(out, "c-ring", answer="y\n")
    assert (code, left(out)) == (0, ["a-ddp", "b-failed", "d-study", "e-interrupted"])
    assert "Delete this for good?" in text
    assert deleting(out, "d-study", str(out / "a-ddp"), "--yes")[0] == 0
    assert left(out) == ["b-failed", "e-interrupted"]


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        (["--failed"], ["b-failed", "e-interrupted"]),
        (["--older-than", "15d"], ["c-ring", "d-study"]),
        (["--failed", "--older-than", "3d"], ["b-failed"]),
        (["c-ring", "a-ddp", "--older-than", "15d"], ["c-ring"]),
        (["last"], ["e-interrupted"]),
        (["c-ring", "c-ring"], ["c-ring"]),
        (["--older-than", "1000w"], []),
    ],
)
def test_which_are_deleted(out: Path, options: list[str], gone: list[str]) -> None:
    assert deleting(out, *options, "--yes")[0] == 0
    assert left(out) == sorted(set(EVERYTHING) - set(gone))


def test_a_wrong_name_deletes_nothing_at_all(out: Path) -> None:
    for wrong in (["c-ring", "nobody"], [], ["c-ring", "--older-than", "soon"]):
        assert deleting(out, *wrong, "--yes")[0] == 2
    assert left(out) == sorted(EVERYTHING)


def test_only_runs_and_studies_can_be_deleted(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "thesis.txt").write_text("years of work")
    lookalike = tmp_path / "lookalike"
    lookalike.mkdir()
    (lookalike / "summary.json").write_text('{"schema": 1, "kind": "something else"}')
    (out / "link").symlink_to(plain)
    (out / "link-to-run").symlink_to(out / "c-ring")
    (out / "file").write_text("")
    inside = run(tmp_path / "inside")
    (inside / "deep").mkdir()
    monkeypatch.chdir(inside / "deep")
    nest = run(tmp_path / "nest")
    (nest / "runs").mkdir()
    for target, place, reason in (
        (plain, out, "neither a run nor a study"),
        (lookalike, out, "neither a run nor a study"),
        (out / "link", out, "is a link"),
        (out / "link-to-run", out, "is a link"),
        (out / "file", out, "is not the folder"),
        (inside, out, "the current folder"),
        (nest, nest / "runs", "the folder of all runs"),
        (out, out, "neither a run nor a study"),
    ):
        with pytest.raises(UsageError, match=reason):
            check_deletable(target, place)
        assert deleting(place, str(target), "--yes")[0] == 2
    monkeypatch.chdir(tmp_path)
    assert deleting(out, "--older-than", "15d", "--yes")[0] == 0
    assert left(out) == ["a-ddp", "b-failed", "e-interrupted", "file", "link", "link-to-run"]
    assert (plain / "thesis.txt").read_text() == "years of work"


def test_links_inside_are_not_followed(out: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").write_text("years of work")
    (out / "c-ring" / "linked").symlink_to(tmp_path / "thesis")
    delete(out / "c-ring")
    assert "c-ring" not in left(out)
    assert (tmp_path / "thesis" / "text").read_text() == "years of work"


def test_what_cannot_be_deleted_says_so(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(self: Path, target: Path) -> None:  # noqa: ARG001
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(RunError, match="cannot be deleted: Read-only file system"):
        delete(out / "c-ring")
    assert (out / "c-ring" / "summary.json").is_file()
