"""Write a report of invented figures, to look at every section of the page: python scripts/sample_report.py sample.html

The first lines of the page say that nothing was measured. `paceline compare` writes real reports.
"""

from __future__ import annotations

import dataclasses
import math
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the tests' invented measurements

from measured_samples import KINDS, Kind, measured
from paceline.results import Evaluation, Overhead, RunResult, changed
from report_samples import recipe, study_of, write_report, write_study

STEPS = 300


def main(output: Path) -> None:
    noise = random.Random(1)
    rows = [[repeat(name, kind, noise) for _ in range(3)] for name, kind in KINDS.items()]
    about = recipe(name="sample", description="Invented figures: nothing on this page was measured")
    with tempfile.TemporaryDirectory() as scratch:
        study = study_of(rows, recipe=about.to_dict())
        results = [changed(row, measuring=overhead(noise)) for row in study.results]
        folder = write_study(Path(scratch) / "study", changed(study, results=results))
        print(write_report([folder], output))


def repeat(name: str, kind: Kind, noise: random.Random) -> RunResult:
    """Return one repeat with curves that look like training; workers that do not synchronise learn less."""
    found = measured(name, dataclasses.replace(kind, step=kind.step * noise.uniform(0.98, 1.03)), steps=STEPS)
    accuracy, pace = (0.871, 0.8) if name == "none" else (0.938, 1.0)
    same = random.Random(pace)  # exact strategies have the same curve
    steps, step_s = range(len(found.curve.step)), found.iteration_s.mean
    curve = changed(
        found.curve,
        loss=[2.3 * math.exp(-i / 60 * pace) + 0.15 + 0.1 * same.uniform(-1, 1) * math.exp(-i / 150) for i in steps],
        accuracy=[min(0.99, 0.1 + 0.86 * (1 - math.exp(-i / 45 * pace)) + 0.03 * same.random()) for i in steps],
        iteration_s=[step_s * (1 + abs(noise.gauss(0, 0.05))) for _ in steps],
    )
    evaluations = [
        Evaluation(
            step=at,
            epoch=at // 75,
            train_s=at * step_s,
            loss=0.3,
            accuracy=0.1 + 0.84 * (1 - math.exp(-at / 50)),
            sent_bytes=None,
        )
        for at in range(75, STEPS + 1, 75)
    ]
    workers = []
    for worker in found.per_worker:
        own = accuracy + (0.01 * noise.uniform(-1, 1) if name == "none" else 0)
        workers.append(changed(worker, test_accuracy=own, train_accuracy=own + 0.02))
    final = changed(found.final, test_accuracy=accuracy, train_accuracy=accuracy + 0.02)
    return changed(found, curve=curve, evaluations=evaluations, per_worker=workers, final=final)


def overhead(noise: random.Random) -> Overhead:
    cost = noise.uniform(0.4, 0.7)
    return Overhead(cost_percent=cost, interval95_percent=(cost - 0.6, cost + 0.6), repeats=5)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
