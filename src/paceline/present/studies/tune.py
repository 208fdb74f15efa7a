"""The page of `paceline tune`: the best strategy, and the times of all strategies that were tried.

The strategies that a tuning tries are called candidates. They run in rounds of increasing length, called rungs, and
each rung eliminates the candidates that are slow or too inaccurate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.present.charts.registry import make_section
from paceline.present.charts.tune import TunedRows
from paceline.present.columns import comparison_table
from paceline.present.comparison_page import comparison_page, study_of
from paceline.present.numbers import (
    DASH,
    counted,
    join_words,
    megabytes,
    milliseconds,
    number,
    percentage,
    times,
    times_interval,
)
from paceline.present.page_parts import Column, Finding, Page, PageSection, Presenter, Table, Visibility
from paceline.present.pages import PageContent
from paceline.results.study import Best, Candidate, RungResult, TuneResult
from paceline.study.advice import command_in

HTML, TEXT = Visibility.HTML, Visibility.TEXT


class TunePresenter(Presenter):
    name: ClassVar[str] = "tune"

    def page(self, material: PageContent) -> Page:
        study = study_of(material, TuneResult)
        tables: list[Table[Any]] = [candidate_table(study)] if study.rungs else []
        return comparison_page(
            material,
            first=tuning_findings(study, str(material.sources[0].folder)),
            tables=[*tables, comparison_table(material.rows, places=HTML | Visibility.MARKDOWN)],
            sections=lambda: _sections(study, material),
        )


def tuning_findings(study: TuneResult, folder: str) -> list[Finding]:
    """Return findings: the best strategy, how to use it, and candidates that were not tried."""
    left_out = [
        Finding(f"Left out before the start: {_labels_of(study, reason)}: {reason}.", "Tuning", "detail")
        for reason in dict.fromkeys(study.left_out.values())
    ]
    best = study.best
    if best is None:
        text = "Tuning did not finish: no strategy was chosen."
        if not study.rungs:
            text = "Tuning did not finish: no rung was completed."
        return [Finding(text, "Tuning", "headline"), *left_out]
    text = f"Best: {best.label}, {_against(study, best)}; {lost_words(best)}."
    if best.label == study.reference:
        text = f"Best: {best.label}, the exact reference: no candidate was clearly faster within the margin."
    return [
        Finding(text, "Tuning", "headline"),
        Finding(command_in(best, folder), "Command", "code"),
        Finding(best.library, "Library", "code"),
        *left_out,
    ]


def rung_words(rung: RungResult) -> str:
    """Describe a rung (round) in one line: number of steps, criterion, and number of eliminated candidates."""
    counts = {end: sum(row.end == end for row in rung.rows) for end in ("slower", "less accurate", "failed")}
    eliminated = ", ".join(f"{count} {end}" for end, count in counts.items() if count) or "none eliminated"
    passed = len(rung.rows) - sum(counts.values())
    unit = "points" if rung.judged_by == "accuracy" else "%"
    judge = f"test {rung.judged_by} (margin {rung.margin:g} {unit})"
    return (
        f"rung {rung.rung}, {rung.steps} steps, judged by {judge}: {passed} of {len(rung.rows)} passed ({eliminated})"
    )


def lost_words(best: Best) -> str:
    """Describe how much accuracy (or test loss) the best strategy loses or gains against the exact reference."""
    if best.guarantee == "EXACT":
        return "it is exact, so nothing is lost"
    unit = "points of test accuracy" if best.judged_by == "accuracy" else "% of test loss"
    bounds, verb = best.lost_interval95, "gains" if best.lost < 0 else "loses"
    words = f"it {verb} {abs(best.lost):.2f} {unit} compared with exact after the same number of samples"
    if bounds is None:
        return f"{words} (one seed)"
    words = f"{words} (95 % interval over seeds {bounds[0]:+.2f} to {bounds[1]:+.2f} lost)"
    return words if bounds[1] <= best.margin else f"{words}; more seeds are needed to be sure of the margin"


def _against(study: TuneResult, best: Best) -> str:
    bounds = best.versus_reference_interval95
    interval = f" (95 % interval {times_interval(bounds)})" if bounds else " (one repeat)"
    return f"{times(best.versus_reference)} times the time per step of {study.reference}{interval}"


def _labels_of(study: TuneResult, reason: str) -> str:
    return join_words([label for label, why in study.left_out.items() if why == reason])


@dataclass(frozen=True)
class TriedCandidate:
    """A candidate (tried strategy) of a tuning, with its last rung (round).

    `times_s` has the candidate's time per step in each rung, and `end` says why the candidate was eliminated or kept.
    """

    candidate: Candidate
    rung: RungResult
    times_s: dict[int, float | None]  # number of the rung: mean time per step
    end: str


def candidate_table(study: TuneResult) -> Table[TriedCandidate]:
    """Return a table of all candidates, sorted by the last rung that they reached and then by time per step."""
    columns: list[Column[TriedCandidate]] = [
        Column(title="Strategy", short="strategy", text=lambda one: one.candidate.label, is_number=False),
        *(_rung_column(rung, is_first=index == 0) for index, rung in enumerate(study.rungs)),
        Column(title="Test accuracy", short="test", text=lambda one: percentage(one.candidate.test_accuracy)),
        Column(title="Test loss", short="loss", text=lambda one: number(one.candidate.test_loss, 3), importance=20),
        Column(
            title="Lost",
            short="lost",
            text=_lost,
            help="compared with the exact strategy after the same number of samples, in points of test accuracy or % "
            "of test loss; exact strategies differ by rounding only",
        ),
        Column(
            title="Sent, MB",
            short="MB sent",
            text=lambda one: megabytes(one.candidate.sent_bytes),
            importance=10,
            help="sent in the last rung by the worker that sent most",
        ),
        Column(title="End", short="end", text=lambda one: one.end, is_number=False),
    ]
    return Table(id="candidates", columns=columns, rows=_tried(study), places=TEXT)


def _rung_column(rung: RungResult, *, is_first: bool) -> Column[TriedCandidate]:
    return Column(
        title=f"{rung.steps} steps, ms",
        short=f"{rung.steps} steps",
        text=lambda one: milliseconds(one.times_s.get(rung.rung)),
        help="ms per step of the slowest worker, in each rung" if is_first else "",
    )


def _tried(study: TuneResult) -> list[TriedCandidate]:
    latest: dict[str, tuple[int, Candidate]] = {}
    for place, rung in enumerate(study.rungs):
        for row in rung.rows:
            latest[row.label] = (place, row)
    order = sorted(latest.values(), key=lambda pair: (-pair[0], _seconds(pair[1])))
    best = study.best.label if study.best is not None else None
    return [
        TriedCandidate(
            row,
            study.rungs[place],
            {rung.rung: one.iteration_s for rung in study.rungs for one in rung.rows if one.label == row.label},
            "best" if row.label == best else _elimination_reason(row, is_last=place == len(study.rungs) - 1),
        )
        for place, row in order
    ]


def _seconds(row: Candidate) -> float:
    return float("inf") if row.iteration_s is None else row.iteration_s


def _lost(one: TriedCandidate) -> str:
    row = one.candidate
    if row.guarantee == "EXACT":
        return "exact"
    return DASH if row.lost is None else f"{row.lost:+.2f}{'' if one.rung.judged_by == 'accuracy' else ' %'}"


def _elimination_reason(row: Candidate, *, is_last: bool) -> str:
    """Return the text of the column "End": "passed", "no difference", "exact" or the reason for elimination."""
    if row.end == "failed":
        return f"failed: {row.reason}"
    if row.end == "kept":  # in the last rung: the fastest candidate, if a tied one is the best
        return "no difference" if is_last else "passed"
    return "exact" if row.end == "reference" else row.end


def _sections(study: TuneResult, material: PageContent) -> list[PageSection]:
    section = make_section("tuning", "Tuning", TunedRows(study, material.rows))
    section.tables.extend(_rung_table(rung) for rung in study.rungs)
    return [section]


def _rung_table(rung: RungResult) -> Table[Candidate]:
    unit = "points" if rung.judged_by == "accuracy" else "%"
    columns: list[Column[Candidate]] = [
        Column(title="Strategy", text=lambda row: row.label, is_number=False),
        Column(title="ms per step", text=lambda row: milliseconds(row.iteration_s)),
        Column(title="Times the reference", text=lambda row: times(row.versus_reference)),
        Column(title="Test accuracy", text=lambda row: percentage(row.test_accuracy)),
        Column(title="Test loss", text=lambda row: number(row.test_loss, 3)),
        Column(
            title=f"Lost, {unit}",
            text=lambda row: "exact" if row.guarantee == "EXACT" else DASH if row.lost is None else f"{row.lost:+.2f}",
        ),
        Column(title="Sent, MB", text=lambda row: megabytes(row.sent_bytes)),
        Column(
            title="End",
            text=lambda row: f"failed: {row.reason}" if row.end == "failed" else row.end,
            is_number=False,
        ),
    ]
    rows: Sequence[Candidate] = sorted(rung.rows, key=_seconds)
    title = f"Rung {rung.rung}: {counted(rung.steps, 'step')}, {counted(rung.repeats, 'round')}"
    return Table(
        id=f"rung-{rung.rung}",
        title=f"{title}, judged by test {rung.judged_by}",
        columns=columns,
        rows=rows,
        places=HTML,
    )
