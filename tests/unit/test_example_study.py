"""Adding a study: its plan, its result and nothing else. The engine runs, stores, resumes and lists it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from made_up import MadeUpLauncher, Silent, launching, made_up_worker
from paceline.launch.base import LaunchRequest, Task, WorkerPool
from paceline.launch.registry import choose_launcher
from paceline.recipe import ClusterConfig, Recipe
from paceline.results import StudyResult
from paceline.results.study import study_types
from paceline.runs import list_runs
from paceline.study.base import Cell, Progress, Study, make_result, rows_of_common_repeats
from paceline.study.engine import find_unfinished, run_study
from paceline.study.entries import make_entry
from paceline.study.study_folder import read_study

RECIPE = Recipe().replace({"workers": 2, "strategy": "ring", "train.iterations": 2, "data.train_samples": 40})
RECIPE = RECIPE.replace({"train.batch_size": 20, "name": "toy"})


class Halved(StudyResult, frozen=True, kw_only=True):
    """The loss with a learning rate and with half of it."""

    study_name: ClassVar[str] = "halve"

    losses: list[float | None]


@dataclass(frozen=True, kw_only=True)
class Halve(Study):
    """Two cells: a recipe as it is, and with half of its learning rate."""

    name: ClassVar[str] = "halve"
    result_type: ClassVar[type[StudyResult]] = Halved

    recipe: Recipe
    repeats: int = 1

    @property
    def num_processes(self) -> int:
        return self.recipe.workers

    def cells(self) -> list[Cell]:
        entry = make_entry(self.recipe.strategy, self.recipe)
        rates = (self.recipe.optimizer.lr, self.recipe.optimizer.lr / 2)
        recipes = {f"lr {rate:g}": self.recipe.replace({"optimizer.lr": rate}) for rate in rates}
        cells = [
            Cell(key=key, recipe=recipe, entry=entry, folder_name=key.replace(" ", "-"))
            for key, recipe in recipes.items()
        ]
        return self.repeat_cells(cells, self.repeats)

    def result(self, header: StudyResult, progress: Progress) -> Halved:
        keys = list(dict.fromkeys(cell.key for cell in self.cells()))
        rows = rows_of_common_repeats(progress.results_of(key) for key in keys)
        return make_result(Halved, header, results=rows, losses=[row.final.train_loss for row in rows])

    @classmethod
    def from_stored(cls, stored: StudyResult, *, num_hosts: int = 1) -> Halve:
        del num_hosts
        return cls(recipe=Recipe.from_dict(stored.recipe), repeats=stored.repeats or 1)


class Interrupted(MadeUpLauncher):
    """May be interrupted in one of its tasks; the loss is the learning rate."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__(self._reply)
        self._at = at

    def _reply(self, task: Task, number: int) -> list[dict[str, Any]]:
        if number == self._at:
            raise KeyboardInterrupt
        rate = task.arguments["recipe"].optimizer.lr
        return [made_up_worker(rank, [0.1, 0.1], train_loss=rate) for rank in range(task.num_workers)]


def test_it_is_stored_resumed_and_listed(tmp_path: Path) -> None:
    study = Halve(recipe=RECIPE, repeats=2)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, launching(Interrupted(at=1)), Silent(), tmp_path)
    [begun] = list_runs(tmp_path)
    assert (begun.kind, begun.study, begun.status) == ("study", "halve", "interrupted")
    assert begun.folder == find_unfinished(study, tmp_path)
    launcher = Interrupted()
    again = Halve.from_stored(read_study(begun.folder))
    outcome = run_study(again, launching(launcher), Silent(), tmp_path, resume=begun.folder)
    assert outcome is not None
    assert len(launcher.tasks) == 3, "the first of four runs is not run again"
    [done] = list_runs(tmp_path)
    assert isinstance(done.content, Halved), "the loader knows the type of the result by the name of the study"
    assert done.content == outcome.result
    assert (done.status, done.content.losses) == ("done", [0.1, 0.05])
    assert [row.repeats for row in done.content.results] == [2, 2]
    assert study_types["halve"] is Halved


def test_it_runs_on_real_processes(tmp_path: Path) -> None:
    def launch(num_processes: int, cluster: ClusterConfig) -> WorkerPool:
        return choose_launcher(LaunchRequest(cluster=cluster)).open(num_processes)

    outcome = run_study(Halve(recipe=RECIPE), launch, Silent(), tmp_path)
    assert outcome is not None
    assert outcome.result.status == "done"
    assert [row.workers for row in outcome.result.results] == [2, 2]
    assert sorted(path.name for path in (outcome.folder / "runs").iterdir()) == ["lr-0.05-1", "lr-0.1-1"]
