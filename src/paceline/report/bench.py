"""The page of a bench: bandwidth over size for every comm, one chart per operation, and all figures in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from paceline.report import facts
from paceline.report.chart import Chart, Table, compact, new_figure, plain
from paceline.report.html import packed_plotly, policy_for, template_file, templates, write_whole
from paceline.report.numbers import duration, significant, times
from paceline.report.styles import PALETTE, REFERENCES, Style
from paceline.study.bench import human_bytes, short_name

Row = Mapping[str, Any]
COPY = "copy of memory"
MANY_TICKS = 12  # sizes on an axis, beyond which every second one is named


def write_bench_page(outcome: Mapping[str, Any], output: str | Path) -> Path:
    """Write the page of what `paceline bench` measured, whole or not at all."""
    write_whole(Path(output), render_bench(outcome))
    return Path(output)


def render_bench(outcome: Mapping[str, Any]) -> str:
    """The page as text."""
    results: Sequence[Row] = outcome["results"]
    series = series_of(results)
    charts = [make_chart(op, results, series) for op in dict.fromkeys(row["op"] for row in results)]
    plotly, plotly_script = packed_plotly()
    script = Markup(template_file("report.js"))
    first = results[0]
    return (
        templates()
        .get_template("bench.html")
        .render(
            title="Bandwidth of comms",
            started=outcome["started"],
            names=[*series.values(), COPY],
            looks=[Style(colour) for colour in _colours(series)],
            charts=charts,
            chart_specs=compact([chart.spec for chart in charts]),
            results=results,
            cells=_cells,
            look_of=lambda row: Style(_colours(series)[list(series).index(key_of(row))]),
            short_name=short_name,
            reference=short_name(outcome["reference"]),
            num_workers=first["world_size"],
            dtype=first["dtype"],
            warmup=first["warmup"],
            iterations=first["iterations"],
            unavailable=outcome["unavailable"],
            machine=facts.machine(outcome["environment"]),
            style=Markup(template_file("report.css")),
            plotly=plotly,
            script=script,
            policy=policy_for([plotly_script, script]),
        )
    )


def series_of(results: Sequence[Row]) -> dict[tuple[str, str], str]:
    """The lines of all charts: a comm, and where its results are if there is a choice."""
    found = dict.fromkeys((str(row["comm"]), str(row["result"])) for row in results)
    comms = [comm for comm, _ in found]
    return {
        (comm, result): short_name(comm) if comms.count(comm) == 1 else f"{short_name(comm)}, {result}"
        for comm, result in found
    }


def key_of(row: Row) -> tuple[str, str]:
    return row["comm"], row["result"]


def make_chart(op: str, results: Sequence[Row], series: Mapping[tuple[str, str], str]) -> Chart:
    """busbw over bytes, both on log scales, with the copy that was measured in the same rounds."""
    rows = [row for row in results if row["op"] == op]
    figure = new_figure(hovermode="x unified", height=340)
    for index, (key, colour) in enumerate(zip(series, _colours(series), strict=False)):
        line = [row for row in rows if key_of(row) == key and row["busbw_bytes_per_s"] > 0]
        if line:
            figure.add(
                "scatter",
                x=[row["bytes"] for row in line],
                y=[row["busbw_bytes_per_s"] / 1e9 for row in line],
                customdata=[
                    [significant(row["busbw_bytes_per_s"] / 1e9), duration(row["time_s"]["p50"])] for row in line
                ],
                mode="lines+markers",
                line={"color": colour, "width": 2},
                marker={"color": colour, "size": 7},
                name=plain(series[key]),
                hovertemplate="%{customdata[0]} GB/s, %{customdata[1]}",
                meta=index,
            )
    limits = {row["bytes"]: row["copy_limit_bytes_per_s"] / 1e9 for row in rows}
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
    named = sizes[:: 2 if len(sizes) > MANY_TICKS else 1]
    figure.x_axis("bytes", type="log", tickvals=named, ticktext=list(map(human_bytes, named)))
    figure.y_axis("busbw, GB/s", type="log", dtick="D2", exponentformat="none")
    cells = [
        [series[key_of(row)], human_bytes(row["bytes"]), significant(row["busbw_bytes_per_s"] / 1e9)] for row in rows
    ]
    table = Table(["Comm", "Bytes", "busbw, GB/s"], cells)
    caption = "Bus bandwidth over size; more is better."
    return Chart(f"busbw-{op}", op, caption, [figure], table, is_wide=_is_alone(results))


def _is_alone(results: Sequence[Row]) -> bool:
    return len({row["op"] for row in results}) == 1


def _cells(row: Row) -> list[str]:
    """The figures of a row of the table."""
    return [
        human_bytes(row["bytes"]),
        duration(row["time_s"]["p50"]),
        duration(row["time_s"]["p95"]),
        significant(row["algbw_bytes_per_s"] / 1e9),
        significant(row["busbw_bytes_per_s"] / 1e9),
        significant(row["copy_limit_bytes_per_s"] / 1e9),
        f"{row['percent_of_copy_limit']:.1f}",
        times(row["speedup"]["value"]),
    ]


def _colours(series: Mapping[tuple[str, str], str]) -> list[str]:
    """One per line, then the copy's."""
    return [PALETTE[index % len(PALETTE)] for index in range(len(series))] + [REFERENCES["none"]]
