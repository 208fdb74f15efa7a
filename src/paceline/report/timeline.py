"""Three steps as they happened: a lane per worker with its phases, what the comm did, and when it stood still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.report.chart import LEGEND_ABOVE, Chart, Choice, Figure, Table, new_figure, plain
from paceline.report.curves import Result
from paceline.report.numbers import amount, milliseconds, whole
from paceline.report.styles import COMMUNICATION, OPERATIONS, PHASES, REST, WAITING

NUM_STEPS = 3
MAX_SPANS = 1200  # of one chart; more are drawn as one where nearly nothing lies between them
CLOSE = 1 / 1200  # of the window: less than a pixel on a wide screen
# Of a lane: where phases, standing still and operations lie, and how high they are.
PLACES = {"phase": (-0.16, 0.44), "blocked": (-0.16, 0.16), "op": (0.27, 0.26)}
# Both at once is usual, so one does not lie on the other.
HALVES = {"send": (0.2, 0.12), "recv": (0.34, 0.12)}
LANE = 62  # pixels

Span = Mapping[str, Any]


def timeline(results: Sequence[Result], initial: int) -> Chart | None:
    """`initial` is the position in `results` of the strategy that is shown first, where it has a timeline."""
    shown = [(index, r) for index, r in enumerate(results) if (r.get("timeline") or {}).get("lanes")]
    if not shown:
        return None
    views = [_figure(result["timeline"]) for _, result in shown]
    choice = Choice("strategy", tuple(str(r["label"]) for _, r in shown), is_list=True)
    first = next((position for position, (index, _) in enumerate(shown) if index == initial), 0)
    caption = (
        "A lane per worker. Upper bars: what the training loop does; thin and yellow: the worker stands still in "
        "the comm. Lower bars: operations of the comm, from the call until they are complete. Drag to zoom in."
    )
    title = "Three steps, worker by worker"
    return Chart("timeline", title, caption, views, _table(shown), is_wide=True, choices=[choice], initial=first)


def _figure(given: Mapping[str, Any]) -> Figure:
    lanes = sorted(given["lanes"], key=lambda lane: int(lane["rank"]))
    spans = [span for lane in lanes for span in lane["spans"]]
    start = min((span["begin_s"] for span in spans), default=0.0)
    window = max((span["end_s"] for span in spans), default=1.0) - start
    if len(spans) > MAX_SPANS:
        lanes = [{**lane, "spans": _merged(lane["spans"], window * CLOSE)} for lane in lanes]
    figure = new_figure(barmode="overlay", showlegend=True, legend=LEGEND_ABOVE, height=110 + LANE * len(lanes))
    names = dict.fromkeys((str(s["kind"]), "" if s["kind"] == "blocked" else str(s["name"])) for s in spans)
    for kind, name in sorted(names, key=_order):
        found = [
            (row, lane["rank"], span)
            for row, lane in enumerate(lanes)
            for span in lane["spans"]
            if span["kind"] == kind and (kind == "blocked" or span["name"] == name)
        ]
        figure.add("bar", **_bars(kind, name, found, start))
    _mark_steps(figure, given, lanes, start)
    figure.x_axis("ms", range=[-window * 10, window * 1010], tickformat="~g")
    figure.y_axis(tickvals=list(range(len(lanes))), ticktext=[f"worker {lane['rank']}" for lane in lanes])
    figure.y_axis(range=[len(lanes) - 0.5, -0.75], showgrid=False, ticks="", fixedrange=True)
    return figure


def _bars(kind: str, name: str, found: Sequence[tuple[int, int, Span]], start: float) -> dict[str, Any]:
    offset, height = HALVES.get(name, PLACES[kind]) if kind == "op" else PLACES[kind]
    colours = {"blocked": WAITING, "op": OPERATIONS.get(name, COMMUNICATION), "phase": PHASES.get(name, REST)}
    marker: dict[str, Any] = {"color": colours[kind], "line": {"width": 0}}
    what = plain("standing still" if kind == "blocked" else name)
    return {
        "orientation": "h",
        "base": [(span["begin_s"] - start) * 1e3 for _, _, span in found],
        "x": [max(span["end_s"] - span["begin_s"], 0) * 1e3 for _, _, span in found],
        "y": [row + offset for row, _, _ in found],
        "width": height,
        "marker": marker,
        "customdata": [[rank, _detail(span)] for _, rank, span in found],
        "hovertemplate": f"<b>worker %{{customdata[0]}}</b>, {what}<br>%{{customdata[1]}}<extra></extra>",
        "name": what,
    }


def _detail(span: Span) -> str:
    text = f"{milliseconds(span['end_s'] - span['begin_s'])} ms"
    if span["kind"] == "blocked":
        text += f" in {plain(str(span['name']))}"
    if span.get("bytes"):
        text += f", {amount(span['bytes'])}"
    return text + (f" ({span['count']} together)" if span.get("count", 1) > 1 else "")


def _order(key: tuple[str, str]) -> tuple[int, int, str]:
    """Phases in the order of a step, then standing still, which lies on them, then operations."""
    kind, name = key
    place = list(PHASES).index(name) if name in PHASES else len(PHASES)
    return ["phase", "blocked", "op"].index(kind), place, name


def _merged(spans: Sequence[Span], close: float) -> list[Span]:
    """Neighbours of one name as one, where an eye could not see the gap."""
    found: list[dict[str, Any]] = []
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for span in sorted(spans, key=lambda span: float(span["begin_s"])):
        key = (span["kind"], span["name"])
        before = last.get(key)
        if before is not None and span["begin_s"] - before["end_s"] <= close and span["kind"] != "phase":
            before["end_s"] = max(before["end_s"], span["end_s"])
            before["bytes"] = (before.get("bytes") or 0) + (span.get("bytes") or 0)
            before["count"] = before.get("count", 1) + 1
        else:
            last[key] = dict(span)
            found.append(last[key])
    return list(found)


def _mark_steps(figure: Figure, given: Mapping[str, Any], lanes: Sequence[Any], start: float) -> None:
    """A line where a step of the first worker begins; not known with several batches per step."""
    begins = [span["begin_s"] for span in lanes[0]["spans"] if span["kind"] == "phase" and span["name"] == "data"]
    if len(begins) != NUM_STEPS:
        return
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    places = [(begin - start) * 1e3 for begin in sorted(begins)]
    figure.layout["shapes"] = [{**line, "x0": x, "x1": x} for x in places]
    note = {"yref": "paper", "y": 1, "yanchor": "top", "xanchor": "left", "showarrow": False, "xshift": 2}
    figure.layout["annotations"] = [
        {**note, "x": x, "text": f"step {given['first_step'] + number:,}"} for number, x in enumerate(places)
    ]


def _table(shown: Sequence[tuple[int, Result]]) -> Table:
    """Not every span, which nobody could listen to: how often and how long, per worker and name."""
    rows = []
    for _, result in shown:
        for lane in result["timeline"]["lanes"]:
            totals: dict[tuple[str, str], list[float]] = {}
            for span in lane["spans"]:
                name = "standing still" if span["kind"] == "blocked" else span["name"]
                total = totals.setdefault((span["kind"], name), [0, 0.0, 0])
                total[0] += 1
                total[1] += span["end_s"] - span["begin_s"]
                total[2] += span.get("bytes") or 0
            for (_, name), (count, seconds, nbytes) in totals.items():
                size = amount(nbytes or None)
                rows.append([str(result["label"]), str(lane["rank"]), name, whole(count), milliseconds(seconds), size])
    return Table(["Strategy", "Worker", "What", "Times", "ms in all", "Bytes"], rows)
