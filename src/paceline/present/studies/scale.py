"""The page of a scaling study, which measures strategies on increasing numbers of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from paceline.present import conditions
from paceline.present.charts.registry import make_section
from paceline.present.charts.scale import IDEAL, labels_of, line_styles, scaling_of
from paceline.present.comparison_page import condition_facts, frame, notices, study_of
from paceline.present.numbers import (
    DASH,
    TIMES,
    bounded,
    counted,
    duration,
    factor,
    is_wide,
    milliseconds,
    number,
    percentage,
    plus_minus,
    share,
    short_milliseconds,
    time_interval,
    times,
    whole,
    without_first,
)
from paceline.present.page_parts import Column, Facts, KeyEntry, Page, Presenter, Table, Tile, Visibility
from paceline.present.pages import PageContent
from paceline.present.scaling_findings import TITLES, batch_words, findings
from paceline.results import Row
from paceline.results.study import ScaleResult
from paceline.study.scale_analysis import best_point, modes_of, reference_of, rows_by_strategy

TERMINAL, MARKDOWN, NOTEBOOK, HTML = Visibility.TERMINAL, Visibility.MARKDOWN, Visibility.NOTEBOOK, Visibility.HTML


class ScalePresenter(Presenter):
    name: ClassVar[str] = "scale"

    def page(self, material: PageContent) -> Page:
        study = study_of(material, ScaleResult)
        rows = study.results
        labels, key = _key(rows)
        return Page(
            **{**frame(material), "kind": "Paceline scaling study"},
            findings=[*notices(material), *findings(study, material)],
            tiles=tiles(rows),
            tables=[_table(study, mode, labels) for mode in modes_of(rows)],
            tables_title="All points",
            facts=[*_facts(study, material), *condition_facts(material)[1:]],
            key=key,
            make_sections=lambda: [make_section("scale", "Over workers", rows)],
        )

    def best(self, rows: Sequence[Row]) -> Row:
        return best_point(rows)


def _key(rows: Sequence[Row]) -> tuple[list[str], list[KeyEntry]]:
    labels = labels_of(rows)
    return labels, [KeyEntry(name, style) for name, style in zip([*labels, IDEAL], line_styles(rows), strict=True)]


def _facts(study: ScaleResult, material: PageContent) -> list[Facts]:
    """Return facts about the training.

    The fact "Global batch" is replaced by a fact for each scaling mode, with the batch that stays constant.
    """
    recipe = material.recipe
    if recipe is None:
        return []
    batches = [(TITLES[mode], batch_words(study.modes, mode)) for mode in study.modes]
    facts = [fact for fact in conditions.training_facts(recipe, study.results) if fact[0] != "Global batch"]
    special = conditions.special_facts([recipe])
    return [Facts([*facts[:3], *batches, *facts[3:], *special], "Conditions", "conditions", HTML)]


def tiles(rows: Sequence[Row]) -> list[Tile]:
    """Return tiles (numbers at the top of the page) for the best row of strong scaling, or else of weak scaling.

    The best row has the highest throughput among rows with several workers that synchronise (see `best_point`).
    """
    mode = modes_of(rows)[0]
    best = best_point([row for row in rows if row.point and row.point["mode"] == mode])
    scaling, where = scaling_of(best), f"{best.label} on {counted(best.workers, 'worker')}, {mode}"
    found = [Tile("Time per step", duration(best.iteration_s.mean), where)]
    found.append(Tile("Samples per second", whole(best.samples_per_s), "of all workers together"))
    if scaling.speedup is not None:
        found.append(Tile("Speed-up", f"{times(scaling.speedup)} {TIMES}", "over one worker"))
        found.append(Tile("Efficiency", share(scaling.efficiency), "speed-up over workers"))
    if scaling.communication_share is not None:
        found.append(Tile("Communication", share(scaling.communication_share), "of a step, not overlapped by compute"))
    return found


def _table(study: ScaleResult, mode: str, labels: Sequence[str]) -> Table[Row]:
    """Return the table of strong or weak scaling: one worker, then each strategy from few to many workers."""
    rows = study.results
    reference = reference_of(rows, mode)
    lines = rows_by_strategy(rows, mode).values()
    ordered = ([reference] if reference is not None else []) + [row for line in lines for row in line]
    return Table(
        id=f"points-{mode}",
        title=f"{TITLES[mode]}: {batch_words(study.modes, mode)}.",
        columns=_columns(rows),
        rows=ordered,
        keys=[labels.index(row.label) if row.label in labels else len(labels) for row in ordered],
    )


def _columns(rows: Sequence[Row]) -> list[Column[Row]]:
    interval = ", with its 95 % interval" if any(row.iteration_mean_s_interval95 for row in rows) else ""
    return [
        Column(title="Strategy", short="strategy", text=lambda row: row.label, is_number=False),
        Column(title="Workers", short="N", text=lambda row: str(row.workers), help="workers"),
        Column(title="Global batch", text=lambda row: whole(row.batch_size), places=MARKDOWN | HTML),
        Column(
            title="Step, ms",
            short="ms/step",
            text=_step,
            places=TERMINAL,
            help=f"mean over workers and steps{without_first(rows[0].warmup_steps)}{interval}",
        ),
        Column(
            title="Step, ms",
            text=lambda row: milliseconds(row.iteration_s.mean),
            places=MARKDOWN | NOTEBOOK | HTML,
            help="mean over timed steps and workers, median of repeats",
        ),
        Column(
            title="95 % interval",
            text=lambda row: time_interval(row.iteration_mean_s_interval95),
            places=MARKDOWN | HTML if interval else Visibility(0),
        ),
        Column(
            title="Speed-up",
            short="speed-up",
            text=lambda row: factor(scaling_of(row).speedup),
            places=TERMINAL,
            help="samples per second divided by those of one worker",
        ),
        Column(
            title="Speed-up",
            text=lambda row: bounded(scaling_of(row).speedup, scaling_of(row).speedup_interval95),
            places=MARKDOWN | NOTEBOOK | HTML,
            help="samples per second divided by those of one worker that runs the same code",
        ),
        Column(
            title="Efficiency",
            short="eff.",
            text=lambda row: share(scaling_of(row).efficiency),
            help="speed-up divided by the number of workers",
        ),
        Column(
            title="Samples/s",
            short="samples/s",
            text=lambda row: whole(row.samples_per_s),
            importance=10,
        ),
        Column(
            title="Throughput gained",
            text=_gained,
            places=MARKDOWN | HTML,
            help="compared with the next smaller number of workers",
        ),
        _part("Compute", "compute", 20),
        _part("Communication", "comm", 100),
        _part("Waiting", "wait", 30),
        Column(
            title="Beyond ideal, ms",
            short="beyond",
            text=lambda row: DASH if row.workers == 1 else short_milliseconds(scaling_of(row).beyond_ideal_s),
            help="ms per step more than with perfect scaling, t_1/N (strong) or t_1 (weak)",
        ),
        Column(
            title="Communication, ms",
            short="comm ms",
            text=lambda row: short_milliseconds(scaling_of(row).communication_s),
            help="communication that compute does not overlap",
        ),
        Column(
            title="Waiting, ms", text=lambda row: short_milliseconds(scaling_of(row).waiting_s), places=MARKDOWN | HTML
        ),
        Column(
            title="Hidden, ms",
            text=lambda row: short_milliseconds(scaling_of(row).overlap_s),
            places=MARKDOWN | HTML,
        ),
        Column(
            title="Compute, ms", text=lambda row: short_milliseconds(scaling_of(row).compute_s), places=MARKDOWN | HTML
        ),
        Column(
            title="Test accuracy",
            text=lambda row: percentage(row.final.test_accuracy),
            places=MARKDOWN | NOTEBOOK | HTML,
        ),
        Column(title="Test loss", text=lambda row: number(row.final.test_loss), places=MARKDOWN | HTML),
    ]


def _part(title: str, short: str, importance: int) -> Column[Row]:
    """Return a column for terminals: the share of a step that one part of the step, such as waiting, takes.

    The HTML page has columns in milliseconds instead.
    """
    key = {"Compute": "compute_s", "Communication": "communication_s", "Waiting": "waiting_s"}[title]

    def text(row: Row) -> str:
        seconds, step = getattr(scaling_of(row), key), row.split.mean.step_s if row.split is not None else None
        return DASH if seconds is None or not step else share(seconds / step)

    return Column(title=title, short=short, text=text, importance=importance, places=TERMINAL, help="share of a step")


def _step(row: Row) -> str:
    bounds, mean = row.iteration_mean_s_interval95, row.iteration_s.mean
    interval = ""
    if bounds:
        interval = f" ({time_interval(bounds)})" if is_wide(bounds, mean) else f" {plus_minus(bounds, mean)}"
    return f"{milliseconds(mean)}{interval}"


def _gained(row: Row) -> str:
    gain = scaling_of(row).gain
    return DASH if gain is None else f"{bounded(gain.ratio, gain.interval95)} over {gain.over_workers}"
