"""The charts. A strategy has one colour in all of them; ink and grid get theirs from the page's theme."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from paceline.report.numbers import accuracy, duration, megabytes

Result = Mapping[str, Any]

# Okabe and Ito's colours, told apart with any kind of colour vision; their yellow and black, unreadable on white or
# on black, are replaced. The two references without synchronisation are greys.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7A5FB5", "#8C6D31")
REFERENCES = {"one-worker": "#6B7683", "none": "#A0A8B2"}
# Curves of exact strategies lie on one another: gaps in the upper ones let the lower ones be seen.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
LOG_FROM = 100.0  # where the largest loss is this many times the smallest, a linear axis shows a flat line
TICK_WIDTH = 14  # characters of a label per line


@dataclass(frozen=True)
class Chart:
    id: str
    title: str
    caption: str
    figure: go.Figure
    is_wide: bool = False

    @property
    def spec(self) -> dict[str, Any]:
        """What plotly.js draws."""
        value: dict[str, Any] = self.figure.to_plotly_json()
        return {"id": self.id, "data": value["data"], "layout": value["layout"]}


def make_charts(results: Sequence[Result]) -> list[Chart]:
    """Every chart for which there are values."""
    charts = [iteration_time(results), loss_over_steps(results), loss_over_seconds(results)]
    if any(value is not None for result in results for value in result["curve"]["accuracy"]):
        charts.append(accuracy_over_steps(results))
    charts.append(time_over_steps(results))
    if any(_worker_values(result, "train_accuracy", "test_accuracy") for result in results):
        charts.append(accuracy_per_worker(results))
    if any(result["workers"] > 1 for result in results):
        charts.append(bytes_per_worker(results))
    return charts


def colours(results: Sequence[Result]) -> list[str]:
    """One per result, in order."""
    hues = iter(PALETTE * (len(results) // len(PALETTE) + 1))
    return [REFERENCES.get(result["strategy"]) or next(hues) for result in results]


def iteration_time(results: Sequence[Result]) -> Chart:
    figure = _figure()
    ends = []
    for index, (result, colour) in enumerate(zip(results, colours(results), strict=True)):
        mean = result["iteration_s"]["mean"] * 1e3
        low, high = (value * 1e3 for value in result.get("iteration_mean_s_interval95") or (math.nan, math.nan))
        has_interval = not math.isnan(low)
        # The middle of repeats can lie outside the interval of their mean; a negative arm would be drawn wrongly.
        arms = {"array": [max(high - mean, 0)], "arrayminus": [max(mean - max(low, 0), 0)]} if has_interval else None
        ends.append(max(mean, high) if has_interval else mean)
        note = f"95 % interval {max(low, 0):.3g} to {high:.3g} ms<br>" if has_interval else ""
        percentiles = f"p50 {duration(result['iteration_s']['p50'])}, p95 {duration(result['iteration_s']['p95'])}"
        figure.add_bar(
            x=[mean],
            y=[index],
            orientation="h",
            width=0.62,
            marker_color=colour,
            error_x=arms and {"type": "data", "symmetric": False, "thickness": 1.6, "width": 5, **arms},
            hovertemplate=f"<b>{_plain(result)}</b><br>mean {mean:.3g} ms<br>{note}{percentiles}<extra></extra>",
            meta=index,
        )
        figure.add_scatter(
            x=[ends[-1]],
            y=[index],
            mode="text",
            text=[f"  {duration(mean / 1e3)}"],
            textposition="middle right",
            hoverinfo="skip",
            cliponaxis=False,
            meta=index,
        )
    figure.update_layout(height=70 + 40 * len(results), hovermode="closest", bargap=0.3, margin_r=70)
    figure.update_xaxes(title_text="ms per iteration (less is better)", range=[0, max(ends) * 1.04])
    figure.update_yaxes(tickvals=list(range(len(results))), ticktext=[_wrapped(result, 24) for result in results])
    figure.update_yaxes(range=[len(results) - 0.45, -0.55], showgrid=False, ticks="")
    has_intervals = any(result.get("iteration_mean_s_interval95") for result in results)
    whiskers = "Whiskers are 95 % intervals over repeats." if has_intervals else "One repeat: no interval."
    return Chart("iteration-time", "Time per iteration", f"Mean over timed steps and workers. {whiskers}", figure, True)


def loss_over_steps(results: Sequence[Result]) -> Chart:
    figure = _lines(results, "step", "loss", "%{y:.4g}", has_dashes=True)
    figure.update_xaxes(title_text="step")
    caption = "Training loss over all workers. Strategies that agree exactly lie on one another."
    return Chart("loss-steps", "Loss over steps", caption, _loss_axis(figure, results))


def loss_over_seconds(results: Sequence[Result]) -> Chart:
    figure = _lines(results, "train_s", "loss", "%{y:.4g} at %{x:.3g} s")
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(title_text="seconds of training")
    caption = "The same against the clock: the further left, the sooner a loss is reached."
    return Chart("loss-seconds", "Loss over seconds", caption, _loss_axis(figure, results))


def accuracy_over_steps(results: Sequence[Result]) -> Chart:
    figure = _lines(results, "step", "accuracy", "%{y:.2%}", has_dashes=True)
    for index, (result, colour) in enumerate(zip(results, colours(results), strict=True)):
        if result["evaluations"]:
            figure.add_scatter(
                x=[evaluation["step"] + 1 for evaluation in result["evaluations"]],  # stored from 0, curves from 1
                y=[evaluation["accuracy"] for evaluation in result["evaluations"]],
                mode="markers",
                marker={"color": colour, "size": 8, "symbol": index, "line": {"width": 1}},
                name=f"{_plain(result)}, test",
                hovertemplate="%{y:.2%}",
                meta=index,
            )
    figure.update_xaxes(title_text="step")
    figure.update_yaxes(title_text="accuracy", tickformat=".0%")
    has_tests = any(result["evaluations"] for result in results)
    caption = "Lines: training accuracy of each step." + (" Markers: evaluations on the test set." if has_tests else "")
    return Chart("accuracy-steps", "Accuracy over steps", caption, figure)


def time_over_steps(results: Sequence[Result]) -> Chart:
    figure = _lines(results, "step", "iteration_s", "%{y:.3g} ms", scale=1e3)
    timed = [
        value * 1e3
        for result in results
        for step, value in zip(result["curve"]["step"], result["curve"]["iteration_s"], strict=True)
        if step > result["warmup_steps"] and value is not None
    ]
    if timed:  # a slow first step would flatten all others
        figure.update_yaxes(range=[0, max(timed) * 1.05])
    figure.update_xaxes(title_text="iteration")
    figure.update_yaxes(title_text="ms per iteration")
    warmup = max(result["warmup_steps"] for result in results)
    dropped = f" The first {warmup} of them {'is' if warmup == 1 else 'are'} warm-up and not counted." if warmup else ""
    caption = f"The slowest worker of each iteration.{dropped}"
    return Chart("time-steps", "Time per iteration over iterations", caption, figure)


def accuracy_per_worker(results: Sequence[Result]) -> Chart:
    figure = _per_worker(results, {"train": "train_accuracy", "test": "test_accuracy"}, accuracy, scale=1.0)
    figure.update_yaxes(title_text="accuracy", tickformat=".0%", range=[0, 1.02])
    caption = "Two bars per worker, ranks from left to right: train (solid) and test (hatched), at the end."
    return Chart("accuracy-workers", "Accuracy per strategy and rank", caption, figure, True)


def bytes_per_worker(results: Sequence[Result]) -> Chart:
    keys = {"sent": "sent_bytes", "received": "received_bytes"}
    figure = _per_worker(results, keys, lambda value: f"{megabytes(value)} MB", scale=1e-6)
    figure.update_yaxes(title_text="MB over the run", rangemode="tozero")
    caption = "Two bars per worker, ranks from left to right: sent (solid) and received (hatched), over the whole run."
    return Chart("bytes-workers", "Bytes sent and received per worker", caption, figure, True)


def _figure() -> go.Figure:
    """Without plotly's template: the page's theme decides."""
    figure = go.Figure(layout={"template": "none", "showlegend": False, "height": 340, "hovermode": "x unified"})
    figure.update_layout(margin={"l": 10, "r": 14, "t": 12, "b": 10})
    figure.update_xaxes(automargin=True, zeroline=False, title_standoff=10)
    figure.update_yaxes(automargin=True, zeroline=False, title_standoff=8)
    return figure


def _lines(
    results: Sequence[Result], x: str, y: str, hover: str, *, has_dashes: bool = False, scale: float = 1.0
) -> go.Figure:
    figure = _figure()
    for index, (result, colour) in enumerate(zip(results, colours(results), strict=True)):
        figure.add_scatter(
            x=result["curve"][x],
            y=[None if value is None else value * scale for value in result["curve"][y]],
            mode="lines" if len(result["curve"][x]) > 1 else "markers",
            line={"color": colour, "width": 2, "dash": DASHES[index % len(DASHES)] if has_dashes else "solid"},
            name=_plain(result),
            hovertemplate=hover,
            meta=index,
        )
    return figure


def _loss_axis(figure: go.Figure, results: Sequence[Result]) -> go.Figure:
    values = [value for result in results for value in result["curve"]["loss"] if value is not None]
    is_log = bool(values) and min(values) > 0 and max(values) / min(values) > LOG_FROM
    figure.update_yaxes(title_text="loss, log scale" if is_log else "loss", type="log" if is_log else "linear")
    if is_log:
        figure.update_yaxes(dtick=1, exponentformat="power")
    return figure


def _worker_values(result: Result, *keys: str) -> list[float]:
    return [row[key] for row in result["per_worker"] for key in keys if row[key] is not None]


def _per_worker(results: Sequence[Result], keys: Mapping[str, str], text: Any, *, scale: float) -> go.Figure:
    """Bars for every rank, strategies next to each other; the second quantity of a pair is hatched."""
    figure = _figure()
    first, middles = 0, []
    for index, (result, colour) in enumerate(zip(results, colours(results), strict=True)):
        rows = result["per_worker"]
        middles.append(first + (len(rows) - 1) / 2)
        for number, (what, key) in enumerate(keys.items()):
            figure.add_bar(
                x=[first + position + (number - 0.5) * 0.4 for position in range(len(rows))],
                y=[None if row[key] is None else row[key] * scale for row in rows],
                width=0.38,
                marker={"color": colour, "pattern": {"shape": "/" if number else "", "size": 5, "fillmode": "replace"}},
                customdata=[[row["rank"], text(row[key])] for row in rows],
                hovertemplate=f"<b>{_plain(result)}</b>, rank %{{customdata[0]}}<br>{what} %{{customdata[1]}}<extra></extra>",
                meta=index,
            )
        first += len(rows) + 1
    figure.update_layout(hovermode="closest", barmode="overlay", height=320)
    figure.update_xaxes(tickvals=middles, ticktext=[_wrapped(result) for result in results], showgrid=False, ticks="")
    return figure


def _plain(result: Result) -> str:
    """A label as text: plotly reads markup and %{} in strings."""
    return html.escape(str(result["label"]), quote=False).replace("%{", "%\N{ZERO WIDTH SPACE}{")


def _wrapped(result: Result, width: int = TICK_WIDTH) -> str:
    """A long label on several lines, broken where its options and its codec begin."""
    pieces = str(result["label"]).replace(":", "\0:").replace("+", "\0+").replace(" ", "\0 ").split("\0")
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += piece
    return "<br>".join(_plain({"label": line.strip()}) for line in lines)
