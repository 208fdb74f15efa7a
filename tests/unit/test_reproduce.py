"""Published experiments: what their files say, what is run of them here, and both beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import report_samples as samples
from made_up import MadeUpLauncher, Silent, launching, made_up_worker
from paceline.data import load_data
from paceline.errors import UsageError
from paceline.launch.base import Task
from paceline.models import build_model
from paceline.present.charts.reproduce import figure_text
from paceline.present.studies.reproduce import proof_finding
from paceline.results import (
    Evaluation,
    NetworkUse,
    Resources,
    RunResult,
    WorkerNetwork,
    WorkerResources,
    changed,
)
from paceline.results.commands import ReplicaReport, ReplicaStep
from paceline.results.study import MeasuredFigure, OurRow, Reproduction, WorkerLoad
from paceline.runs import list_runs
from paceline.study.engine import run_study
from paceline.study.reproduce import ExperimentPlan, Reproduce, experiment_names, load_experiment
from paceline.study.reproduce.figures import QUANTITIES, convergence, load_of
from paceline.study.reproduce.reproduce import compare_digests

NAMES = ["lenet5-two-reduces", "resnet18-batch-sweep", "stepwise-study", "vgg11-four-nodes"]
INTEGERS = "int8-small-cnn"  # one worker, and stages of its model instead of strategies
STAGES = {"float", "weights-per-tensor", "weights-per-channel", "activations", "biases", "integer"}


@pytest.fixture(autouse=True)
def no_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that nobody started do not look at it."""
    monkeypatch.setattr("paceline.study.reproduce.reproduce._write_oracle", lambda *_: None)


def plan_of(name: str, tmp_path: Path, **changes: Any) -> ExperimentPlan:
    return study_of(name, tmp_path, **changes).plan


def study_of(name: str, tmp_path: Path, **changes: Any) -> Reproduce:
    return Reproduce.prepare(name, **{"data_dir": str(tmp_path), "on_cluster": False, **changes})


def answer(task: Task, _: int) -> list[dict[str, Any]]:
    """A proof's digests, or a training run of as many steps as were asked for."""
    if "oracle" in task.arguments:
        return proven(*([["a", "b"]] * task.num_workers), error=1e-16)
    recipe = task.arguments["recipe"]
    steps = recipe.num_steps(recipe.data.train_samples or 100)
    time_s = 0.1 * recipe.batch_size / task.num_workers
    evaluations = [
        {"step": 10, "epoch": 0, "train_s": 1.0, "loss": 1.0, "accuracy": 0.5},
        {"step": 20, "epoch": 1, "train_s": 2.0, "loss": 0.5, "accuracy": 0.95},
    ]
    return [made_up_worker(rank, [time_s] * steps, evaluations=evaluations) for rank in range(task.num_workers)]


def proven(*digests: list[str], error: float = 0.0) -> list[ReplicaReport]:
    """Workers of a proof, by their digests."""
    return [
        ReplicaReport(
            rank=rank,
            steps=[ReplicaStep(step=step, digest=digest) for step, digest in enumerate(own)],
            start_digest="",
            final_digest=own[-1],
            metrics={},
            final_relative_error=error,
        )
        for rank, own in enumerate(digests)
    ]


def reproduced(name: str, tmp_path: Path, **changes: Any) -> tuple[Reproduction, Path]:
    launcher = MadeUpLauncher(answer)
    outcome = run_study(study_of(name, tmp_path, **changes), launching(launcher), Silent(), tmp_path / "runs")
    assert outcome is not None
    assert isinstance(outcome.result, Reproduction)
    return outcome.result, outcome.folder


def row_of(study: Reproduction, key: str) -> OurRow:
    return next(row for row in study.ours if row.key == key)


def test_the_experiments_are_there() -> None:
    assert list(experiment_names()) == [INTEGERS, *NAMES]
    with pytest.raises(UsageError, match="did you mean 'vgg11-four-nodes'"):
        load_experiment("vgg11-four-node")


@pytest.mark.parametrize("name", [INTEGERS, *NAMES])
def test_files_name_what_exists(name: str) -> None:
    experiment = load_experiment(name)
    assert set(experiment.quantities) <= set(QUANTITIES)
    for table in experiment.published:
        assert table.source
        for row in table.rows:
            assert set(row.figures) <= set(experiment.quantities), row.name
            for length in (experiment.short, experiment.full):
                names = {*length.strategies, *(s for point in length.points for s in point.get("strategies", ()))}
                assert row.ours in (STAGES if experiment.quantizes else names)


def test_published_figures_are_as_published() -> None:
    vgg, resnet = load_experiment("vgg11-four-nodes"), load_experiment("resnet18-batch-sweep")
    assert [row.figures["iteration_s"] for row in vgg.published[0].rows] == [1.855, 1.304, 0.932, 0.664]
    assert [row.figures["test_accuracy"] for row in vgg.published[0].rows] == [0.1633, 0.1818, 0.1820, 0.1875]
    epochs = {tuple(row.point.values()): row.figures["epoch_s"] for row in resnet.published[0].rows}
    assert [epochs[4, batch] for batch in (32, 128, 512, 2048, 8192)] == [28.45, 9.34, 6.66, 6.60, 5.02]
    small = load_experiment(INTEGERS)
    assert [row.figures["test_accuracy"] for row in small.published[0].rows] == [0.5862, 0.3561, 0.3353]
    lenet = load_experiment("lenet5-two-reduces")
    assert [row.figures["train_s"] for row in lenet.published[0].rows] == [161.53, 127.10]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_can_be_planned_with_no_other_argument(name: str, full: bool, tmp_path: Path) -> None:
    plan = plan_of(name, tmp_path, full=full)
    assert plan.num_processes >= 3
    assert plan.recipe.cluster.nodes == 0
    told = " ".join(plan.notes)
    is_synthetic = plan.recipe.data.name.startswith("synthetic")
    assert is_synthetic == ("synthetic data of the same shape" in told) == (name in ("resnet18-batch-sweep", NAMES[3]))
    assert plan.compares_accuracy == (plan.length.is_whole and not is_synthetic)
    assert ("Only a subset" in told) == (not plan.length.is_whole)
    if load_experiment(name).cluster:
        assert "plain processes of this host" in told


def test_the_small_cnn_is_the_published_one(tmp_path: Path) -> None:
    plan = plan_of(INTEGERS, tmp_path)
    assert plan.num_processes == 1
    model = build_model(plan.recipe.model.name, load_data(plan.recipe.data, seed=0))
    assert sum(parameter.numel() for parameter in model.parameters()) == 62_006


def test_a_subset_is_marked_and_its_accuracy_is_not_compared(tmp_path: Path) -> None:
    study, _ = reproduced("vgg11-four-nodes", tmp_path)
    alone, gather = row_of(study, "one-worker"), row_of(study, "gather-scatter")
    assert "test_accuracy" not in alone.figures
    assert alone.figures["epoch_s"] == MeasuredFigure(value=pytest.approx(25.6 * 196), is_extrapolated=True)
    assert not alone.figures["iteration_s"].is_extrapolated
    assert gather.figures["speedup"].value == pytest.approx(4.0)
    assert [row.ours for row in study.published[0].rows] == [
        "one-worker",
        "gather-scatter",
        "all-reduce",
        "ddp",
    ]
    assert study.published[0].rows[0].published["iteration_s"] == 1.855


def test_full_runs_a_whole_epoch(tmp_path: Path) -> None:
    study, _ = reproduced("vgg11-four-nodes", tmp_path, full=True)
    row = row_of(study, "ddp, workers 4")
    assert row.steps == 196
    assert not row.figures["epoch_s"].is_extrapolated
    assert {row.workers for row in study.ours} == {1, 2, 3, 4}
    published = next(row for row in study.published[0].rows if row.name.startswith("Distributed"))
    assert published.ours == "ddp, workers 4"


def test_a_batch_sweep_is_held_to_one_worker_of_the_same_batch_each(tmp_path: Path) -> None:
    study, _ = reproduced("resnet18-batch-sweep", tmp_path)
    row = row_of(study, "ddp, workers 2, worker_batch_size 32").figures
    # Twice as many samples in a step of the same length: half the epoch, so that nothing is left for communication.
    assert row["epoch_s"].value == pytest.approx(3.2 * 782)
    assert row["communication_estimated_s"].value == pytest.approx(3.2 * (782 - 1563 / 2))
    assert row["epoch_s"].is_extrapolated
    assert study.results[0].versus_fastest is None
    assert study.results[0].point == {"workers": 1, "train.worker_batch_size": 32}


def test_two_reduces_are_proven(tmp_path: Path) -> None:
    study, _ = reproduced("lenet5-two-reduces", tmp_path)
    assert [row.strategy for row in study.proof] == ["root-average", "ring"]
    assert all(row.passed for row in study.proof)
    assert row_of(study, "ring").figures["replicas"].value == "equal on every rank"
    assert row_of(study, "ring").figures["test_accuracy_by_rank"].value == [0.25] * 4


def test_the_stepwise_study_has_convergence_and_load(tmp_path: Path) -> None:
    study, _ = reproduced("stepwise-study", tmp_path)
    row = row_of(study, "stepwise")
    assert row.figures["convergence_s"].value == 2.0
    assert row.figures["convergence_steps"].value == 20
    assert row.figures["share_of_ring"].value == pytest.approx(1.0)
    assert row.workers == 3
    averaging = {one.label for one in study.ours}
    assert {"parameter-server:average=weights", "ring-reduce:average=weights", "ring:average=weights"} <= averaging


def test_an_interrupted_experiment_keeps_what_it_has(tmp_path: Path) -> None:
    def reply(task: Task, number: int) -> list[dict[str, Any]]:
        if number == 3:
            raise KeyboardInterrupt
        return answer(task, number)

    with pytest.raises(KeyboardInterrupt):
        run_study(study_of("vgg11-four-nodes", tmp_path), launching(MadeUpLauncher(reply)), Silent(), tmp_path / "runs")
    [stored] = list_runs(tmp_path / "runs")
    assert stored.status == "interrupted"
    assert isinstance(stored.content, Reproduction)
    assert [row.label for row in stored.content.ours] == ["one-worker", "gather-scatter", "all-reduce"]
    assert stored.content.published[0].rows[3].ours is None


def test_a_replica_that_differs_once_fails_the_proof() -> None:
    assert compare_digests("good", proven(["a", "b"], ["a", "b"])).passed
    once = compare_digests("bad", proven(["a", "b", "c"], ["a", "x", "c"]))
    assert (once.passed, once.first_unequal, once.equal) == (False, 1, 2)
    finding = proof_finding(once)
    assert "models differ between ranks" in finding.text
    assert finding.kind == "problem"
    assert not compare_digests("far", proven(["a", "b"], ["a", "b"], error=1e-3)).passed, "equal, but not the average"
    assert not compare_digests("still", proven(["a", "a"], ["a", "a"])).passed, "nobody moved"


def result_with(**changes: Any) -> RunResult:
    return changed(samples.result("ring", 0.1), **changes)


def test_convergence_is_the_first_evaluation_at_the_target() -> None:
    def evaluation(step: int, accuracy: float | None) -> Evaluation:
        return Evaluation(step=step, epoch=0, train_s=1.0, loss=1.0, accuracy=accuracy, sent_bytes=None)

    evaluations = [evaluation(1, 0.5), evaluation(2, 0.9), evaluation(3, 0.8)]
    result = result_with(evaluations=evaluations)
    assert convergence(result, 0.9) == evaluations[1]
    assert convergence(result, 0.95) is None
    assert convergence(result_with(evaluations=[evaluation(1, None)]), 0.1) is None


def test_load_of_every_worker() -> None:
    sampled = WorkerResources(
        rank=0,
        time_s=[0.0, 1.0, 2.0],
        cpu_percent=[None, 50.0, 100.0],
        rss_bytes=None,
        disk_read_bytes=[0, 5, None],
        disk_written_bytes=None,
        network_sent_bytes=None,
        network_received_bytes=None,
        gpu_percent=None,
        gpu_memory_bytes=None,
        peak_rss_bytes=7,
    )
    names = [name for name in WorkerNetwork.__struct_fields__ if name != "rank"]
    counted = WorkerNetwork(**{**dict.fromkeys(names), "rank": 0, "kernel_sent_bytes": 11, "kernel_received_bytes": 12})
    [row] = load_of(result_with(resources=Resources(per_worker=[sampled]), network=NetworkUse(per_worker=[counted])))
    assert row == WorkerLoad(
        rank=0,
        cpu_percent=75.0,
        peak_rss_bytes=7,
        network_sent_bytes=11,
        network_received_bytes=12,
        disk_read_bytes=5,
        disk_written_bytes=None,
    )
    assert load_of(result_with(resources=None, network=None)) == []


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (0.1633, "%", "16.3 %"),
        ([0.5, 0.25], "%", "50.0 / 25.0 %"),
        ("0.950 to 1.506 s", "s", "0.950 to 1.506"),
        (161.53, "s", "161.5"),
        (0.664, "s", "0.664"),
        (0.0123, "s", "0.0123"),
        (44_700_000.0, "bytes", "44,700.0"),
        (20, "steps", "20"),
    ],
)
def test_figures_as_text(value: Any, unit: str, text: str) -> None:
    assert figure_text(value, unit) == text
