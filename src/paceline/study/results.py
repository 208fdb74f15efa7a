"""From what workers measured to results: pure, values in, values out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from paceline.measure.resources import resource_results
from paceline.measure.stats import interval95_of_times, paired_ratio, summary, timed
from paceline.recipe import Recipe
from paceline.strategies.capabilities import STALENESS
from paceline.study.convergence import combined_targets, curve_of, evaluations_of, target_of
from paceline.study.entries import Entry
from paceline.study.measured import agreed_stragglers

Result = dict[str, Any]


def run_result(
    recipe: Recipe,
    entry: Entry,
    workers: list[dict[str, Any]],
    total_s: float,
    measured: Mapping[str, Any] | None = None,
) -> Result:
    """The result of one run, over its workers and for each of them; `measured` is what their files say."""
    train = recipe.train

    def counted(values: list[Any]) -> list[Any]:
        return timed(values, warmup=train.warmup_iterations, limit=train.timed_iterations)

    times = [counted(worker["iteration_s"]) for worker in workers]
    busy_s = max(sum(values) for values in times)  # at their own pace, all samples are done when the last worker is
    samples = sum(sum(counted(worker["num_samples"])) for worker in workers)
    epoch_s, epoch_without_data_s = _epoch_times(workers)
    return {
        "strategy": entry.name,
        "label": entry.label,
        "options": entry.options,
        "codec": entry.codec,
        "comm": recipe.comm,
        "workers": len(workers),
        "servers": entry.num_servers,
        "guarantee": entry.guarantee,
        "batchnorm": train.batchnorm,
        "steps": len(workers[0]["iteration_s"]),
        "timed_steps": len(times[0]),
        # Not dropped where nothing would have been left.
        "warmup_steps": len(workers[0]["iteration_s"][: train.timed_iterations]) - len(times[0]),
        "iteration_s": summary([value for values in times for value in values]),
        "samples_per_s": samples / busy_s,
        "epoch_s": epoch_s,
        "epoch_without_data_s": epoch_without_data_s,
        "train_s": max(worker["train_s"] for worker in workers),
        "evaluation_s": max(worker["evaluation_s"] for worker in workers),
        "total_s": total_s,
        "final": _final(workers),
        "staleness_updates": _together([worker["strategy_metrics"].get(STALENESS) for worker in workers]),
        "replica_drift": max(worker["replica_drift"] for worker in workers),
        "replicas_equal": len({worker["parameter_digest"] for worker in workers}) == 1,
        "num_parameters": workers[0]["num_parameters"],
        "per_worker": [_worker_row(worker, values) for worker, values in zip(workers, times, strict=True)],
        "curve": curve_of(workers),
        "evaluations": evaluations_of(workers),
        "target": target_of(recipe.measure.target_accuracy, workers),
        **resource_results(workers),
        **(measured or {}),
    }


def combine(repeats: list[Result]) -> Result:
    """Several repeats of one entry as one result: medians, with an interval for the iteration time."""
    middle = sorted(repeats, key=lambda r: r["iteration_s"]["mean"])[(len(repeats) - 1) // 2]
    means = [repeat["iteration_s"]["mean"] for repeat in repeats]
    bounds = interval95_of_times(means)
    medians = {
        key: statistics.median(repeat[key] for repeat in repeats) for key in ("samples_per_s", "train_s", "total_s")
    }
    return {
        **middle,
        **medians,
        "iteration_s": {
            key: statistics.median(repeat["iteration_s"][key] for repeat in repeats)
            for key in repeats[0]["iteration_s"]
            if all(key in repeat["iteration_s"] for repeat in repeats)  # runs of before have fewer percentiles
        },
        "replica_drift": max(repeat["replica_drift"] for repeat in repeats),
        "replicas_equal": all(repeat["replicas_equal"] for repeat in repeats),
        "iteration_mean_s_repeats": means,
        "slowest_mean_s_repeats": [max(row["iteration_s"] for row in repeat["per_worker"]) for repeat in repeats],
        "iteration_mean_s_interval95": list(bounds) if bounds else None,
        "repeats": len(repeats),
        "target": combined_targets([repeat.get("target") for repeat in repeats]),
        "stragglers": agreed_stragglers(repeats),
    }


def add_comparisons(results: list[Result]) -> None:
    """How each result stands to the fastest synchronised one, its speed-up over one worker, and how far it is from the
    limit: as many workers that do not agree at all.

    Ratios are those of the times shown; intervals and verdicts come from repeats taken side by side. The limit is the
    slowest of those workers: who agrees in every step cannot be faster than that one, however fast others are alone.
    """
    fastest = fastest_of(results)
    alone = next((r for r in results if r["workers"] == 1), None)
    apart = [r for r in results if r["workers"] > 1 and r["guarantee"] == "NONE"]
    limit = min(apart, key=lambda r: r["label"] != "none", default=None)  # others that never agree may do more than it
    for result in results:
        ours = result["iteration_mean_s_repeats"]
        ratio = paired_ratio(ours, fastest["iteration_mean_s_repeats"])
        result["versus_fastest"] = {
            "label": fastest["label"],
            "ratio": result["iteration_s"]["mean"] / fastest["iteration_s"]["mean"],
            "interval95": [ratio.low, ratio.high] if ratio.low is not None else None,
            "verdict": "fastest" if result is fastest else _verdict(ratio.is_different, ratio.value),
        }
        if alone is not None:
            speedup = paired_ratio(alone["iteration_mean_s_repeats"], ours)
            result["speedup"] = alone["iteration_s"]["mean"] / result["iteration_s"]["mean"]
            result["speedup_interval95"] = [speedup.low, speedup.high] if speedup.low is not None else None
            result["efficiency"] = result["speedup"] / result["workers"]
        if limit is not None and result["workers"] == limit["workers"]:
            slowest, limits = _slowest_repeats(result), _slowest_repeats(limit)
            above = paired_ratio(slowest, limits)
            limit_s = statistics.median(limits)
            result["versus_none"] = {
                "label": limit["label"],
                "limit_s": limit_s,
                "ratio": statistics.median(slowest) / limit_s,
                "interval95": [above.low, above.high] if above.low is not None else None,
            }


def _slowest_repeats(result: Result) -> list[float]:
    """Mean iteration time of the slowest worker, in each of the repeats that are compared."""
    means: list[float] = result["iteration_mean_s_repeats"]
    slowest: list[float] = result.get("slowest_mean_s_repeats", means)  # runs of before have none
    return slowest[: len(means)]


def fastest_of(results: list[Result]) -> Result:
    """The fastest way to agree: one worker and workers that never agree are limits, not rivals.

    Ways that keep every replica on the same step are preferred: what is late or apart trains another model. So is who
    was found to learn as much as was asked for, where a study judged that (`is_within`).
    """
    several = [r for r in results if r["workers"] > 1 and r["guarantee"] != "NONE" and r.get("is_within", True)]
    rivals = [r for r in several if r["guarantee"] in ("EXACT", "LOSSY")] or several or results
    return min(rivals, key=lambda r: r["iteration_s"]["mean"])


def _verdict(is_different: bool | None, ratio: float) -> str:
    if is_different is None:
        return "one repeat cannot tell"
    if not is_different:
        return "no difference"
    return "slower" if ratio > 1 else "faster"


def _final(workers: list[dict[str, Any]]) -> dict[str, float | None]:
    """Training figures weighted by samples; test figures are means over replicas, equal where those are."""
    weights = [sum(worker["num_samples"]) for worker in workers]

    def weighted(key: str) -> float | None:
        values = [worker[key] for worker in workers]
        if any(value is None for value in values):
            return None
        return float(sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights))

    def mean(key: str) -> float | None:
        values = [worker[key] for worker in workers]
        return None if any(value is None for value in values) else statistics.fmean(values)

    return {
        "train_loss": weighted("train_loss"),
        "train_accuracy": weighted("train_accuracy"),
        "test_loss": mean("test_loss"),
        "test_accuracy": mean("test_accuracy"),
    }


def _worker_row(worker: dict[str, Any], times: list[float]) -> dict[str, Any]:
    figures = summary(times)
    same = ["rank", "sent_bytes", "received_bytes", "num_operations", "train_loss", "train_accuracy", "test_loss"]
    same += [
        "test_accuracy",
        "test_loss_before_finish",
        "test_accuracy_before_finish",
        "train_s",
        "parameter_digest",
        "strategy_metrics",
    ]
    row = {key: worker[key] for key in same}
    percentiles = {f"iteration_{key}_s": value for key, value in figures.items() if key != "mean"}
    return {**row, "iteration_s": figures["mean"], **percentiles}


def _together(distributions: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The distributions of all workers as one; None where nobody measured one."""
    counts: dict[int, int] = {}
    for distribution in distributions:
        for value, count in (distribution or {"counts": {}})["counts"].items():
            counts[int(value)] = counts.get(int(value), 0) + count
    if not counts:
        return None
    mean = sum(value * count for value, count in counts.items()) / sum(counts.values())
    return {"counts": {str(value): counts[value] for value in sorted(counts)}, "max": max(counts), "mean": mean}


def _epoch_times(workers: list[dict[str, Any]]) -> tuple[float | None, float | None]:
    """Mean time of a complete epoch with and without loading data; None where no epoch was completed."""
    length = workers[0]["steps_per_epoch"]
    num_epochs = len(workers[0]["iteration_s"]) // length
    if num_epochs == 0:
        return None, None
    whole = max(sum(worker["iteration_s"][: num_epochs * length]) for worker in workers) / num_epochs
    data = max(sum(worker["data_s"][: num_epochs * length]) for worker in workers) / num_epochs
    return whole, whole - data
