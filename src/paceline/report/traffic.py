"""Charts of traffic: what each link carried against theory, and what the kernel saw against what the comm counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.report import bars
from paceline.report.chart import LEGEND_ABOVE, Chart, Choice, Figure, Table, new_figure, plain
from paceline.report.curves import Result
from paceline.report.numbers import DASH, amount, byte_unit
from paceline.report.styles import Style, styles

MAX_LINKS = 40  # of one chart; the table has all
ARROW = "\N{RIGHTWARDS ARROW}"
COUNTS = {"predicted": "predicted_sent_bytes", "counted by the comm": "comm_sent_bytes"}
COUNTS |= {"seen by the kernel": "kernel_sent_bytes"}


def links(results: Sequence[Result], initial: int) -> Chart | None:
    shown = [(index, r) for index, r in enumerate(results) if r.get("links")]
    if not shown:
        return None
    looks = styles(results)
    views = [_links_figure(result["links"], looks[index]) for index, result in shown]
    choice = Choice("strategy", tuple(str(r["label"]) for _, r in shown), is_list=True)
    first = next((position for position, (index, _) in enumerate(shown) if index == initial), 0)
    caption = (
        "Bars: what a worker handed to another over the run, by the comm's own count. Lines across: the prediction."
    )
    if any(link["medium"] == "memory" for _, r in shown for link in r["links"]):
        caption += " Hatched: over shared memory."
    if any(len(r["links"]) > MAX_LINKS for _, r in shown):
        caption += f" The {MAX_LINKS} links with most bytes; the table has all."
    rows = [
        [
            str(r["label"]),
            f"{link['from']} {ARROW} {link['to']}",
            amount(link["bytes"]),
            amount(link.get("predicted_bytes")),
            difference(link["bytes"], link.get("predicted_bytes")),
            str(link["medium"]),
        ]
        for _, r in shown
        for link in r["links"]
    ]
    table = Table(["Strategy", "Link", "Bytes", "Predicted", "Difference", "Medium"], rows)
    return Chart("links", "Bytes per link against theory", caption, views, table, choices=[choice], initial=first)


def sent_per_worker(results: Sequence[Result]) -> Chart | None:
    """Theory, the comm's count and the kernel's side by side; without the kernel's, what was sent and received."""
    if not any(result["workers"] > 1 for result in results):
        return None
    measured = [r if r.get("network") else {**r, "network": {"per_worker": []}} for r in results]
    if not any(_network(result) for result in measured):
        return _sent_and_received(results)
    largest = max(row[key] or 0 for r in measured for row in _network(r) for key in COUNTS.values())
    unit, size = byte_unit(largest)
    figure = bars.bars_per_worker(measured, _network, COUNTS, amount, scale=1 / size)
    figure.y_axis(f"{unit} sent over the run", rangemode="tozero")
    caption = (
        "Three bars per worker: predicted (solid), counted by the comm (hatched), seen by the kernel on its sockets "
        "(dotted), which adds the protocol's own bytes. Shared memory is not on the network."
    )
    has_nodes = any(row.get("node_sent_bytes") is not None for r in measured for row in _network(r))
    if has_nodes:
        caption += " The table has what each worker's node sent, headers and the node's other workers included."
    rows = [
        [
            str(r["label"]),
            str(row["rank"]),
            *(amount(row[key]) for key in COUNTS.values()),
            difference(row["kernel_sent_bytes"], row["predicted_sent_bytes"]),
            amount(row["kernel_received_bytes"]),
            amount(row["comm_received_bytes"]),
            amount(row.get("memory_bytes")),
            *([amount(row.get("node_sent_bytes"))] if has_nodes else []),
        ]
        for r in measured
        for row in _network(r)
    ]
    heads = ["Strategy", "Worker", "Predicted", "Comm", "Kernel", "Kernel to predicted", "Kernel received"]
    heads += ["Comm received", "Over shared memory", *(["Node's interface"] if has_nodes else [])]
    table = Table(heads, rows)
    return Chart("bytes-workers", "Bytes sent: theory, comm and kernel", caption, [figure], table)


def difference(measured: float | None, predicted: float | None) -> str:
    if measured is None or not predicted:
        return DASH
    return f"{(measured / predicted - 1) * 100:+.1f} %"


def _sent_and_received(results: Sequence[Result]) -> Chart:
    keys = {"sent": "sent_bytes", "received": "received_bytes"}
    unit, size = byte_unit(max(row[key] for r in results for row in r["per_worker"] for key in keys.values()))
    figure = bars.bars_per_worker(results, _workers, keys, amount, scale=1 / size)
    figure.y_axis(f"{unit} over the run", rangemode="tozero")
    caption = "Two bars per worker, ranks from left to right: sent (solid) and received (hatched), over the whole run."
    table = bars.table_of(results, _workers, {"Sent": "sent_bytes", "Received": "received_bytes"}, amount)
    return Chart("bytes-workers", "Bytes sent and received per worker", caption, [figure], table)


def _links_figure(given: Sequence[Mapping[str, Any]], look: Style) -> Figure:
    found = sorted(given, key=lambda link: -link["bytes"])[:MAX_LINKS]
    found.sort(key=lambda link: (link["from"], link["to"]))
    unit, size = byte_unit(max(max(link["bytes"], link.get("predicted_bytes") or 0) for link in found))
    names = [f"{link['from']} {ARROW} {link['to']}" for link in found]
    details = [
        [amount(link["bytes"]), amount(link.get("predicted_bytes")), plain(str(link["medium"]))] for link in found
    ]
    figure = new_figure(showlegend=True, legend=LEGEND_ABOVE)
    shapes = ["/" if link["medium"] == "memory" else "" for link in found]
    figure.add(
        "bar",
        x=names,
        y=[link["bytes"] / size for link in found],
        name="measured",
        marker={"color": look.colour, "pattern": {"shape": shapes, "size": 5, "fillmode": "replace"}},
        customdata=details,
        hovertemplate="<b>%{x}</b><br>%{customdata[0]} over %{customdata[2]}<br>predicted %{customdata[1]}"
        "<extra></extra>",
    )
    figure.add(
        "scatter",
        x=names,
        y=[None if link.get("predicted_bytes") is None else link["predicted_bytes"] / size for link in found],
        name="predicted",
        mode="markers",
        marker={"symbol": "line-ew-open", "size": 22, "line": {"width": 2.5}},
        hoverinfo="skip",
    )
    figure.x_axis("from worker to worker", type="category", showgrid=False)
    figure.y_axis(f"{unit} over the run", rangemode="tozero")
    return figure


def _network(result: Result) -> Any:
    return result["network"]["per_worker"]


def _workers(result: Result) -> Any:
    return result["per_worker"]
