"""Charts of a tuning: time per step and lost accuracy of all strategies that were tried.

The strategies that a tuning tries are called candidates. They run in rounds of increasing length, called rungs, and
each rung eliminates the candidates that are slow or too inaccurate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline.present.chart import Chart, PlotlyFigure, Values, new_figure, plotly_text
from paceline.present.charts.registry import chart
from paceline.present.numbers import DASH, significant, times
from paceline.present.rows import ShownRow
from paceline.present.styles import REFERENCES, Style, styles_of
from paceline.results import Json
from paceline.results.study import Candidate, RungResult, TuneResult

ELIMINATED = Style(REFERENCES["none"])  # style of candidates that did not reach the last rung


@dataclass(frozen=True)
class TunedRows:
    """The result of a tuning, and the rows of its last rung (round) with their labels on the page."""

    study: TuneResult
    rows: Sequence[ShownRow]

    @property
    def styles(self) -> Mapping[str, tuple[int, Style]]:
        """The index in the legend and the style of each candidate of the last rung, keyed by the full label."""
        pairs = zip(self.rows, styles_of(self.rows), strict=True)
        return {row.full_label: (index, style) for index, (row, style) in enumerate(pairs)}


@chart("tuning", order=10)
def over_rungs(content: TunedRows) -> Iterator[Chart | str]:
    """Draw the time per step of each candidate in each rung (round), up to the rung that eliminated the candidate."""
    study, styles = content.study, content.styles
    if not study.rungs:
        yield "No rung was completed."
        return
    figure = new_figure(height=380)
    lines: dict[str, list[tuple[int, float]]] = {}
    for rung in study.rungs:
        for row in _measured(rung):
            lines.setdefault(row.label, []).append((rung.steps, (row.iteration_s or 0.0) * 1e3))
    # Eliminated candidates are drawn first, so that candidates of the last rung are on top.
    for label, line in sorted(lines.items(), key=lambda item: item[0] in styles):
        index, style = styles.get(label, (None, ELIMINATED))
        points = {"x": [steps for steps, _ in line], "y": [value for _, value in line], "name": plotly_text(label)}
        hover = f"<b>{plotly_text(label)}</b><br>%{{x}} steps: %{{y:.3g}} ms<extra></extra>"
        _add(figure, index, points, style, hover, width=2 if label in styles else 1)
    steps = [rung.steps for rung in study.rungs]
    figure.x_axis("steps of the rung", type="log", tickvals=steps, ticktext=[str(number) for number in steps])
    figure.y_axis("ms per step (less is better)", rangemode="tozero")
    rows = [[label, *(_at(line, number) for number in steps)] for label, line in lines.items()]
    table = Values(["Strategy", *(f"{number} steps, ms" for number in steps)], rows)
    caption = (
        "Time per step of the slowest worker; a line ends at the rung that eliminated the candidate. Grey: eliminated "
        "before the last rung."
    )
    yield Chart("tuning-rungs", "Candidates over rungs", caption, [figure], table)


def _at(line: Sequence[tuple[int, float]], steps: int) -> str:
    return next((significant(value) for number, value in line if number == steps), DASH)


@chart("tuning", order=20)
def quality_lost(content: TunedRows) -> Iterator[Chart]:
    """Draw the lost accuracy (or the increase of test loss) of each candidate against its time per step.

    All values are relative to the reference, an exact strategy. A rung (round) judges candidates by test accuracy or by
    test loss. The values of a candidate are from its last rung with the same criterion as the final rung.
    """
    study, styles = content.study, content.styles
    if not study.rungs:
        return
    final = study.rungs[-1]
    by, figure = final.judged_by, new_figure(height=380)
    latest: dict[str, tuple[Candidate, int]] = {}
    for rung in study.rungs:
        if rung.judged_by == by:
            latest |= {row.label: (row, rung.steps) for row in _measured(rung)}
    for label, (row, steps) in latest.items():
        index, style = styles.get(label, (None, ELIMINATED))
        points = {"x": [row.versus_reference], "y": [row.lost], "mode": "markers", "name": plotly_text(label)}
        hover = (
            f"<b>{plotly_text(label)}</b><br>{times(row.versus_reference)} times the time of "
            f"{plotly_text(study.reference)}<br>lost {row.lost:.2f}, after {steps} steps<extra></extra>"
            if row.lost is not None
            else f"<b>{plotly_text(label)}</b>: no finite figure<extra></extra>"
        )
        _add(figure, index, points, style, hover, width=1)
    unit = "points of test accuracy" if by == "accuracy" else "% of test loss"
    margin = final.margin
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": margin, "y1": margin}
    figure.layout["shapes"] = [{**line, "line": {"dash": "dash", "width": 1.5, "color": REFERENCES["one-worker"]}}]
    figure.x_axis(f"time per step relative to {plotly_text(study.reference)} (less is better)")
    figure.y_axis(f"lost, {unit} (less is better)")
    rows = [
        [label, times(row.versus_reference), significant(row.lost), str(steps)]
        for label, (row, steps) in latest.items()
    ]
    table = Values(["Strategy", "Time relative to the reference", f"Lost, {unit}", "Steps"], rows)
    caption = f"Candidates below the dashed line ({margin:g}) are within the margin; down and to the left is better."
    yield Chart("tuning-lost", "Loss against time per step", caption, [figure], table)


def _add(figure: PlotlyFigure, index: int | None, points: Json, style: Style, hover: str, *, width: int) -> None:
    marker = {"color": style.colour, "symbol": style.symbol, "size": 8 if index is not None else 6}
    line = {"color": style.colour, "dash": style.dash, "width": width}
    trace = {"mode": "lines+markers", "marker": marker, "line": line, "hovertemplate": hover, **points}
    figure.add("scatter", **trace, **({} if index is None else {"meta": index}))


def _measured(rung: RungResult) -> list[Candidate]:
    return [row for row in rung.rows if row.end != "failed"]
