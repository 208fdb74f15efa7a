"""Charts of `paceline bench`: bandwidth over message size, one chart per operation.

There is a line for each comm, which is the transport between workers, such as gloo or shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paceline.present.chart import Chart, Values, new_figure, plotly_text
from paceline.present.charts.registry import chart
from paceline.present.numbers import binary_bytes, duration, significant
from paceline.present.styles import PALETTE, REFERENCES
from paceline.results.commands import Bench, CollectiveResult

COPY = "memory copy"
MAX_TICKS = 12  # labels of an axis; with more sizes, only every second one has a label


def short_name(comm: str) -> str:
    """Return the name of a comm (communication backend). For a user's own comm, FILE:CLASS, return only CLASS."""
    return comm.rpartition(":")[2]


@chart("bench", order=10)
def bandwidths(outcome: Bench) -> Iterator[Chart]:
    """Yield a chart of bandwidth over message size for each operation."""
    series = series_of(outcome.results)
    for op in dict.fromkeys(row.op for row in outcome.results):
        yield _bandwidth(op, outcome.results, series)


def series_of(results: Sequence[CollectiveResult]) -> dict[tuple[str, str], str]:
    """Return the name of each line in the charts, keyed by comm and by the type of memory that holds results.

    A comm is a communication backend. The name of a line includes the memory (private, shared or plain) only if the
    comm was measured with several types of memory.
    """
    found = dict.fromkeys((row.comm, row.result) for row in results)
    comms = [comm for comm, _ in found]
    return {
        (comm, result): short_name(comm) if comms.count(comm) == 1 else f"{short_name(comm)}, {result}"
        for comm, result in found
    }


def key_of(row: CollectiveResult) -> tuple[str, str]:
    return row.comm, row.result


def _bandwidth(op: str, results: Sequence[CollectiveResult], series: Mapping[tuple[str, str], str]) -> Chart:
    """Draw the bus bandwidth of one operation over message size, with logarithmic axes.

    A dashed line shows the bandwidth of a memory copy that was measured in the same rounds.
    """
    rows = [row for row in results if row.op == op]
    figure = new_figure(hovermode="x unified", height=340)
    for index, (key, colour) in enumerate(zip(series, colours_of(series), strict=False)):
        line = [row for row in rows if key_of(row) == key and row.busbw_bytes_per_s > 0]
        if line:
            figure.add(
                "scatter",
                x=[row.bytes for row in line],
                y=[row.busbw_bytes_per_s / 1e9 for row in line],
                customdata=[[significant(row.busbw_bytes_per_s / 1e9), duration(row.time_s.p50)] for row in line],
                mode="lines+markers",
                line={"color": colour, "width": 2},
                marker={"color": colour, "size": 7},
                name=plotly_text(series[key]),
                hovertemplate="%{customdata[0]} GB/s, %{customdata[1]}",
                meta=index,
            )
    limits = {row.bytes: row.copy_limit_bytes_per_s / 1e9 for row in rows}
    figure.add(
        "scatter",
        x=list(limits),
        y=list(limits.values()),
        customdata=[significant(limit) for limit in limits.values()],
        mode="lines",
        line={"color": REFERENCES["none"], "width": 2, "dash": "dash"},
        name=COPY,
        hovertemplate="%{customdata} GB/s",
        meta=len(series),
    )
    sizes = sorted(limits)
    named = sizes[:: 2 if len(sizes) > MAX_TICKS else 1]
    figure.x_axis("bytes", type="log", tickvals=named, ticktext=list(map(binary_bytes, named)))
    figure.y_axis("busbw, GB/s", type="log", dtick="D2", exponentformat="none")
    cells = [[series[key_of(row)], binary_bytes(row.bytes), significant(row.busbw_bytes_per_s / 1e9)] for row in rows]
    table = Values(["Comm", "Bytes", "busbw, GB/s"], cells)
    caption = "Bus bandwidth (busbw) over message size; more is better."
    return Chart(f"busbw-{op}", op, caption, [figure], table, is_wide=len(rows) == len(results))


def colours_of(series: Mapping[tuple[str, str], str]) -> list[str]:
    """Return the colour of each line of `series`, and at the end the colour of the line for the memory copy."""
    return [PALETTE[index % len(PALETTE)] for index in range(len(series))] + [REFERENCES["none"]]
