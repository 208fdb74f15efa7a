"""Charts of speed: time per step, time over the run, training time, and profiling overhead."""

from __future__ import annotations

import math
from collections.abc import Iterator

from paceline.present.chart import Chart, Values, label_of, new_figure
from paceline.present.charts.registry import Rows, chart
from paceline.present.charts.shared_figures import (
    bars_per_worker,
    label_rows,
    line_values,
    lines,
    row_height_of,
    whiskers,
    worker_values,
    write_after_bar,
)
from paceline.present.numbers import duration, ms, significant, whole
from paceline.present.rows import ShownRow
from paceline.present.styles import styles_of
from paceline.results import Overhead
from paceline.results.value import Json

ROOM = 1.04  # end of an axis, as a multiple of its largest value


@chart("speed", order=10)
def iteration_time(content: Rows) -> Iterator[Chart]:
    results = content.rows
    figure = new_figure()
    row_height = row_height_of(results)
    ends = []
    for index, (result, style) in enumerate(zip(results, styles_of(results), strict=True)):
        mean, note = result.iteration_s.mean * 1e3, ""
        ends.append(mean)
        bar: Json = {"x": [mean], "y": [index], "orientation": "h", "width": 25 / row_height}
        if result.iteration_mean_s_interval95:
            low, high = (value * 1e3 for value in result.iteration_mean_s_interval95)
            ends[-1] = max(mean, high)
            note = f"95 % interval {max(low, 0):.3g} to {high:.3g} ms<br>"
            bar["error_x"] = whiskers([(mean, (low, high))])
        percentiles = f"p50 {duration(result.iteration_s.p50)}, p95 {duration(result.iteration_s.p95)}"
        hover = f"<b>{label_of(result)}</b><br>mean {mean:.3g} ms<br>{note}{percentiles}<extra></extra>"
        figure.add("bar", **bar, marker={"color": style.colour}, hovertemplate=hover, meta=index)
        write_after_bar(figure, ends[-1], index, duration(mean / 1e3), index)
    label_rows(figure, results, row_height)
    figure.x_axis("ms per step (less is better)", range=[0, max(ends) * ROOM])
    has_intervals = any(result.iteration_mean_s_interval95 for result in results)
    intervals = "Whiskers are 95 % confidence intervals over repeats." if has_intervals else "One repeat: no interval."
    heads = ["Strategy", "Mean, ms", "p50, ms", "p95, ms"]
    rows = [[r.label, *(ms(getattr(r.iteration_s, key)) for key in ("mean", "p50", "p95"))] for r in results]
    if has_intervals:
        heads.append("95 % interval of the mean, ms")
        rows = [[*row, _interval_text(r)] for row, r in zip(rows, results, strict=True)]
    table = Values(heads, rows)
    caption = f"Mean over timed steps and workers. {intervals}"
    yield Chart("iteration-time", "Time per step", caption, [figure], table, is_wide=True)


@chart("speed", order=20)
def time_over_steps(content: Rows) -> Iterator[Chart]:
    results = content.rows
    figure = lines(results, "step", "iteration_s", "%{y:.3g} ms", y_scale=1e3)
    timed = [
        value * 1e3
        for result in results
        for step, value in zip(result.curve.step, result.curve.iteration_s, strict=True)
        if step > result.warmup_steps and value is not None
    ]
    if timed:  # the axis ends at the slowest timed step, because slow warm-up steps would flatten the curve
        figure.y_axis(range=[0, max(timed) * ROOM])
    figure.x_axis("step")
    figure.y_axis("ms per step")
    warmup = max(result.warmup_steps for result in results)
    dropped = f"; the first {'is' if warmup == 1 else f'{warmup} are'} warm-up and not counted" if warmup else ""
    stride = max(-(-result.steps // max(len(result.curve.step), 1)) for result in results)
    caption = f"The slowest worker of each step{f', means over {stride} steps' if stride > 1 else ''}{dropped}."
    table = line_values(results, {"step": ("Step", whole), "iteration_s": ("ms", ms)})
    yield Chart("time-steps", "Time per step over the run", caption, [figure], table)


@chart("speed", order=30)
def train_time(content: Rows) -> Iterator[Chart]:
    results = content.rows
    fields = {"training time": "train_s"}
    figure = bars_per_worker(results, fields, _seconds)
    figure.y_axis("seconds of training", rangemode="tozero")
    caption = "One bar per worker, ranks from left to right. Start-up and evaluation are not counted."
    table = worker_values(results, fields, _seconds)
    yield Chart("train-time", "Training time per strategy and worker", caption, [figure], table)


@chart("resources", order=20)
def measuring_cost(content: Rows) -> Iterator[Chart | str]:
    """Draw the profiling overhead of strategies that ran steps with and without profiling."""
    results = content.rows
    tried = [(index, r, r.measuring) for index, r in enumerate(results) if r.measuring]
    if not tried:
        if any(row.split for row in results):
            yield "Profiling overhead is unknown: only a comparison runs steps with and without profiling."
        return
    styles, shown = styles_of(results), [result for _, result, _ in tried]
    figure = new_figure()
    for row, (index, result, measuring) in enumerate(tried):
        cost = measuring.cost_percent
        low, high = measuring.interval95_percent or (cost, cost)
        figure.add(
            "scatter",
            x=[cost],
            y=[row],
            mode="markers",
            marker={"color": styles[index].colour, "symbol": styles[index].symbol, "size": 10},
            error_x=whiskers([(cost, (low, high))], floor=-math.inf),
            hovertemplate=f"<b>{label_of(result)}</b><br>{cost:.2g} % of a step, {low:.2g} to {high:.2g} %"
            "<extra></extra>",
            meta=index,
        )
    label_rows(figure, shown, row_height_of(shown))
    figure.x_axis("profiling overhead, % of a step", zeroline=True)
    rows = [[r.label, *_measuring_cells(measuring)] for _, r, measuring in tried]
    table = Values(["Strategy", "Overhead, %", "95 % interval, %", "Repeats"], rows)
    caption = "Steps with profiling against steps without, interleaved. Whiskers are 95 % confidence intervals."
    yield Chart("measuring-cost", "Profiling overhead", caption, [figure], table, is_wide=True)


def _interval_text(result: ShownRow) -> str:
    bounds = result.iteration_mean_s_interval95
    return f"{ms(max(bounds[0], 0.0))} to {ms(bounds[1])}" if bounds else significant(None)


def _measuring_cells(measuring: Overhead) -> list[str]:
    bounds = measuring.interval95_percent
    interval = f"{bounds[0]:.2f} to {bounds[1]:.2f}" if bounds else significant(None)
    return [f"{measuring.cost_percent:.2f}", interval, str(measuring.repeats)]


def _seconds(value: float | None) -> str:
    return significant(value) if value is None else duration(value)
