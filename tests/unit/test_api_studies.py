"""Studies as functions: an unfinished study goes on, unless it is to start anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paceline
from made_up import MadeUpLauncher, made_up_worker
from paceline.launch.base import Fit, Launcher, LaunchRequest, Task, WorkerPool
from paceline.recipe import Recipe
from paceline.runs import list_runs

RECIPE = Recipe().replace({"workers": 2, "strategies": "ring,ddp", "train.iterations": 2, "data.train_samples": 40})
RECIPE = RECIPE.replace({"train.batch_size": 20})


class MadeUp(Launcher):
    """Opens one made-up pool and may interrupt one of its tasks."""

    name = "made-up"

    def __init__(self, interrupted_at: int | None = None) -> None:
        super().__init__(LaunchRequest())
        self.pool = MadeUpLauncher(self._reply)
        self._at = interrupted_at

    @classmethod
    def detect(cls, request: LaunchRequest) -> Fit | None:
        del request
        return None

    def open(self, num_processes: int) -> WorkerPool:
        del num_processes
        return self.pool

    def _reply(self, task: Task, number: int) -> list[dict[str, Any]]:
        if number == self._at:
            raise KeyboardInterrupt
        return [made_up_worker(rank, [0.1, 0.1]) for rank in range(task.num_workers)]


@pytest.mark.parametrize(("fresh", "num_tasks", "num_studies"), [(False, 2, 1), (True, 3, 2)])
def test_an_unfinished_study_goes_on(tmp_path: Path, fresh: bool, num_tasks: int, num_studies: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        paceline.compare(RECIPE, out=tmp_path, launcher=MadeUp(interrupted_at=1))
    launcher = MadeUp()
    found = paceline.compare(RECIPE, out=tmp_path, launcher=launcher, fresh=fresh)
    assert len(launcher.pool.tasks) == num_tasks, "the runs that were missing, and the overhead probe"
    assert found["status"] == "done"
    assert [row["strategy"] for row in found.rows] == ["ring", "ddp"]
    assert len(list_runs(tmp_path)) == num_studies
