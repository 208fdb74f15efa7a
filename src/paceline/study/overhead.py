"""Measurement of the profiling overhead: how much Paceline's own measurements slow training.

The steps of one short run are divided into blocks of consecutive steps, and half of the blocks are profiled.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from paceline.codecs import TensorSpec
from paceline.launch.base import WorkerPool
from paceline.measure.observer import is_measured
from paceline.measure.stats import interval95_of_median
from paceline.recipe import Changes, Recipe
from paceline.results import Overhead, convert_reports
from paceline.results.worker_report import WorkerReport
from paceline.runs.store import disk_errors
from paceline.strategies import StrategySpec
from paceline.study.entries import Entry
from paceline.study.run import training_task
from paceline.train.context import ignore_event

LEAST_STEPS, MOST_STEPS = 48, 240
LEAST_PAIRS = 6  # the median of fewer pairs has no 95 % confidence interval
STUDY_SHARE = 5  # the run has a fifth of the study's steps, within the limits above


def measure_overhead(
    launcher: WorkerPool, recipe: Recipe, entries: Sequence[Entry], *, num_steps: int, out: Path | None
) -> tuple[str, Overhead] | None:
    """Measure how much profiling slows a short run of the strategy with the most communication operations.

    Return the strategy's label and the overhead. Return None if profiling is off, and in all processes but the main
    one. `num_steps` is the number of steps of the whole study. The workers' files are written to a temporary folder in
    `out`, the study's folder, which is None in other processes. All processes choose the same strategy and the same
    length of the run, because the choice does not depend on measurements.
    """
    if not recipe.measure.spans:
        return None
    entry = max(entries, key=_num_operations)
    steps = min(max(num_steps // STUDY_SHARE, LEAST_STEPS), MOST_STEPS)
    short = {"train.iterations": steps, "train.eval_every": 0, "train.checkpoint_every": 0, "train.log_every": 0}
    quiet: Changes = {"measure.profile": "", "measure.inject": [], "measure.target_accuracy": None}
    quiet["train.on_nonfinite"] = "continue"  # all blocks are needed
    recipe = entry.recipe(recipe).replace({**short, **quiet})
    block = steps_per_block(steps)
    with ExitStack() as stack:
        folder = None
        if out is not None:
            with disk_errors(out):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=out, prefix="overhead-")))
        task = training_task(recipe, entry, folder, checkpoint="", steps_per_block=block)
        workers = launcher.run(task, ignore_event)
    if not launcher.is_main:
        return None
    overhead = compare_blocks([worker.iteration_s for worker in convert_reports(workers, WorkerReport)], block)
    return None if overhead is None else (entry.label, overhead)


def steps_per_block(num_steps: int) -> int:
    """Return how many consecutive steps form a block, for a run of `num_steps` steps.

    Blocks are short, so that noise affects blocks with and without profiling alike. A run of 48 steps or more has at
    least 20 pairs of blocks.
    """
    return min(max(num_steps // 48, 1), 5)


def compare_blocks(iteration_s: Sequence[Sequence[float]], steps_per_block: int) -> Overhead | None:
    """Return the profiling overhead from every worker's step times, or None if there are too few steps."""
    return summarise(percents_of_blocks(iteration_s, steps_per_block))


def percents_of_blocks(iteration_s: Sequence[Sequence[float]], steps_per_block: int) -> list[float]:
    """Return the overhead in percent for every pair of adjacent blocks, one with and one without profiling.

    The first two pairs are left out, as warm-up.
    """
    steps = [statistics.fmean(times) for times in zip(*iteration_s, strict=False)]
    num_steps = len(steps)
    blocks = [
        (is_measured(first, steps_per_block), statistics.median(steps[first : first + steps_per_block]))
        for first in range(4 * steps_per_block, num_steps - steps_per_block + 1, steps_per_block)
    ]
    pairs = [sorted(blocks[index : index + 2], reverse=True) for index in range(0, len(blocks) - 1, 2)]
    return [100 * (measured[1] / other[1] - 1) for measured, other in pairs]


def summarise(percents: Sequence[float]) -> Overhead | None:
    """Return the median of the overheads in percent and its confidence interval, or None if there are no overheads.

    The interval is None if there are fewer than LEAST_PAIRS overheads.
    """
    if not percents:
        return None
    return Overhead(
        cost_percent=statistics.median(percents),
        interval95_percent=interval95_of_median(percents) if len(percents) >= LEAST_PAIRS else None,
        repeats=len(percents),
    )


def _num_operations(entry: Entry) -> int:
    """Return how many operations the busiest worker is predicted to execute in the first step of a small model."""
    strategy = StrategySpec.parse(entry.spec, entry.codec).build()
    tensors = [TensorSpec(1000, 4)] * 8
    return max(len(strategy.traffic(tensors, rank, entry.num_workers, 0)) for rank in range(entry.num_workers))
