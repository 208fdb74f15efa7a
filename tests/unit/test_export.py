"""Exports: every line arrives, memory stays bounded, a spreadsheet runs nothing, and what is missing is named."""

from __future__ import annotations

import csv
import importlib.util
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command import run_command
from paceline.errors import UsageError
from paceline.export import export, sources_of
from paceline.export.tables import OPEN_STEPS, TABLES, scalars
from paceline.measure.resource_usage import ResourceProbe
from paceline.measure.spool import BLOCKED, MEDIUM_CODES, OP, OP_CODES, PHASE_CODES, SPAN, STEP, lines
from paceline.runs import find, read
from paceline.worker_files import worker_lines
from report_samples import result, study_of, write_run, write_study

FILES = ["blocked", "ops", "samples", "spans", "steps", "workers"]


def lines_of(rank: int, num_steps: int) -> Iterator[dict[str, Any]]:
    """What a worker writes, by the contract."""
    yield {"kind": "head", "schema": 1, "rank": rank, "host": "=cmd()", "pid": 7, "clock_offset_s": -0.5}
    for step in range(num_steps):
        begin = float(step)
        yield {"kind": "span", "step": step, "phase": "forward", "begin_s": begin, "end_s": begin + 0.25}
        yield {"kind": "span", "step": step, "phase": "forward", "begin_s": begin + 0.5, "end_s": begin + 0.75}
        op = {"step": step, "number": step, "op": "all_reduce", "peer": None, "tag": 0}
        times = {"begin_s": begin + 0.75, "end_s": begin + 1.0}
        yield {"kind": "op", **op, "bytes": 4000, "medium": "network", **times}
        yield {"kind": "blocked", **op, "busy": step == 1, **times}
        counts = {"num_right": 1, "num_answers": 2, "num_samples": 2, "sent_bytes": 4000 * (step + 1)}
        step_times = {"begin_s": begin, "iteration_s": 1.0, "data_s": 0.125}
        yield {"kind": "step", "step": step, **step_times, "loss": None if step == 1 else 2.5, **counts}
        if step % 2 == 0:
            yield {"kind": "sample", "time_s": begin, "cpu_percent": 99.0, "rss_bytes": 10, "gpu_percent": None}
    yield {"kind": "end", "dropped": 0}


def stored_run(folder: Path, label: str = "ring", *, num_steps: int = 3, num_workers: int = 2) -> Path:
    path = write_run(folder, result(label, 0.01))
    (path / "workers").mkdir()
    for rank in range(num_workers):
        with (path / "workers" / f"{rank}.jsonl").open("w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines_of(rank, num_steps))
    return path


def exported(folder: Path, to: str, output: Path) -> Path:
    return export(sources_of(read(folder)), to, output)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_kind_is_one_csv_file_with_a_header(tmp_path: Path) -> None:
    folder = exported(stored_run(tmp_path / "run"), "csv", tmp_path / "deep" / "csv")
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.csv" for name in FILES]
    steps = table(folder / "steps.csv")
    assert len(steps) == 2 * 3
    assert steps[0] | {"begin_s": "0.0", "sent_bytes": "4000"} == steps[0]
    assert (steps[1]["loss"], steps[3]["rank"], steps[3]["step"]) == ("", "1", "0")
    ops = table(folder / "ops.csv")
    assert ops[0]["op"] == "all_reduce"
    assert (ops[0]["bytes"], ops[0]["peer"], ops[0]["medium"]) == ("4000", "", "network")
    assert [row["busy"] for row in table(folder / "blocked.csv")[:3]] == ["False", "True", "False"]
    assert [len(table(folder / f"{name}.csv")) for name in FILES] == [6, 6, 4, 12, 6, 2]


def test_no_column_of_what_workers_write_is_left_out() -> None:
    columns = {table.kind: table.columns for table in TABLES}
    probe = ResourceProbe()
    try:
        assert {"time_s", *probe.read()} <= columns["sample"].keys()
    finally:
        probe.close()
    rows = (
        (BLOCKED, 3, 1, OP_CODES["recv"], 1, 0, True, 0.5, 0.75),
        (OP, 3, 1, OP_CODES["recv"], 8, 1, 0, MEDIUM_CODES["memory"], 0.5, 0.75),
        (SPAN, 3, PHASE_CODES["forward"], 0.5, 0.75),
        (STEP, 3, 0.5, 0.25, 0.0, 2.0, 1, 2, 2, 8),
    )
    for text in lines([number for row in rows for number in row], float):
        line = json.loads(text)
        assert line.keys() - {"kind"} <= columns[line["kind"]].keys()


def test_a_spreadsheet_takes_no_text_for_a_formula(tmp_path: Path) -> None:
    labels = ["=1+1", "+x", "-x", "@x", "\tx", 'plain,"quoted"\nline']
    for number, label in enumerate(labels):
        folder = exported(stored_run(tmp_path / f"run{number}", label), "csv", tmp_path / f"csv{number}")
        row = table(folder / "steps.csv")[0]
        assert row["label"] == (label if label.startswith("plain") else f"'{label}")
        worker = table(folder / "workers.csv")[0]
        assert (worker["host"], worker["clock_offset_s"]) == ("'=cmd()", "-0.5")  # a number stays one


def test_a_study_gives_all_its_runs(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", study_of([[result("ring", 0.01)], [result("ddp", 0.01)]]))
    (folder / "runs").mkdir()
    stored_run(folder / "runs" / "ring-1", "ring")
    stored_run(folder / "runs" / "ddp-1", "ddp", num_workers=1)
    steps = table(exported(folder, "csv", tmp_path / "csv") / "steps.csv")
    assert {(row["run"], row["label"], row["rank"]) for row in steps} == {
        ("ring-1", "ring", "0"),
        ("ring-1", "ring", "1"),
        ("ddp-1", "ddp", "0"),
    }


def test_memory_is_bounded(tmp_path: Path) -> None:
    def peak(num_steps: int) -> int:
        run = stored_run(tmp_path / f"run-{num_steps}", num_steps=num_steps, num_workers=1)
        sources = sources_of(read(run))
        tracemalloc.start()
        try:
            export(sources, "csv", tmp_path / f"csv-{num_steps}")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)  # what is imported on the way
    assert peak(5000) < 2 * peak(200)


def test_lines_of_before(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", result("ring", 0.01))
    (path / "workers").mkdir()
    old = {
        "step": 0,
        "iteration_s": 2.0,
        "data_s": 0.5,
        "loss": 1.0,
        "num_right": 1,
        "num_answers": 0,
        "num_samples": 4,
    }
    text = json.dumps(old) + "\n" + json.dumps({**old, "step": 1}) + "\n" + '{"step": 2, "itera'
    (path / "workers" / "0.jsonl").write_text(text)
    rows = table(exported(path, "csv", tmp_path / "csv") / "steps.csv")
    assert [(row["step"], row["begin_s"], row["sent_bytes"]) for row in rows] == [("0", "", ""), ("1", "", "")]
    found = list(scalars(worker_lines(path / "workers" / "0.jsonl")))
    assert {scalar.name for scalar in found} == {"train/loss", "step/iteration_s", "step/data_s", "step/samples_per_s"}
    assert [scalar.time_s for scalar in found if scalar.name == "train/loss"] == [2.0, 4.0]


def test_curves_of_a_step() -> None:
    found = {(name, step): (value, time_s) for name, value, step, time_s in scalars(lines_of(0, 3))}
    assert found["phase/forward_s", 0] == (0.5, 1.0)  # two micro-batches, and until the step's last operation
    assert found["op/all_reduce_bytes", 2] == (4000.0, 3.0)
    assert found["step/blocked_s", 1] == (0.25, 2.0)
    assert found["train/accuracy", 0] == (0.5, 1.0)
    assert ("train/loss", 1) not in found  # it was not finite
    assert found["resources/cpu_percent", 1] == (99.0, 2.0)
    assert ("resources/gpu_percent", 0) not in found


def test_only_the_newest_steps_are_held() -> None:
    def spans() -> Iterator[dict[str, Any]]:
        for step in range(3 * OPEN_STEPS):
            drawn.append(step)
            yield {"kind": "span", "step": step, "phase": "data", "begin_s": 0.0, "end_s": 1.0}

    drawn: list[int] = []
    first = next(iter(scalars(spans())))
    assert first.step == 0
    assert len(drawn) == OPEN_STEPS + 1


needs = {
    name: pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")
    for name in ("pyarrow", "tensorboard", "mlflow")
}


@needs["pyarrow"]
def test_parquet_has_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    from paceline.export import parquet

    monkeypatch.setattr(parquet, "GROUP_ROWS", 4)
    run = stored_run(tmp_path / "run", "=ring")
    folder = exported(run, "parquet", tmp_path / "parquet")
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.parquet" for name in FILES]
    steps = pq.read_table(folder / "steps.parquet").to_pylist()
    assert len(steps) == 6
    assert steps[0]["label"] == "=ring"  # nobody runs Parquet
    assert (steps[1]["loss"], steps[5]["sent_bytes"], steps[5]["rank"]) == (None, 12_000, 1)
    file = pq.ParquetFile(folder / "steps.parquet")
    assert file.num_row_groups == 2
    assert str(file.schema_arrow.field("begin_s").type) == "double"
    assert pq.read_table(folder / "samples.parquet").num_rows == 4


@needs["tensorboard"]
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_events(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = exported(stored_run(tmp_path / "run"), "tensorboard", tmp_path / "logs")
    assert sorted(path.name for path in (folder / "run").iterdir()) == ["rank-0", "rank-1"]
    events = EventAccumulator(str(folder / "run" / "rank-1"))
    events.Reload()
    assert {"train/loss", "phase/forward_s", "op/all_reduce_s", "resources/cpu_percent"} <= set(
        events.Tags()["scalars"]
    )
    forward = events.Scalars("phase/forward_s")
    assert [(event.step, event.value) for event in forward] == [(0, 0.5), (1, 0.5), (2, 0.5)]
    started = find(str(tmp_path / "run"), tmp_path).started
    assert forward[1].wall_time - forward[0].wall_time == pytest.approx(1.0)
    assert started.startswith("2026-01-02")
    assert 0 < forward[0].wall_time - 1_767_323_045 < 2  # 2026-01-02T03:04:05+0000 and a second


@needs["mlflow"]
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stored_run(tmp_path / "run", "ddp:bucket_mb=1")
    store = exported(run, "mlflow", tmp_path / "store")
    exported(run, "mlflow", store)  # a store takes more runs
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store.resolve().as_uri())
    experiment = client.get_experiment_by_name("paceline")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 2
    assert runs[0].info.status == "FINISHED"
    assert runs[0].data.params["model.name"] == "lenet5"
    assert runs[0].data.tags["strategy"] == "ddp:bucket_mb=1"
    history = client.get_metric_history(runs[0].info.run_id, "rank-1/step/sent_bytes")
    assert [(metric.step, metric.value) for metric in history] == [(0, 4000.0), (1, 8000.0), (2, 12_000.0)]


@pytest.mark.parametrize(
    ("to", "package"), [("parquet", "pyarrow"), ("tensorboard", "tensorboard"), ("mlflow", "mlflow")]
)
def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, package: str) -> None:
    present = importlib.util.find_spec

    def find_spec(name: str, *arguments: Any) -> Any:
        return None if name == package else present(name, *arguments)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    run = stored_run(tmp_path / "run")
    with pytest.raises(UsageError, match=rf"needs {package}, not installed here: pip install 'paceline\[{to}\]'"):
        exported(run, to, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_wrong_requests(tmp_path: Path) -> None:
    run = stored_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    empty = write_run(tmp_path / "empty", result("ring", 0.01))
    for to, folder, output, sentence in (
        ("cvs", run, "new", "did you mean 'csv'"),
        ("csv", run, "file", "is a file"),
        ("csv", run, "full", "is not empty"),
        ("csv", empty, "new", "'empty' has no worker files to export"),
    ):
        done = run_command("export", str(folder), "--to", to, "-o", str(tmp_path / output))
        assert done.code == 2
        assert sentence in " ".join(done.err.split())
    assert not (tmp_path / "new").exists()


def test_a_damaged_line_leaves_nothing(tmp_path: Path) -> None:
    run = stored_run(tmp_path / "run")
    file = run / "workers" / "1.jsonl"
    file.write_text("{\n" + file.read_text())
    done = run_command("export", "run", "--to", "csv", "-o", str(tmp_path / "csv"), "--out", str(tmp_path))
    assert done.code == 2
    assert "is damaged in line 1" in " ".join(done.err.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_into_an_empty_folder_that_is_there(tmp_path: Path) -> None:
    stored_run(tmp_path / "run")
    (tmp_path / "csv").mkdir()
    done = run_command("export", "last", "--to", "csv", "-o", str(tmp_path / "csv"), "--out", str(tmp_path))
    assert done.code == 0, done.err
    assert len(table(tmp_path / "csv" / "steps.csv")) == 6
