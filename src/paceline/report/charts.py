"""What each chart shows; ink and grid get their colours from the page's theme."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from paceline.report.numbers import accuracy, duration, megabytes
from paceline.report.traces import Result, bars_per_worker, colours, label_of, lines, new_figure, wrapped

LOG_FROM = 100.0  # where the largest loss is this many times the smallest, a linear axis shows a flat line


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
    else:
        charts.append(dataclasses.replace(time_over_steps(results), is_wide=True))  # it has no neighbour then
    if any(_worker_values(result, "train_accuracy", "test_accuracy") for result in results):
        charts.append(accuracy_per_worker(results))
    if any(result["workers"] > 1 for result in results):
        charts.append(bytes_per_worker(results))
    return charts


def iteration_time(results: Sequence[Result]) -> Chart:
    figure = new_figure()
    labels = [wrapped(result) for result in results]
    row_height = max(40, 8 + 17 * max(label.count("<br>") + 1 for label in labels))
    ends = []
    for index, (result, colour) in enumerate(zip(results, colours(results), strict=True)):
        mean = result["iteration_s"]["mean"] * 1e3
        low, high = (value * 1e3 for value in result.get("iteration_mean_s_interval95") or (math.nan, math.nan))
        has_interval = not math.isnan(low)
        # The middle of repeats can lie outside the interval of their mean; a negative arm would be drawn wrongly.
        arms: dict[str, Any] = {"array": [max(high - mean, 0)], "arrayminus": [max(mean - max(low, 0), 0)]}
        ends.append(max(mean, high) if has_interval else mean)
        note = f"95 % interval {max(low, 0):.3g} to {high:.3g} ms<br>" if has_interval else ""
        percentiles = f"p50 {duration(result['iteration_s']['p50'])}, p95 {duration(result['iteration_s']['p95'])}"
        figure.add_bar(
            x=[mean],
            y=[index],
            orientation="h",
            width=25 / row_height,
            marker_color=colour,
            error_x={"type": "data", "symmetric": False, "thickness": 1.6, "width": 5, **arms}
            if has_interval
            else None,
            hovertemplate=f"<b>{label_of(result)}</b><br>mean {mean:.3g} ms<br>{note}{percentiles}<extra></extra>",
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
    figure.update_layout(height=84 + row_height * len(results), hovermode="closest", bargap=0.3, margin_r=70)
    figure.update_xaxes(title_text="ms per iteration (less is better)", range=[0, max(ends) * 1.04])
    figure.update_yaxes(tickvals=list(range(len(results))), ticktext=labels)
    figure.update_yaxes(range=[len(results) - 0.45, -0.55], showgrid=False, ticks="")
    has_intervals = any(result.get("iteration_mean_s_interval95") for result in results)
    whiskers = "Whiskers are 95 % intervals over repeats." if has_intervals else "One repeat: no interval."
    return Chart("iteration-time", "Time per iteration", f"Mean over timed steps and workers. {whiskers}", figure, True)


def loss_over_steps(results: Sequence[Result]) -> Chart:
    figure = lines(results, "step", "loss", "%{y:.4g}", has_stripes=True)
    figure.update_xaxes(title_text="step")
    caption = "Training loss over all workers; strategies that agree share one striped line."
    return Chart("loss-steps", "Loss over steps", caption, _loss_axis(figure, results))


def loss_over_seconds(results: Sequence[Result]) -> Chart:
    figure = lines(results, "train_s", "loss", "%{y:.4g} at %{x:.3g} s")
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(title_text="seconds of training")
    caption = "The same against the clock: further left is sooner."
    return Chart("loss-seconds", "Loss over seconds", caption, _loss_axis(figure, results))


def accuracy_over_steps(results: Sequence[Result]) -> Chart:
    figure = lines(results, "step", "accuracy", "%{y:.2%}", has_stripes=True)
    for index, (result, colour) in enumerate(zip(results, colours(results), strict=True)):
        if result["evaluations"]:
            figure.add_scatter(
                x=[evaluation["step"] for evaluation in result["evaluations"]],
                y=[evaluation["accuracy"] for evaluation in result["evaluations"]],
                mode="markers",
                marker={"color": colour, "size": 8, "line": {"width": 1}},
                name=f"{label_of(result)}, test",
                hovertemplate="%{y:.2%}",
                meta=index,
            )
    figure.update_xaxes(title_text="step")
    figure.update_yaxes(title_text="accuracy", tickformat=".0%")
    has_tests = any(result["evaluations"] for result in results)
    caption = "Lines: training accuracy of each step." + (" Markers: evaluations on the test set." if has_tests else "")
    return Chart("accuracy-steps", "Accuracy over steps", caption, figure)


def time_over_steps(results: Sequence[Result]) -> Chart:
    figure = lines(results, "step", "iteration_s", "%{y:.3g} ms", scale=1e3)
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
    dropped = f"; the first {'is' if warmup == 1 else f'{warmup} are'} warm-up, not counted" if warmup else ""
    caption = f"The slowest worker of each iteration{dropped}."
    return Chart("time-steps", "Time per iteration over iterations", caption, figure)


def accuracy_per_worker(results: Sequence[Result]) -> Chart:
    figure = bars_per_worker(results, {"train": "train_accuracy", "test": "test_accuracy"}, accuracy, scale=1.0)
    figure.update_yaxes(title_text="accuracy", tickformat=".0%", range=[0, 1.02])
    caption = "Two bars per worker, ranks from left to right: train (solid) and test (hatched), at the end."
    return Chart("accuracy-workers", "Accuracy per strategy and rank", caption, figure, True)


def bytes_per_worker(results: Sequence[Result]) -> Chart:
    keys = {"sent": "sent_bytes", "received": "received_bytes"}
    figure = bars_per_worker(results, keys, lambda value: f"{megabytes(value)} MB", scale=1e-6)
    figure.update_yaxes(title_text="MB over the run", rangemode="tozero")
    caption = "Two bars per worker, ranks from left to right: sent (solid) and received (hatched), over the whole run."
    return Chart("bytes-workers", "Bytes sent and received per worker", caption, figure, True)


def _loss_axis(figure: go.Figure, results: Sequence[Result]) -> go.Figure:
    values = [value for result in results for value in result["curve"]["loss"] if value is not None]
    is_log = bool(values) and min(values) > 0 and max(values) / min(values) > LOG_FROM
    figure.update_yaxes(title_text="loss, log scale" if is_log else "loss", type="log" if is_log else "linear")
    if is_log:
        figure.update_yaxes(dtick=1, exponentformat="power")
    return figure


def _worker_values(result: Result, *keys: str) -> list[float]:
    return [row[key] for row in result["per_worker"] for key in keys if row[key] is not None]
