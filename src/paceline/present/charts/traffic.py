"""Charts of the bytes that workers sent, per link and per worker.

The charts compare predicted bytes with the bytes that the comm (the transport between workers) and the kernel counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.present.chart import LEGEND_ABOVE, Chart, Choice, PlotlyFigure, Values, new_figure, plotly_text
from paceline.present.charts.registry import Rows, chart
from paceline.present.charts.shared_figures import bars_per_worker, worker_values
from paceline.present.numbers import DASH, amount, byte_unit
from paceline.present.rows import ShownRow
from paceline.present.styles import Style, styles_of
from paceline.results import Link, WorkerNetwork

MAX_LINKS = 40  # links in one chart; its table lists all
ARROW = "\N{RIGHTWARDS ARROW}"
COUNTS = {"predicted": "predicted_sent_bytes", "counted by the comm": "comm_sent_bytes"}
COUNTS |= {"counted by the kernel": "kernel_sent_bytes"}


@chart("traffic", order=10)
def links(content: Rows) -> Iterator[Chart | str]:
    results = content.rows
    if not _has_several(results):
        yield "One worker sends nothing."
        return
    shown = [(index, r, r.links) for index, r in enumerate(results) if r.links]
    if not shown:
        yield "No bytes per link: they were not counted in these runs (an earlier version, or --no-measure)."
        return
    styles = styles_of(results)
    views = [_links_figure(found, styles[index]) for index, _, found in shown]
    choice = Choice("strategy", tuple(r.label for _, r, _ in shown), is_list=True)
    first = next((position for position, (index, _, _) in enumerate(shown) if index == content.first), 0)
    caption = (
        "Bars: bytes that a worker sent to another over the run, counted by the comm. Horizontal marks: the prediction."
    )
    if any(link.medium == "memory" for _, _, found in shown for link in found):
        caption += " Hatched: over shared memory."
    if any(len(found) > MAX_LINKS for _, _, found in shown):
        caption += f" Only the {MAX_LINKS} links with most bytes; the table lists all."
    rows = [
        [
            r.label,
            f"{link.source} {ARROW} {link.target}",
            amount(link.bytes),
            amount(link.predicted_bytes),
            difference(link.bytes, link.predicted_bytes),
            link.medium,
        ]
        for _, r, found in shown
        for link in found
    ]
    table = Values(["Strategy", "Link", "Bytes", "Predicted", "Difference", "Medium"], rows)
    yield Chart(
        "links", "Bytes per link, measured and predicted", caption, views, table, choices=[choice], initial=first
    )


@chart("traffic", order=20)
def sent_per_worker(content: Rows) -> Iterator[Chart | str]:
    """Draw the bytes that each worker sent: predicted, counted by the comm, and counted by the operating system.

    The comm is the communication backend. If the operating system's counts were not recorded, draw the bytes sent
    and received as counted by the comm.
    """
    results = content.rows
    if not _has_several(results):
        return
    if not any(_network(result) for result in results):
        yield _sent_and_received(results)
        yield "The kernel's byte counts were not recorded in these runs; only those of the comm are shown."
        return
    largest = max(getattr(row, key) or 0 for r in results for row in _network(r) for key in COUNTS.values())
    unit, size = byte_unit(largest)
    figure = bars_per_worker(results, COUNTS, amount, workers_of=_network, scale=1 / size)
    figure.y_axis(f"{unit} sent over the run", rangemode="tozero")
    caption = (
        "Three bars per worker: predicted (solid), counted by the comm (hatched), counted by the kernel on its sockets "
        "(dotted), including protocol headers. Shared memory is not on the network."
    )
    has_nodes = any(row.node_sent_bytes is not None for r in results for row in _network(r))
    if has_nodes:
        caption += " The table adds what each worker's node sent, including headers and the node's other workers."
    rows = [
        [
            r.label,
            str(row.rank),
            *(amount(getattr(row, key)) for key in COUNTS.values()),
            difference(row.kernel_sent_bytes, row.predicted_sent_bytes),
            amount(row.kernel_received_bytes),
            amount(row.comm_received_bytes),
            amount(row.memory_bytes),
            *([amount(row.node_sent_bytes)] if has_nodes else []),
        ]
        for r in results
        for row in _network(r)
    ]
    heads = ["Strategy", "Worker", "Predicted", "Comm", "Kernel", "Kernel to predicted", "Kernel received"]
    heads += ["Comm received", "Over shared memory", *(["Node's interface"] if has_nodes else [])]
    table = Values(heads, rows)
    yield Chart("bytes-workers", "Bytes sent: predicted, counted by comm and kernel", caption, [figure], table)


def difference(measured: float | None, predicted: float | None) -> str:
    if measured is None or not predicted:
        return DASH
    return f"{(measured / predicted - 1) * 100:+.1f} %"


def _sent_and_received(results: Sequence[ShownRow]) -> Chart:
    fields = {"sent": "sent_bytes", "received": "received_bytes"}
    unit, size = byte_unit(max(getattr(row, key) for r in results for row in r.per_worker for key in fields.values()))
    figure = bars_per_worker(results, fields, amount, scale=1 / size)
    figure.y_axis(f"{unit} over the run", rangemode="tozero")
    caption = "Two bars per worker, ranks from left to right: sent (solid) and received (hatched), over the whole run."
    table = worker_values(results, fields, amount)
    return Chart("bytes-workers", "Bytes sent and received per worker", caption, [figure], table)


def _links_figure(given: Sequence[Link], style: Style) -> PlotlyFigure:
    found = sorted(given, key=lambda link: -link.bytes)[:MAX_LINKS]
    found.sort(key=lambda link: (link.source, link.target))
    unit, size = byte_unit(max(max(link.bytes, link.predicted_bytes or 0) for link in found))
    names = [f"{link.source} {ARROW} {link.target}" for link in found]
    details = [[amount(link.bytes), amount(link.predicted_bytes), plotly_text(link.medium)] for link in found]
    figure = new_figure(showlegend=True, legend=LEGEND_ABOVE)
    shapes = ["/" if link.medium == "memory" else "" for link in found]
    figure.add(
        "bar",
        x=names,
        y=[link.bytes / size for link in found],
        name="measured",
        marker={"color": style.colour, "pattern": {"shape": shapes, "size": 5, "fillmode": "replace"}},
        customdata=details,
        hovertemplate="<b>%{x}</b><br>%{customdata[0]} over %{customdata[2]}<br>predicted %{customdata[1]}"
        "<extra></extra>",
    )
    figure.add(
        "scatter",
        x=names,
        y=[None if link.predicted_bytes is None else link.predicted_bytes / size for link in found],
        name="predicted",
        mode="markers",
        marker={"symbol": "line-ew-open", "size": 22, "line": {"width": 2.5}},
        hoverinfo="skip",
    )
    figure.x_axis("from worker to worker", type="category", showgrid=False)
    figure.y_axis(f"{unit} over the run", rangemode="tozero")
    return figure


def _network(row: ShownRow) -> list[WorkerNetwork]:
    return row.network.per_worker if row.network is not None else []


def _has_several(rows: Sequence[ShownRow]) -> bool:
    return any(row.workers > 1 for row in rows)
