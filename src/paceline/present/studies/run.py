"""The page of one run: its workers, and figures over all of them."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from paceline.present import comparison_findings
from paceline.present.columns import comparison_table, worker_table
from paceline.present.comparison_page import comparison_page
from paceline.present.model import Fact, Facts, Page, Presenter, Table, Visibility
from paceline.present.numbers import milliseconds, number, percent, seconds, share, significant, whole
from paceline.present.pages import PageContent
from paceline.results import RunResult

MOST_STALENESS = 8  # values of the staleness that are listed
_PARTS = ("compute", "communication", "overlap", "waiting", "data", "rest")


class RunPresenter(Presenter):
    name: ClassVar[str] = "run"

    def page(self, material: PageContent) -> Page:
        row = material.rows[0]
        places = Visibility.TERMINAL | Visibility.NOTEBOOK
        tables: list[Table[Any]] = [
            worker_table(row, places=places),
            comparison_table(material.rows, places=Visibility.HTML | Visibility.MARKDOWN),
        ]
        # A terminal shows the facts instead.
        headline = dataclasses.replace(
            comparison_findings.headline(material.rows), places=Visibility.ALL & ~Visibility.TERMINAL
        )
        facts = [Facts(run_facts(row), places=Visibility.TERMINAL)]
        return comparison_page(material, first=[headline], tables=tables, facts=facts)


def run_facts(run: RunResult) -> list[Fact]:
    """Figures over all workers."""
    iteration, final = run.iteration_s, run.final
    found = [
        (
            "iteration",
            f"mean {milliseconds(iteration.mean)} ms, p50 {milliseconds(iteration.p50)}, p90 "
            f"{milliseconds(iteration.p90)}, p95 {milliseconds(iteration.p95)} (over {run.timed_steps} steps; first "
            f"{run.warmup_steps} dropped as warm-up)",
        ),
        ("throughput", f"{whole(run.samples_per_s)} samples/s"),
    ]
    if run.epoch_s is not None:
        without_s = seconds(run.epoch_without_data_s, 3)
        found.append(("epoch", f"{seconds(run.epoch_s, 3)} s, {without_s} s without loading data"))
    if run.split is not None and run.split.mean.step_s:
        mean = run.split.mean
        found.append(
            ("step", ", ".join(f"{part} {share(getattr(mean, f'{part}_s') / mean.step_s)}" for part in _PARTS))
        )
    found += [
        (
            "training",
            f"{seconds(run.train_s)} s; evaluation {seconds(run.evaluation_s)} s; total {seconds(run.total_s)} s with "
            "start-up",
        ),
        ("last epoch", f"loss {number(final.train_loss)}, accuracy {percent(final.train_accuracy)}"),
        ("test set", f"loss {number(final.test_loss)}, accuracy {percent(final.test_accuracy)}"),
    ]
    if run.servers:
        found.append(("servers", f"{run.servers}, beside the workers"))
    late = run.staleness_updates
    if late is not None:
        total = sum(late.counts.values())
        shown = list(late.counts.items())[:MOST_STALENESS]
        shares = ", ".join(f"{value}: {percent(count / total)}" for value, count in shown)
        more = ", ..." if len(late.counts) > MOST_STALENESS else ""
        found.append(("staleness", f"mean {number(late.mean, 3)}, max {late.max} updates ({shares}{more})"))
    found.append(
        (
            "replicas",
            f"drift {significant(run.replica_drift)}, guarantee {run.guarantee.lower()}; BatchNorm statistics "
            f"{run.batchnorm}",
        )
    )
    return found
