"""The reproduce study: repeat a published experiment, and check the strategies in its `proof` for exactness.

A point is one combination of settings that an experiment varies, such as the number of workers. If the experiment
includes a quantization, the model is quantized after the runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.data import load_data
from paceline.errors import UsageError
from paceline.launch.base import Task, WorkerPool
from paceline.models import build_model
from paceline.recipe import Recipe
from paceline.results import Json, Row, RunResult, StudyResult, changed, convert_reports
from paceline.results.commands import ReplicaReport
from paceline.results.quantize import ACTIVATIONS, Stage
from paceline.results.study import MeasuredFigure, OurRow, Proof, Reproduction
from paceline.study.base import Cell, Progress, Study, make_result, rows_of_common_repeats
from paceline.study.entries import Entry
from paceline.study.judges import EXACT_TOLERANCE, missing_as_infinite
from paceline.study.quantize import QuantizeOptions, find_source, load_source, quantize
from paceline.study.quantize.stages import StageListener
from paceline.study.reproduce.experiment import ExperimentPlan, Part, load_experiment, plan_experiment
from paceline.study.reproduce.figures import FigureInputs, columns, load_of, our_figures, published_tables
from paceline.study.run_results import compare_rows
from paceline.study.study_folder import StudyFolder
from paceline.study.verify_replicas import replica_job
from paceline.text import file_name_of
from paceline.train.context import ignore_event
from paceline.train.oracle import oracle_steps


@dataclass(kw_only=True)
class Reproduce(Study):
    """Study that repeats a published experiment. The runs of one point form a stage of the study."""

    name: ClassVar[str] = "reproduce"
    result_type: ClassVar[type[StudyResult]] = Reproduction
    varies_seed: ClassVar[bool] = True  # accuracies are compared over seeds
    request_keys: ClassVar[tuple[str, ...]] = ("recipe", "repeats", "name", "request")

    recipe: Recipe
    plan: ExperimentPlan
    request: Json  # the arguments of `prepare`
    repeats: int
    _proof: list[Proof] = field(default_factory=list)
    _stages: list[OurRow] = field(default_factory=list)  # rows of the quantized model

    @classmethod
    def prepare(
        cls,
        name: str,
        *,
        full: bool = False,
        data_dir: str = "",
        device: str = "cpu",
        on_cluster: bool = True,
        repeats: int | None = None,
    ) -> Reproduce:
        """Load the experiment `name`, and plan its runs with the data and emulated nodes that this machine has."""
        request = {"full": full, "data_dir": data_dir, "device": device, "on_cluster": on_cluster}
        plan = plan_experiment(
            load_experiment(name), full=full, data_dir=data_dir, device=device, on_cluster=on_cluster
        )
        return cls(recipe=plan.recipe, plan=plan, request=request, repeats=repeats or plan.length.repeats)

    @classmethod
    def from_stored(cls, stored: StudyResult, *, num_hosts: int = 1) -> Reproduce:
        del num_hosts  # experiments run on this host
        assert isinstance(stored, Reproduction)
        if stored.request is None:
            raise UsageError(
                "an older version stored this experiment without its request, so it cannot be resumed; start it again"
            )
        return cls.prepare(stored.name, **stored.request, repeats=stored.repeats)

    @property
    def title(self) -> str:
        return self.plan.experiment.name

    @property
    def num_processes(self) -> int:
        return self.plan.num_processes

    def begin(self, launcher: WorkerPool | None, stored: StudyResult | None) -> None:
        """Check the experiment's `proof` strategies for exactness, unless the result of the check is stored already."""
        if isinstance(stored, Reproduction):
            self._proof = list(stored.proof)
        known = [proof.strategy for proof in self._proof]
        missing = [strategy for strategy in self.plan.experiment.proof if strategy not in known]
        if missing:
            assert launcher is not None, "cells of an experiment share their processes"
            for proof in prove(self.plan.recipe, missing, launcher):
                self._proof.append(proof)

    def cells(self) -> list[Cell]:
        return self._cells(self.plan.parts[0])

    def next_cells(self, progress: Progress) -> list[Cell]:
        stages = (self._cells(part) for part in self.plan.parts)
        return next((cells for cells in stages if not all(progress.has(cell) for cell in cells)), [])

    def end(self, folder: Path, progress: Progress) -> None:
        del progress
        if self.plan.experiment.quantizes:
            run = StudyFolder(folder).run_of(self.cells()[0])
            assert run is not None, "the first run is complete"
            self._stages = _quantized_rows(self.plan, folder, run)

    def result(self, header: StudyResult, progress: Progress) -> Reproduction:
        rows, ours = _rows_of_parts(self.plan, progress)
        ours += self._stages
        return make_result(
            Reproduction,
            header,
            title=self.plan.experiment.title,
            notes=self.plan.notes,
            quantities=columns(self.plan.experiment),
            request=self.request,
            proof=self._proof,
            results=rows,
            ours=ours,
            published=published_tables(self.plan.experiment, ours),
        )

    def _cells(self, part: Part) -> list[Cell]:
        cells = [
            Cell(
                key=_row_key(part, entry),
                recipe=part.recipe,
                entry=entry,
                folder_name=f"{_folder_prefix(part)}{file_name_of(entry.label)}",
            )
            for entry in part.entries
        ]
        return self.repeat_cells(cells, self.repeats)


def _rows_of_parts(plan: ExperimentPlan, progress: Progress) -> tuple[list[Row], list[OurRow]]:
    """Return the rows with the study's results, and rows with measured values for the columns of the published tables.

    Both lists have one row for every strategy and point (combination of settings) that was measured.
    """
    sizes = {_row_key(part, entry): part.recipe.batch_size for part in plan.parts for entry in part.entries}
    runs: dict[str, list[RunResult]] = {}
    rows: list[Row] = []
    for part in plan.parts:
        measured = {_row_key(part, entry): progress.results_of(_row_key(part, entry)) for entry in part.entries}
        measured = {key: results for key, results in measured.items() if results}
        # Rows are compared repeat by repeat, so every row uses only as many repeats as all rows of the point have.
        common = min((len(results) for results in measured.values()), default=0)
        runs |= {key: results[:common] for key, results in measured.items()}
        rows += [
            changed(row, point=part.point) if part.point else row for row in rows_of_common_repeats(measured.values())
        ]
    inputs = FigureInputs(plan.experiment, runs, sizes, plan.compares_accuracy)
    ours = [
        OurRow(
            key=_row_key(part, entry),
            label=entry.label,
            point=part.point,
            is_first_point=part is plan.parts[0],
            workers=entry.num_workers,
            steps=repeats[0].steps,
            figures=our_figures(_row_key(part, entry), repeats, inputs),
            load=load_of(repeats[0]) if plan.experiment.shows_load else [],
        )
        for part in plan.parts
        for entry in part.entries
        if (repeats := runs.get(_row_key(part, entry)))
    ]
    # Step times with different batch sizes cannot be compared.
    return (compare_rows(rows) if len(set(sizes.values())) == 1 else rows), ours


def _row_key(part: Part, entry: Entry) -> str:
    """Return a row's key, which is unique within the study. It consists of the strategy and the varied settings."""
    words = [f"{key.rpartition('.')[2]} {value}" for key, value in part.point.items()]
    return ", ".join([entry.label, *words])


def _folder_prefix(part: Part) -> str:
    """Return the text with which the folder names of all runs of one point begin."""
    words = [f"{key.rpartition('.')[2]}={value}" for key, value in part.point.items()]
    return file_name_of("-".join([*words, ""])) if words else ""


def _quantized_rows(plan: ExperimentPlan, folder: Path, run: Path) -> list[OurRow]:
    """Quantize the model of the run in folder `run`, store the results below `folder`, and return a row per stage."""
    loaded = load_source(find_source(str(run), folder, {}, trust=True))
    study, _ = quantize(loaded, QuantizeOptions(), out=folder / "quantize", listener=StageListener())
    return [_stage_row(plan, _stage_key(stage, study.chosen_calibration), stage) for stage in study.stages]


def _stage_row(plan: ExperimentPlan, key: str, stage: Stage) -> OurRow:
    accuracy = MeasuredFigure(value=stage.test_accuracy, is_extrapolated=False)
    return OurRow(
        key=key,
        label=key,
        point={},
        is_first_point=True,
        workers=1,
        steps=plan.parts[0].total_steps,
        figures={"test_accuracy": accuracy} if plan.compares_accuracy else {},
        load=[],
    )


def _stage_key(stage: Stage, chosen: str) -> str:
    """Return the key of a quantization stage.

    Every calibration method has a stage with int8 activations. The key of such a stage ends with the name of its
    method, except for the method `chosen`.
    """
    if stage.stage != ACTIVATIONS or stage.calibration == chosen:
        return stage.stage
    return f"{stage.stage}:{stage.calibration}"


def prove(recipe: Recipe, strategies: Sequence[str], launcher: WorkerPool) -> Iterator[Proof]:
    """Train under each of the strategies, and yield a proof that says whether the strategy is exact.

    All replicas are compared with each other after every step, and with the oracle (the same training in one process)
    at the end. Training runs in float64, so that rounding does not hide an error of the algorithm.
    """
    recipe = recipe.replace({"train.precision": "fp64", "train.eval_every": 0, "train.log_every": 0})
    with tempfile.TemporaryDirectory(prefix="paceline-oracle-") as folder:
        oracle = f"{folder}/oracle"
        _write_oracle(recipe, Path(f"{oracle}-final.safetensors"))
        for strategy in strategies:
            yield _prove(recipe, strategy, launcher, oracle)


def _write_oracle(recipe: Recipe, file: Path) -> None:
    """Train the oracle (the same training in one process), and write its final parameters to a file."""
    torch.manual_seed(recipe.seed)
    data = load_data(recipe.data, seed=recipe.seed)
    last: dict[str, Tensor] = {}
    num_threads = torch.get_num_threads()
    torch.set_num_threads(recipe.threads)  # more threads would compete for the cores of a busy machine
    try:
        for parameters in oracle_steps(recipe, data, build_model(recipe.model.name, data), recipe.workers):
            last = parameters
    finally:
        torch.set_num_threads(num_threads)
    save_file(last, file)


def _prove(recipe: Recipe, strategy: str, launcher: WorkerPool, oracle: str) -> Proof:
    arguments = {"recipe": recipe, "strategy": strategy, "oracle": oracle}
    task = Task(replica_job, arguments, num_workers=recipe.workers, comm=recipe.comm, timeout_s=recipe.timeout_s)
    return compare_digests(strategy, convert_reports(launcher.run(task, ignore_event), ReplicaReport))


def compare_digests(strategy: str, workers: Sequence[ReplicaReport]) -> Proof:
    """Return the proof for one strategy from its workers' reports, which describe their replicas after every step.

    The proof passes if replicas are equal after every step, change in every step, and end with the oracle's parameters
    within EXACT_TOLERANCE.
    """
    steps = list(zip(*([step.digest for step in worker.steps] for worker in workers), strict=True))
    unequal = [number for number, digests in enumerate(steps) if len(set(digests)) > 1]
    has_changed = len({digests[0] for digests in steps}) == len(steps)
    error = max(missing_as_infinite(worker.final_relative_error) for worker in workers)
    return Proof(
        strategy=strategy,
        ranks=len(workers),
        synchronisations=len(steps),
        equal=len(steps) - len(unequal),
        first_unequal=unequal[0] if unequal else None,
        max_relative_error=error,
        tolerance=EXACT_TOLERANCE,
        passed=not unequal and has_changed and error <= EXACT_TOLERANCE,
    )
