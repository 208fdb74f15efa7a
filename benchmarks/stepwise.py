"""Step-wise averaging against other strategies: accuracy, drift and bytes, on shuffled and label-sorted shards.

    python benchmarks/stepwise.py --data-dir DIR [--workers 4] [--comm shm] [--epochs 2] [--seeds 0,1,2] [--out docs]

Trains LeNet-5 on MNIST under every strategy and seed, prints a table for each order of the data (medians over seeds),
and with --out writes stepwise.json, one SVG per order, and the tables into the marked places of stepwise.md there.
Strategies that do not exist or cannot run here are named and left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
from html import escape
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.measure.environment import environment
from paceline.recipe import Recipe
from paceline.study.entries import make_entry
from paceline.study.preflight import preflight
from paceline.train.job import train_job

STRATEGIES = (
    "all-reduce,ring:average=weights,stepwise,stepwise:rotate=false,stepwise:form=whole,"
    "stepwise:form=whole:rotate=false,stepwise:exact_every=7,stepwise:correct=delayed,"
    "stepwise:form=whole:correct=delayed,local-sgd,gossip,none"
)
COLUMNS = {
    "test_accuracy": "test accuracy %, after finish",
    "worst_accuracy": "worst replica % before",
    "replica_drift": "replica drift",
    "sent_bytes_per_step": "kB sent per step and worker",
    "iteration_ms": "ms per step",
}


def figures(workers: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of one run; where replicas are never averaged, their mean accuracy is used."""
    num_steps = len(workers[0]["iteration_s"])
    slowest = [max(times) for times in zip(*(worker["iteration_s"] for worker in workers), strict=True)]
    return {
        "test_accuracy": statistics.fmean(worker["test_accuracy"] for worker in workers),
        "worst_accuracy": min(worker["test_accuracy_before_finish"] for worker in workers),
        "replica_drift": max(worker["replica_drift"] for worker in workers),
        "sent_bytes_per_step": statistics.fmean(worker["sent_bytes"] for worker in workers) / num_steps,
        "iteration_ms": 1000 * statistics.median(slowest),
        "train_s": max(worker["train_s"] for worker in workers),
    }


def study(launcher: LocalPool, recipe: Recipe, strategies: list[str], seeds: list[int]) -> dict[str, list[Any]]:
    """Return the figures of each strategy, one per seed; strategies run in turn, so that disturbances affect all."""
    found: dict[str, list[Any]] = {name: [] for name in strategies}
    for seed in seeds:
        for name in strategies:
            arguments = {"recipe": recipe.replace({"seed": seed}), "strategy": name, "checkpoint": ""}
            task = Task(train_job, arguments, num_workers=recipe.workers, comm=recipe.comm, timeout_s=recipe.timeout_s)
            found[name].append(figures(launcher.run(task, lambda event: None)))  # noqa: ARG005
            print(f"  {recipe.data.order} seed {seed} {name}: {found[name][-1]['test_accuracy']:.4f}", flush=True)
    return found


def table(found: dict[str, list[dict[str, float]]]) -> list[str]:
    """Return a Markdown table: medians over seeds, and for accuracies the lowest and highest seed."""
    lines = ["| strategy | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, runs in found.items():
        values = {key: sorted(run[key] for run in runs) for key in COLUMNS}
        middle = {key: statistics.median(values[key]) for key in COLUMNS}
        cells = [
            *(
                f"{100 * middle[key]:.2f} ({100 * values[key][0]:.2f} to {100 * values[key][-1]:.2f})"
                for key in ("test_accuracy", "worst_accuracy")
            ),
            f"{middle['replica_drift']:.1e}",
            f"{middle['sent_bytes_per_step'] / 1e3:.1f}",
            f"{middle['iteration_ms']:.1f}",
        ]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def chart(found: dict[str, list[dict[str, float]]], title: str) -> str:
    """Return an SVG of horizontal bars: test error after finish, and of the worst replica before it."""
    bars = [
        (name, [1 - statistics.median(run[key] for run in runs) for key in ("test_accuracy", "worst_accuracy")])
        for name, runs in found.items()
    ]
    longest = max(value for _, values in bars for value in values) or 1.0
    left, width, height = 250, 420, 38
    out = [f'<text x="8" y="20" font-size="15">{escape(title)}</text>']
    for index, (colour, label) in enumerate((("#2b6cb0", "after finish"), ("#dd6b20", "worst replica before"))):
        out.append(f'<rect x="{left + 150 * index}" y="30" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{left + 17 + 150 * index}" y="41" font-size="12">{label}</text>')
    for row, (name, values) in enumerate(bars):
        top = 54 + row * height
        out.append(f'<text x="{left - 8}" y="{top + 19}" font-size="12" text-anchor="end">{escape(name)}</text>')
        for index, (value, colour) in enumerate(zip(values, ("#2b6cb0", "#dd6b20"), strict=True)):
            length, y = max(1, round(width * value / longest)), top + 15 * index
            out.append(f'<rect x="{left}" y="{y}" width="{length}" height="13" fill="{colour}"/>')
            out.append(f'<text x="{left + length + 5}" y="{y + 11}" font-size="11">{100 * value:.2f} %</text>')
    size = f'width="{left + width + 70}" height="{60 + height * len(bars)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n' + "\n".join(out) + "\n</svg>\n"


def insert(page: Path, mark: str, lines: list[str]) -> None:
    """Put lines between a page's `<!-- mark -->` and `<!-- end -->`."""
    text = page.read_text(encoding="utf-8")
    before, found, after = text.partition(f"<!-- {mark} -->\n")
    if not found:
        raise SystemExit(f"{page} has no place marked {mark!r}")
    rest = after[after.index("<!-- end -->") :]
    page.write_text(before + found + "\n".join(lines) + "\n" + rest, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--comm", default="torch")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--schedule", default="cosine", help="without a decay the last steps' noise hides the rest")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--orders", default="shuffled,sorted")
    parser.add_argument("--train-samples", type=int)
    parser.add_argument("--test-samples", type=int)
    parser.add_argument("--strategies", default=STRATEGIES)
    parser.add_argument("--out", type=Path, help="folder with stepwise.md, for tables, charts and figures")
    arguments = parser.parse_args()
    recipe = (
        Recipe()
        .replace({"model.name": "lenet5", "data.name": arguments.data})
        .replace(
            {
                "data.dir": arguments.data_dir,
                "data.train_samples": arguments.train_samples,
                "data.test_samples": arguments.test_samples,
                "workers": arguments.workers,
                "comm": arguments.comm,
                "train.epochs": arguments.epochs,
                "train.batch_size": arguments.batch_size,
                "optimizer.name": arguments.optimizer,
                "optimizer.lr": arguments.lr,
                "optimizer.momentum": arguments.momentum,
                "schedule.name": arguments.schedule,
            }
        )
    )
    seeds = [int(word) for word in arguments.seeds.split(",")]
    strategies = []
    for name in arguments.strategies.split(","):
        try:
            make_entry(name, recipe)
            strategies.append(name)
        except UsageError as error:
            print(f"left out: {error}")
    facts = preflight(recipe)
    momentum = f", momentum {arguments.momentum:g}" if arguments.momentum else ""
    setting = (
        f"LeNet-5 on {arguments.data} ({facts.num_train_samples:,} samples), {arguments.workers} workers on comm "
        f"{arguments.comm}, global batch {arguments.batch_size}, {arguments.optimizer} with lr {arguments.lr:g} "
        f"({arguments.schedule}){momentum}, {facts.total_steps} steps ({arguments.epochs} epochs), "
        f"seeds {arguments.seeds}."
    )
    facts_of_host = {key: value for key, value in environment().items() if key != "command"}  # it names folders
    everything: dict[str, Any] = {"setting": setting, "environment": facts_of_host, "orders": {}}
    with LocalPool(arguments.workers) as launcher:
        for order in arguments.orders.split(","):
            found = study(launcher, recipe.replace({"data.order": order}), strategies, seeds)
            everything["orders"][order] = found
            lines = [setting + " Medians over seeds, lowest and highest in brackets.", "", *table(found)]
            print(f"\n{order} shards\n", *lines, sep="\n")
            if arguments.out is not None:
                picture = arguments.out / f"stepwise-{order}.svg"
                picture.write_text(chart(found, f"Test error, {order} shards"), encoding="utf-8")
                insert(arguments.out / "stepwise.md", order, [*lines, "", f"![Test error]({picture.name})"])
    if arguments.out is not None:
        (arguments.out / "stepwise.json").write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
