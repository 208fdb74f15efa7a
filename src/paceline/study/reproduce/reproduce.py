"""The reproduce study: run the points of an experiment in turn, and optionally quantize its model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from paceline.errors import UsageError
from paceline.launch.base import WorkerPool
from paceline.recipe import Recipe
from paceline.results import Json, Row, RunResult, StudyResult, changed
from paceline.results.quantize import ACTIVATIONS, Stage
from paceline.results.study import MeasuredFigure, OurRow, Proof, Reproduction
from paceline.study.base import Cell, Progress, Study, fair_rows, make_result
from paceline.study.entries import Entry
from paceline.study.quantize import QuantizeOptions, find_source, load_source, quantize
from paceline.study.quantize.stages import StageListener
from paceline.study.reproduce.experiment import load_experiment
from paceline.study.reproduce.experiment_plan import ExperimentPlan, Part
from paceline.study.reproduce.experiment_plan import prepare as prepare_plan
from paceline.study.reproduce.figures import Scope, load_of, our_figures
from paceline.study.reproduce.proof import prove
from paceline.study.reproduce.published_tables import columns, side_by_side
from paceline.study.run_results import compared
from paceline.study.study_folder import StudyFolder
from paceline.text import file_name_of


@dataclass(kw_only=True)
class Reproduce(Study):
    """Runs the points of an experiment; each is complete before the next begins."""

    name: ClassVar[str] = "reproduce"
    result_type: ClassVar[type[StudyResult]] = Reproduction
    varies_seed: ClassVar[bool] = True  # accuracies are compared over seeds
    request_keys: ClassVar[tuple[str, ...]] = ("recipe", "repeats", "name", "request")

    recipe: Recipe
    plan: ExperimentPlan
    request: Json  # the arguments of `prepare`
    repeats: int
    _proof: list[Proof] = field(default_factory=list)
    _stages: list[OurRow] = field(default_factory=list)  # of the quantized model

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
        """Choose data and nodes by what is available, and validate the plan."""
        request = {"full": full, "data_dir": data_dir, "device": device, "on_cluster": on_cluster}
        plan = prepare_plan(load_experiment(name), full=full, data_dir=data_dir, device=device, on_cluster=on_cluster)
        return cls(recipe=plan.recipe, plan=plan, request=request, repeats=repeats or plan.length.repeats)

    @classmethod
    def resumed(cls, stored: StudyResult, *, num_hosts: int = 1) -> Reproduce:
        del num_hosts  # experiments run on this host
        assert isinstance(stored, Reproduction)
        if stored.request is None:
            raise UsageError(
                "this experiment of an older version cannot be resumed: its request was not stored; start it again"
            )
        return cls.prepare(stored.name, **stored.request, repeats=stored.repeats)

    @property
    def title(self) -> str:
        return self.plan.experiment.name

    @property
    def num_processes(self) -> int:
        return self.plan.num_processes

    def begin(self, launcher: WorkerPool | None, stored: StudyResult | None) -> None:
        """Run the proofs that are not stored yet."""
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
        for part in self.plan.parts:
            cells = self._cells(part)
            if not all(progress.has(cell) for cell in cells):
                return cells
        return []

    def end(self, folder: Path, progress: Progress) -> None:
        del progress
        if self.plan.experiment.quantizes:
            run = StudyFolder(folder).run_of(self.cells()[0])
            assert run is not None, "the first run is complete"
            self._stages = integer_rows(self.plan, folder, run)

    def result(self, header: StudyResult, progress: Progress) -> Reproduction:
        rows, ours = results_of_parts(self.plan, progress)
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
            published=side_by_side(self.plan.experiment, ours),
        )

    def _cells(self, part: Part) -> list[Cell]:
        cells = [
            Cell(
                key=key_of(part, entry),
                recipe=part.recipe,
                entry=entry,
                folder_name=f"{_prefix(part)}{file_name_of(entry.label)}",
            )
            for entry in part.entries
        ]
        return self.repeated(cells, self.repeats)


def results_of_parts(plan: ExperimentPlan, progress: Progress) -> tuple[list[Row], list[OurRow]]:
    """Return the rows of the study, and our rows for the comparison with the published tables."""
    sizes = {key_of(part, entry): part.recipe.batch_size for part in plan.parts for entry in part.entries}
    runs: dict[str, list[RunResult]] = {}
    rows: list[Row] = []
    for part in plan.parts:
        found = {key_of(part, entry): progress.of(key_of(part, entry)) for entry in part.entries}
        found = {key: results for key, results in found.items() if results}
        # Repeats are paired: use as many as all rows of the point have.
        common = min((len(results) for results in found.values()), default=0)
        runs |= {key: results[:common] for key, results in found.items()}
        rows += [changed(row, point=part.point) if part.point else row for row in fair_rows(found.values())]
    scope = Scope(plan.experiment, runs, sizes, plan.compares_accuracy)
    ours = [
        OurRow(
            key=key_of(part, entry),
            label=entry.label,
            point=part.point,
            is_first_point=part is plan.parts[0],
            workers=entry.num_workers,
            steps=repeats[0].steps,
            figures=our_figures(key_of(part, entry), repeats, scope),
            load=load_of(repeats[0]) if plan.experiment.shows_load else [],
        )
        for part in plan.parts
        for entry in part.entries
        if (repeats := runs.get(key_of(part, entry)))
    ]
    # Iteration times with different batch sizes cannot be compared.
    return (compared(rows) if len(set(sizes.values())) == 1 else rows), ours


def key_of(part: Part, entry: Entry) -> str:
    """Return the name of a row within the study."""
    words = [f"{key.rpartition('.')[2]} {value}" for key, value in part.point.items()]
    return ", ".join([entry.label, *words])


def _prefix(part: Part) -> str:
    """Return the folder prefix of the runs of one point."""
    words = [f"{key.rpartition('.')[2]}={value}" for key, value in part.point.items()]
    return file_name_of("-".join([*words, ""])) if words else ""


def integer_rows(plan: ExperimentPlan, folder: Path, run: Path) -> list[OurRow]:
    """Quantize the model of a run in a study inside the folder; return a row for every stage."""
    loaded = load_source(find_source(str(run), folder, {}))
    study, _ = quantize(loaded, QuantizeOptions(), out=folder / "quantize", listener=StageListener())
    return [_row(plan, stage_key(stage, study.chosen_calibration), stage) for stage in study.stages]


def _row(plan: ExperimentPlan, key: str, stage: Stage) -> OurRow:
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


def stage_key(stage: Stage, chosen: str) -> str:
    """Return the key of a stage; activation stages other than the chosen one include their calibration."""
    if stage.stage != ACTIVATIONS or stage.calibration == chosen:
        return stage.stage
    return f"{stage.stage}:{stage.calibration}"
