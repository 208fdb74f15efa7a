"""Timeline chart of three steps. A horizontal lane per worker shows phases, communication and blocked time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from paceline.present.chart import LEGEND_ABOVE, Chart, Choice, PlotlyFigure, Values, new_figure, plotly_text
from paceline.present.charts.registry import Rows, chart
from paceline.present.numbers import amount, ms, whole
from paceline.present.rows import ShownRow
from paceline.present.styles import COMMUNICATION, OPERATIONS, PHASES, REST, WAITING
from paceline.results import Json, Timeline, TimelineSpan

NUM_STEPS = 3
MAX_SPANS = 1200  # bars of one chart; if there are more, neighbours of the same name are merged
CLOSE = 1 / 1200  # largest invisible gap, as a share of the drawn time: less than a pixel on a wide screen
# Vertical position and height of phases, blocked time and operations in a lane.
PLACES = {"phase": (-0.16, 0.44), "blocked": (-0.16, 0.16), "op": (0.27, 0.26)}
# Sends and receives overlap in time, so they are drawn at different heights.
HALVES = {"send": (0.2, 0.12), "recv": (0.34, 0.12)}
LANE = 62  # height of a lane in pixels


@dataclass(frozen=True)
class Bar:
    """A bar of the timeline: one span (timed piece of a step), or several merged spans of the same name."""

    name: str
    kind: str
    begin_s: float
    end_s: float
    bytes: int
    count: int = 1


@chart("time", order=20)
def timeline(content: Rows) -> Iterator[Chart | str]:
    shown = [
        (index, r, r.timeline) for index, r in enumerate(content.rows) if r.timeline is not None and r.timeline.lanes
    ]
    if not shown:
        if any(row.split for row in content.rows):
            yield "No timeline: spans of single steps were not recorded in these runs."
        return
    views = [_figure(given) for _, _, given in shown]
    choice = Choice("strategy", tuple(r.label for _, r, _ in shown), is_list=True)
    first = next((position for position, (index, _, _) in enumerate(shown) if index == content.first), 0)
    caption = (
        "A lane per worker. Upper bars: phases of the training loop; thin and yellow: the worker is blocked in the "
        "comm. Lower bars: operations of the comm, from the call to their completion. Drag to zoom in."
    )
    title = "Three steps, worker by worker"
    yield Chart(
        "timeline",
        title,
        caption,
        views,
        _values([(r, given) for _, r, given in shown]),
        is_wide=True,
        choices=[choice],
        initial=first,
    )


def _figure(given: Timeline) -> PlotlyFigure:
    lanes = [(lane.rank, [_bar(span) for span in lane.spans]) for lane in sorted(given.lanes, key=lambda one: one.rank)]
    spans = [span for _, lane in lanes for span in lane]
    start = min((span.begin_s for span in spans), default=0.0)
    window = max((span.end_s for span in spans), default=1.0) - start
    if len(spans) > MAX_SPANS:
        lanes = [(rank, _merged(lane, window * CLOSE)) for rank, lane in lanes]
    figure = new_figure(barmode="overlay", showlegend=True, legend=LEGEND_ABOVE, height=110 + LANE * len(lanes))
    names = dict.fromkeys((s.kind, "" if s.kind == "blocked" else s.name) for s in spans)
    for kind, name in sorted(names, key=_drawing_order):
        found = [
            (row, rank, span)
            for row, (rank, lane) in enumerate(lanes)
            for span in lane
            if span.kind == kind and (kind == "blocked" or span.name == name)
        ]
        figure.add("bar", **_bars(kind, name, found, start))
    _mark_steps(figure, given.first_step, lanes[0][1], start)
    figure.x_axis("ms", range=[-window * 10, window * 1010], tickformat="~g")
    figure.y_axis(tickvals=list(range(len(lanes))), ticktext=[f"worker {rank}" for rank, _ in lanes])
    figure.y_axis(range=[len(lanes) - 0.5, -0.75], showgrid=False, ticks="", fixedrange=True)
    return figure


def _bars(kind: str, name: str, found: Sequence[tuple[int, int, Bar]], start: float) -> Json:
    offset, height = HALVES.get(name, PLACES[kind]) if kind == "op" else PLACES[kind]
    colours = {"blocked": WAITING, "op": OPERATIONS.get(name, COMMUNICATION), "phase": PHASES.get(name, REST)}
    marker: Json = {"color": colours[kind], "line": {"width": 0}}
    what = plotly_text("blocked" if kind == "blocked" else name)
    return {
        "orientation": "h",
        "base": [(span.begin_s - start) * 1e3 for _, _, span in found],
        "x": [max(span.end_s - span.begin_s, 0) * 1e3 for _, _, span in found],
        "y": [row + offset for row, _, _ in found],
        "width": height,
        "marker": marker,
        "customdata": [[rank, _detail(span)] for _, rank, span in found],
        "hovertemplate": f"<b>worker %{{customdata[0]}}</b>, {what}<br>%{{customdata[1]}}<extra></extra>",
        "name": what,
    }


def _detail(span: Bar) -> str:
    text = f"{ms(span.end_s - span.begin_s)} ms"
    if span.kind == "blocked":
        text += f" in {plotly_text(span.name)}"
    if span.bytes:
        text += f", {amount(span.bytes)}"
    return text + (f" ({span.count} spans)" if span.count > 1 else "")


def _drawing_order(key: tuple[str, str]) -> tuple[int, int, str]:
    """Return a sort key for the (kind, name) of bars: phases in step order, then blocked time, then operations."""
    kind, name = key
    place = list(PHASES).index(name) if name in PHASES else len(PHASES)
    return ["phase", "blocked", "op"].index(kind), place, name


def _bar(span: TimelineSpan) -> Bar:
    return Bar(span.name, span.kind, span.begin_s, span.end_s, span.bytes or 0)


def _merged(spans: Sequence[Bar], close: float) -> list[Bar]:
    """Merge neighbouring bars of the same kind and name if the gap between them is at most `close` seconds.

    Such a gap would be invisible. Phases are not merged.
    """
    found: list[Bar] = []
    last: dict[tuple[str, str], int] = {}
    for span in sorted(spans, key=lambda span: span.begin_s):
        key = (span.kind, span.name)
        before = found[last[key]] if key in last else None
        if before is not None and span.begin_s - before.end_s <= close and span.kind != "phase":
            found[last[key]] = replace(
                before,
                end_s=max(before.end_s, span.end_s),
                bytes=before.bytes + span.bytes,
                count=before.count + 1,
            )
        else:
            last[key] = len(found)
            found.append(span)
    return found


def _mark_steps(figure: PlotlyFigure, first_step: int, lane: Sequence[Bar], start: float) -> None:
    """Draw a vertical line at the start of each step of the first worker. A step starts with its data phase.

    `lane` has the bars of the first worker. If a step loads several batches, the number of data phases is not
    `NUM_STEPS`, and no lines are drawn.
    """
    begins = [span.begin_s for span in lane if span.kind == "phase" and span.name == "data"]
    if len(begins) != NUM_STEPS:
        return
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    places = [(begin - start) * 1e3 for begin in sorted(begins)]
    figure.layout["shapes"] = [{**line, "x0": x, "x1": x} for x in places]
    note = {"yref": "paper", "y": 1, "yanchor": "top", "xanchor": "left", "showarrow": False, "xshift": 2}
    figure.layout["annotations"] = [
        {**note, "x": x, "text": f"step {first_step + number:,}"} for number, x in enumerate(places)
    ]


def _values(shown: Sequence[tuple[ShownRow, Timeline]]) -> Values:
    """Return a table with the number, total time and bytes of spans, by strategy, worker and name."""
    rows = []
    for result, given in shown:
        for lane in given.lanes:
            totals: dict[tuple[str, str], list[Bar]] = {}
            for span in map(_bar, lane.spans):
                name = "blocked" if span.kind == "blocked" else span.name
                totals.setdefault((span.kind, name), []).append(span)
            for (_, name), spans in totals.items():
                seconds, size = sum(one.end_s - one.begin_s for one in spans), sum(one.bytes for one in spans)
                cells = [name, whole(len(spans)), ms(seconds), amount(size or None)]
                rows.append([result.label, str(lane.rank), *cells])
    return Values(["Strategy", "Worker", "Span", "Count", "Total, ms", "Bytes"], rows)
