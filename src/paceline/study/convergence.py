"""How training came on: over steps, over time, over bytes, and up to a target. Pure, values in, values out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

CURVE_POINTS = 400

Worker = dict[str, Any]


def curve_of(workers: Sequence[Worker]) -> dict[str, list[Any]]:
    """Loss, accuracy, time and bytes over steps, all workers together, thinned to what a chart can show.

    Workers that run at their own pace may have made different numbers of steps: each counts in those that it made.
    """
    num_steps = max(len(worker["loss"]) for worker in workers)
    stride = max(-(-num_steps // CURVE_POINTS), 1)
    has_bytes = all("step_sent_bytes" in worker for worker in workers)
    names = ["step", "train_s", "loss", "accuracy", "iteration_s", *(["sent_bytes"] if has_bytes else [])]
    curve: dict[str, list[Any]] = {name: [] for name in names}
    elapsed_s = 0.0
    for first in range(0, num_steps, stride):
        end = min(first + stride, num_steps)
        times = [
            max(worker["iteration_s"][step] for worker in workers if step < len(worker["iteration_s"]))
            for step in range(first, end)
        ]
        samples, answers, right = (
            sum(sum(worker[key][first:end]) for worker in workers)
            for key in ("num_samples", "num_answers", "num_right")
        )
        elapsed_s += sum(times)
        curve["step"].append(end)
        curve["train_s"].append(elapsed_s)
        curve["loss"].append(_loss_sum(workers, first, end) / samples)
        curve["accuracy"].append(right / answers if answers else None)
        curve["iteration_s"].append(statistics.fmean(times))
        if has_bytes:
            curve["sent_bytes"].append(sent_until(workers, end))
    return curve


def _loss_sum(workers: Sequence[Worker], first: int, end: int) -> float:
    return float(
        sum(
            loss * count
            for worker in workers
            for loss, count in zip(worker["loss"][first:end], worker["num_samples"][first:end], strict=True)
        )
    )


def sent_until(workers: Sequence[Worker], step: int) -> int | None:
    """Bytes that all workers have sent after so many steps of each; None where nobody counted them."""
    if not all("step_sent_bytes" in worker for worker in workers):
        return None
    return sum(int(worker["step_sent_bytes"][min(step, len(worker["step_sent_bytes"])) - 1]) for worker in workers)


def evaluations_of(workers: Sequence[Worker]) -> list[dict[str, Any]]:
    """Rank 0's evaluations on the way, each with what all workers had sent until then."""
    found = workers[0]["evaluations"]
    return [{**evaluation, "sent_bytes": sent_until(workers, evaluation["step"])} for evaluation in found]


def target_of(accuracy: float | None, workers: Sequence[Worker]) -> dict[str, Any] | None:
    """What it took to reach the target, or the best that was seen; None where there was no target."""
    if accuracy is None:
        return None
    evaluations = [row for row in evaluations_of(workers) if row["accuracy"] is not None]
    reached = next((row for row in evaluations if row["accuracy"] >= accuracy), None)
    if reached is None:
        return {"accuracy": accuracy, "reached": False, "best": max((r["accuracy"] for r in evaluations), default=None)}
    if len({len(worker["loss"]) for worker in workers}) > 1:
        # At their own pace: equal numbers of steps are not the same moment, but all stopped at about the same.
        reached = {**reached, "sent_bytes": sent_until(workers, max(len(worker["loss"]) for worker in workers))}
    return {
        "accuracy": accuracy,
        "reached": True,
        **{key: reached[key] for key in ("step", "epoch", "train_s", "sent_bytes")},
    }


def combined_targets(targets: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Of repeats: medians where all of them reached it; else it was not reached, and the best of those that did not."""
    found = [target for target in targets if target is not None]
    if not found or len(found) < len(targets):
        return None
    first, reached = found[0], [target for target in found if target["reached"]]
    counts = {"repeats_reached": len(reached), "repeats": len(found)}
    if len(reached) < len(found):
        best = [target["best"] for target in found if not target["reached"] and target["best"] is not None]
        return {"accuracy": first["accuracy"], "reached": False, "best": max(best, default=None), **counts}
    medians = {
        key: None if first[key] is None else statistics.median_low(target[key] for target in reached)
        for key in ("step", "epoch", "sent_bytes")
    }
    train_s = statistics.median(target["train_s"] for target in reached)
    return {"accuracy": first["accuracy"], "reached": True, **medians, "train_s": train_s, **counts}
