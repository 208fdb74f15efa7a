"""The order of the page: charts under the question that they answer, and a sentence where one has nothing to show."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.report import learning, resources, speed, split, sweep, timeline, traffic
from paceline.report.chart import Chart, Table
from paceline.report.curves import Result
from paceline.study.results import fastest_of

NO_SPANS = "these runs hold no spans (they were stored by an earlier version, or with --no-measure)"


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    charts: list[Chart] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # sentences
    tables: list[tuple[str, Table]] = field(default_factory=list)  # each with what stands above it


def make_sections(results: Sequence[Result]) -> list[Section]:
    """Every chart for which there are values; what is missing is said in its section."""
    first = shown_first(results)
    swept = sweep.charts(results)
    sections = [Section("sweep", "What was varied", swept)] if swept else []
    sections += [_speed(results), _time(results, first), _learning(results)]
    sections += [_traffic(results, first), _load(results, first)]
    return [dataclasses.replace(section, charts=without_holes(section.charts)) for section in sections]


def without_holes(charts: Sequence[Chart]) -> list[Chart]:
    """Narrow charts stand in pairs; one that is left over takes the whole width."""
    found: list[Chart] = []
    num_narrow = 0
    for chart in charts:
        if chart.is_wide and num_narrow % 2:
            found[-1] = dataclasses.replace(found[-1], is_wide=True)
        num_narrow = 0 if chart.is_wide else num_narrow + 1
        found.append(chart)
    if num_narrow % 2:
        found[-1] = dataclasses.replace(found[-1], is_wide=True)
    return found


def all_charts(sections: Sequence[Section]) -> list[Chart]:
    return [chart for section in sections for chart in section.charts]


def shown_first(results: Sequence[Result]) -> int:
    """The strategy that charts of a single one begin with: the fastest, unless only others have a slow worker."""
    slow = [index for index, result in enumerate(results) if result.get("stragglers")]
    label = fastest_of([dict(result) for result in results])["label"]
    fastest = next(index for index, result in enumerate(results) if result["label"] == label)
    return slow[0] if slow and fastest not in slow else fastest


def _speed(results: Sequence[Result]) -> Section:
    charts = [speed.iteration_time(results), speed.time_over_steps(results), speed.train_time(results)]
    return Section("speed", "Speed", charts)


def _time(results: Sequence[Result], first: int) -> Section:
    section = Section("time", "Where the time goes")
    _add(section, split.split(results), f"No split of a step: {NO_SPANS}.")
    _add(section, timeline.timeline(results, first), f"No timeline: {NO_SPANS}.")
    if without := [str(r["label"]) for r in results if not r.get("split")]:
        if len(without) < len(results):
            section.missing.append(f"Without spans, and so not shown here: {', '.join(without)}.")
        else:
            section.missing[:] = [f"No split of a step and no timeline: {NO_SPANS}."]
    return section


def _learning(results: Sequence[Result]) -> Section:
    section = Section("learning", "Learning", [learning.loss(results)])
    if not learning.has_accuracy(results):
        section.missing.append("No accuracy: this task has none.")
    else:
        section.charts.append(learning.accuracy_over(results))
        if learning.has_worker_accuracy(results):
            section.charts.append(learning.accuracy_per_worker(results))
        _add(section, learning.to_target(results), "")
        _add(section, learning.trade_off(results), "")
    if not any(any(result["curve"].get("sent_bytes") or ()) for result in results):
        section.missing.append("Bytes over the run were not stored, so nothing is shown over bytes.")
    return section


def _traffic(results: Sequence[Result], first: int) -> Section:
    section = Section("traffic", "Traffic")
    if not any(result["workers"] > 1 for result in results):
        section.missing.append("One worker sends nothing.")
        return section
    reason = "No bytes per link: they were not counted in these runs (an earlier version, or --no-measure)."
    _add(section, traffic.links(results, first), reason)
    _add(section, traffic.sent_per_worker(results), "")
    if not any(result.get("network") for result in results):
        section.missing.append("The kernel's count of network bytes is not in these runs; the comm's own stands alone.")
    return section


def _load(results: Sequence[Result], first: int) -> Section:
    section = Section("resources", "Resources")
    reason = "No resources over time: workers were not sampled in these runs (an earlier version, or --sample-hz 0)."
    _add(section, resources.resources(results, first), reason)
    unknown = "What measuring cost is not known here: only a comparison runs with and without it."
    _add(section, speed.measuring_cost(results), unknown if any(result.get("split") for result in results) else "")
    return section


def _add(section: Section, chart: Chart | None, otherwise: str) -> None:
    if chart is not None:
        section.charts.append(chart)
    elif otherwise:
        section.missing.append(otherwise)
