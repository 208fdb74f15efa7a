"""The page of a sweep, which trains with every combination of some settings.

The page has a table of all combinations (points), the fastest and most accurate points, and the effect of larger
batches. A remedy is a change of the optimiser settings that makes a large batch learn better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from paceline.present.charts.registry import make_section
from paceline.present.columns import comparison_table
from paceline.present.comparison_findings import ONE_REPEAT_TEXT
from paceline.present.comparison_page import comparison_page, frame, study_of
from paceline.present.numbers import (
    DASH,
    join_words,
    megabytes,
    milliseconds,
    number,
    percentage,
    plus_minus,
    seconds,
    times,
    whole,
    without_first,
)
from paceline.present.page_parts import Column, Finding, Page, Presenter, Table, Visibility
from paceline.present.pages import PageContent
from paceline.present.rows import ShownRow
from paceline.results import Failure, Row
from paceline.results.study import SweepResult
from paceline.study.sweep_axes import BATCH_KEYS, short_key, value_text


class SweepPresenter(Presenter):
    name: ClassVar[str] = "sweep"
    shows_empty: ClassVar[bool] = True

    def page(self, material: PageContent) -> Page:
        study = study_of(material, SweepResult)
        failures = [failure_finding(one) for one in study.failures]
        if not material.rows:
            return Page(**frame(material), findings=[Finding("No point was measured.", kind="headline"), *failures])
        return sweep_page(material, repeats=study.repeats or 1, failures=failures)


def sweep_page(material: PageContent, *, repeats: int, failures: Sequence[Finding] = ()) -> Page:
    """Return the page of a sweep. Each row is a combination of values of the varied recipe keys."""
    rows = material.rows
    keys = list(rows[0].point or {})
    varied = Finding(
        f"Rows differ in {join_words(keys)}. "
        "The conditions and the recipe below show the values before this variation.",
        "Caution",
        "caution",
        Visibility.HTML,
    )
    return comparison_page(
        material,
        first=[*sweep_findings(rows, repeats), *failures],
        tables=[sweep_table(rows), comparison_table(rows, places=Visibility.HTML | Visibility.MARKDOWN)],
        sections=lambda: [make_section("sweep", "What was varied", rows)],
        also=[varied],
        is_sweep=True,
    )


def is_sweep(rows: Sequence[Row]) -> bool:
    """Return whether all rows are from sweeps over the same recipe keys, and no two rows share values and remedy."""
    points = [row for row in rows if row.remedy is not None and row.point]
    keys = {tuple(row.point or {}) for row in points}
    places = {(row.remedy, *map(value_text, (row.point or {}).values())) for row in points}
    return len(keys) == 1 and len(places) == len(rows)


def sweep_findings(rows: Sequence[Row], repeats: int) -> list[Finding]:
    """Return findings on the fastest and the most accurate point (row), and on the effect of the largest batch."""
    if len(rows) < 2:
        return []
    texts = [*_extremes(rows), *_batches(rows)]
    findings = [Finding(texts[0], kind="headline"), *(Finding(text, "Sweep") for text in texts[1:])]
    if repeats == 1:
        findings.append(Finding(ONE_REPEAT_TEXT, "Repeats", "caution"))
    return findings


def failure_finding(one: Failure) -> Finding:
    """Return a finding that says why a point of the sweep has no result."""
    reason = (one.reason or "").rstrip(".")
    if one.status == "refused":
        return Finding(f"{one.label} was refused: {reason}.", "Refused", "caution")
    return Finding(f"{one.label} failed: {reason}.", "Failed", "problem")


def _extremes(rows: Sequence[Row]) -> list[str]:
    fastest = max(rows, key=lambda row: row.samples_per_s)
    texts = [f"Most samples per second: {fastest.label} ({whole(fastest.samples_per_s)})."]
    scored = [(row, row.final.test_accuracy) for row in rows if row.final.test_accuracy is not None]
    if scored:
        best, accuracy = max(scored, key=lambda pair: pair[1])
        tied = sum(value == accuracy for _, value in scored) - 1
        more = f" and {tied} more" if tied else ""
        texts.append(f"Highest test accuracy: {best.label}{more} ({percentage(accuracy)}).")
    return texts


def _batches(rows: Sequence[Row]) -> list[str]:
    """Return sentences on the effect of the largest batch on throughput and accuracy.

    The largest batch is compared with the smallest. If remedies were tried, another sentence names the best remedy at
    the largest batch. The list is empty if settings other than the batch size were varied, an accuracy is unknown, or
    there is only one batch size.
    """
    keys = set(rows[0].point or {})
    if len(keys) != 1 or not keys <= BATCH_KEYS or any(row.final.test_accuracy is None for row in rows):
        return []
    plain = sorted((row for row in rows if not row.remedy), key=lambda row: row.batch_size or 0)
    if len(plain) < 2:
        return []
    small, large = plain[0], plain[-1]
    gain = large.samples_per_s / small.samples_per_s
    # With a fixed number of steps, a larger batch sees more samples; with a fixed number of epochs, equally many.
    has_equal_steps = small.steps == large.steps and small.batch_size != large.batch_size
    unit = "steps" if has_equal_steps else "epochs"
    texts = [
        f"From batch {small.batch_size} to {large.batch_size}: {times(gain)} times the samples per second, "
        f"{100 * (_accuracy(large) - _accuracy(small)):+.1f} points of test accuracy with equal {unit}."
    ]
    remedied = [row for row in rows if row.remedy and row.batch_size == large.batch_size]
    if remedied:
        best = max(remedied, key=_accuracy)
        gain_points = 100 * (_accuracy(best) - _accuracy(large))
        texts.append(f"Best remedy at batch {large.batch_size}: {best.remedy}, {gain_points:+.1f} points.")
    return texts


def _accuracy(row: Row) -> float:
    return row.final.test_accuracy or 0.0


def sweep_table(rows: Sequence[ShownRow]) -> Table[ShownRow]:
    """Return a table with a row for each point. In a terminal, each varied recipe key has its own column."""
    point = rows[0].point or {}
    has_interval = any(row.iteration_mean_s_interval95 for row in rows)
    columns: list[Column[ShownRow]] = [
        *(_key_column(rows, key, short_key(key, point)) for key in point),
        Column(
            title="Point",
            text=lambda row: row.label,
            is_number=False,
            places=Visibility.MARKDOWN | Visibility.NOTEBOOK,
        ),
    ]
    if any(row.remedy for row in rows):
        columns.append(
            Column(
                title="Remedy",
                short="remedy",
                text=lambda row: row.remedy or DASH,
                is_number=False,
                places=Visibility.TERMINAL,
            )
        )
    columns += [
        Column(
            title="Step, ms",
            short="ms/step",
            text=lambda row: milliseconds(row.iteration_s.mean),
            help=f"mean over workers and steps{without_first(rows[0].warmup_steps)}",
        ),
        Column(
            title="95 %",
            text=lambda row: plus_minus(row.iteration_mean_s_interval95, row.iteration_s.mean),
            importance=20,
            places=Visibility.TEXT if has_interval else Visibility(0),
        ),
        Column(title="Samples/s", short="samples/s", text=lambda row: whole(row.samples_per_s)),
        Column(title="Epoch, s", short="epoch s", text=lambda row: seconds(row.epoch_s), importance=10),
        Column(title="Train, s", short="train s", text=lambda row: seconds(row.train_s), importance=50),
        Column(title="Train loss", short="loss", text=lambda row: number(row.final.train_loss, 3), importance=30),
        Column(
            title="Test accuracy", short="test", text=lambda row: percentage(row.final.test_accuracy), help="accuracy"
        ),
        Column(
            title="Memory, MB",
            short="MB",
            text=lambda row: megabytes(row.memory.peak_rss_bytes if row.memory else None, 0),
            help="peak memory of a worker",
        ),
        Column(
            title="Predicted, MB",
            short="predicted",
            text=lambda row: megabytes(_predicted(row), 0),
            importance=40,
            help="memory predicted before the run, in MB",
        ),
    ]
    return Table(id="points", columns=columns, rows=rows, places=Visibility.TEXT)


def _key_column(rows: Sequence[ShownRow], key: str, name: str) -> Column[ShownRow]:
    values = [(row.point or {}).get(key) for row in rows]
    return Column(
        title=name,
        text=lambda row: value_text((row.point or {}).get(key)),
        is_number=all(isinstance(value, int | float) and not isinstance(value, bool) for value in values),
        places=Visibility.TERMINAL,
    )


def _predicted(row: Row) -> float | None:
    predicted = row.memory.predicted if row.memory is not None else None
    return None if predicted is None else predicted.get("worker_bytes")
