"""Charts of a sweep: time, accuracy and memory over one varied setting, or heat maps over two.

A remedy (`--remedies`) is a change of the optimiser settings that makes a large batch learn better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paceline.present.chart import (
    LEGEND_ABOVE,
    Chart,
    Choice,
    PlotlyFigure,
    Values,
    label_of,
    new_figure,
    plotly_text,
    short_label_of,
)
from paceline.present.charts.registry import chart
from paceline.present.numbers import DASH, accuracy, significant, whole
from paceline.present.rows import ShownRow
from paceline.present.styles import DASHES, PALETTE, SYMBOLS
from paceline.results import Point
from paceline.study.sweep_axes import short_key, value_text

LOG_RATIO = 8  # an axis is logarithmic if the largest value is at least this many times the smallest
COLOUR_SCALE = ((0.0, "#F7E8A4"), (0.5, "#5AB4AC"), (1.0, "#01665E"))
NO_REMEDY = "as the recipe says"


@dataclass(frozen=True)
class SweepQuantity:
    """A quantity to draw: name, axis title, function from a row to its value, and formatter."""

    name: str
    axis: str
    of: Callable[[ShownRow], float | None]
    text: Callable[[float | None], str]


QUANTITIES = (
    SweepQuantity("time per step", "ms per step", lambda r: r.iteration_s.mean * 1e3, significant),
    SweepQuantity("samples per second", "samples per second", lambda r: r.samples_per_s, whole),
    SweepQuantity("epoch", "seconds per epoch", lambda r: r.epoch_s, significant),
)
ACCURACY = SweepQuantity("test accuracy", "test accuracy", lambda r: r.final.test_accuracy, accuracy)
LOSS = SweepQuantity("test loss", "test loss", lambda r: r.final.test_loss, significant)


def point_of(row: ShownRow) -> Point:
    return row.point or {}


@chart("sweep", order=10)
def over_keys(results: Sequence[ShownRow]) -> Iterator[Chart]:
    """Draw speed, test accuracy and test loss over the one or two varied recipe keys. With more keys, draw nothing."""
    keys = list(point_of(results[0]))
    if len(keys) == 1:
        yield _over_key(results, keys[0], _present(results, QUANTITIES), "sweep-time", "Time")
        yield _over_key(results, keys[0], _learning(results), "sweep-learning", "Learning")
    elif len(keys) == 2:
        yield _grid(results, keys, [*_present(results, QUANTITIES), *_learning(results)])


def _present(results: Sequence[ShownRow], quantities: Sequence[SweepQuantity]) -> list[SweepQuantity]:
    return [quantity for quantity in quantities if any(quantity.of(result) is not None for result in results)]


def _learning(results: Sequence[ShownRow]) -> list[SweepQuantity]:
    return _present(results, (ACCURACY, LOSS)) or [LOSS]


def _over_key(results: Sequence[ShownRow], key: str, quantities: Sequence[SweepQuantity], id: str, title: str) -> Chart:
    name = short_key(key, point_of(results[0]))
    views = [_lines(results, key, name, quantity) for quantity in quantities]
    remedies = ", a line for each remedy" if len(_remedies(results)) > 1 else ""
    rows = [[r.label, *(quantity.text(quantity.of(r)) for quantity in quantities)] for r in results]
    table = Values(["Point", *(quantity.name.capitalize() for quantity in quantities)], rows)
    choices = [Choice(f"{title.lower()} as", tuple(quantity.name for quantity in quantities))]
    caption = f"Each point is a run{remedies}. Means over workers, medians of repeats."
    return Chart(id, f"{title} over {name}", caption, views, table, choices=choices if len(views) > 1 else ())


def _lines(results: Sequence[ShownRow], key: str, name: str, quantity: SweepQuantity) -> PlotlyFigure:
    remedies = _remedies(results)
    figure = new_figure(showlegend=len(remedies) > 1, legend=LEGEND_ABOVE)
    texts = _texts(results, key)
    numbers = _numbers(results, key)
    is_log = bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_RATIO
    for number, remedy in enumerate(remedies):
        shown = [result for result in results if (result.remedy or "") == remedy]
        values = [point_of(result)[key] for result in shown]
        colour = PALETTE[number % len(PALETTE)]
        figure.add(
            "scatter",
            x=values if is_log else [texts.index(value_text(value)) for value in values],
            y=[quantity.of(result) for result in shown],
            mode="lines+markers",
            line={"color": colour, "width": 2, "dash": DASHES[number % len(DASHES)]},
            marker={"color": colour, "symbol": SYMBOLS[number % len(SYMBOLS)], "size": 8},
            name=plotly_text(remedy or NO_REMEDY),
            customdata=[[label_of(result), quantity.text(quantity.of(result))] for result in shown],
            hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
        )
    ticks: Sequence[float] = sorted(set(numbers)) if is_log else range(len(texts))
    labels = [value_text(tick) for tick in ticks] if is_log else texts
    figure.x_axis(
        plotly_text(name),
        type="log" if is_log else "linear",
        tickvals=list(ticks),
        ticktext=[plotly_text(t) for t in labels],
    )
    if quantity is ACCURACY:
        figure.y_axis(quantity.axis, tickformat=".0%")
    else:
        figure.y_axis(quantity.axis, rangemode="tozero")
    return figure


def _grid(results: Sequence[ShownRow], keys: Sequence[str], quantities: Sequence[SweepQuantity]) -> Chart:
    remedies = _remedies(results)
    views = [_squares(results, keys, quantity, remedy) for quantity in quantities for remedy in remedies]
    choices = [Choice("grid of", tuple(quantity.name for quantity in quantities))]
    if len(remedies) > 1:
        choices.append(Choice("remedy", tuple(remedy or NO_REMEDY for remedy in remedies), is_list=True))
    names = [short_key(key, point_of(results[0])) for key in keys]
    rows = [[r.label, *(quantity.text(quantity.of(r)) for quantity in quantities)] for r in results]
    table = Values(["Point", *(quantity.name.capitalize() for quantity in quantities)], rows)
    caption = "Each square is a run; runs that were refused or failed are empty. Darker squares have larger values."
    title = f"{names[0]} and {names[1]}"
    return Chart("sweep-grid", title, caption, views, table, is_wide=True, choices=choices)


def _squares(results: Sequence[ShownRow], keys: Sequence[str], quantity: SweepQuantity, remedy: str) -> PlotlyFigure:
    down, across = (_texts(results, key) for key in keys)
    found = {tuple(value_text(point_of(r)[key]) for key in keys): r for r in results if (r.remedy or "") == remedy}
    cells = [[found.get((y, x)) for x in across] for y in down]
    figure = new_figure(height=120 + 46 * len(down))
    figure.add(
        "heatmap",
        x=list(range(len(across))),
        y=list(range(len(down))),
        z=[[None if cell is None else quantity.of(cell) for cell in row] for row in cells],
        text=[[DASH if cell is None else quantity.text(quantity.of(cell)) for cell in row] for row in cells],
        texttemplate="%{text}",
        hovertemplate="%{text}<extra></extra>",
        colorscale=[list(step) for step in COLOUR_SCALE],
        showscale=False,
        xgap=2,
        ygap=2,
    )
    names = [short_key(key, point_of(results[0])) for key in keys]
    figure.x_axis(plotly_text(names[1]), tickvals=list(range(len(across))), ticktext=[plotly_text(t) for t in across])
    figure.y_axis(plotly_text(names[0]), tickvals=list(range(len(down))), ticktext=[plotly_text(t) for t in down])
    figure.x_axis(showgrid=False)
    figure.y_axis(showgrid=False, autorange="reversed")
    return figure


@chart("sweep", order=20)
def memory(results: Sequence[ShownRow]) -> Iterator[Chart]:
    """Draw the measured and the predicted peak memory of a worker, for each row of the sweep that has both."""
    shown = [
        (row, row.memory.predicted["worker_bytes"], row.memory.peak_rss_bytes)
        for row in results
        if row.memory is not None and row.memory.predicted and row.memory.peak_rss_bytes is not None
    ]
    if not shown:
        return
    figure = new_figure(showlegend=True, legend=LEGEND_ABOVE, barmode="group")
    series = {"predicted": [predicted for _, predicted, _ in shown], "measured": [peak for _, _, peak in shown]}
    for (name, values), colour in zip(series.items(), PALETTE[:2], strict=True):
        figure.add(
            "bar",
            x=list(range(len(shown))),
            y=[value / 1e6 for value in values],
            marker={"color": colour},
            name=name,
            customdata=[label_of(row) for row, _, _ in shown],
            hovertemplate=f"<b>%{{customdata}}</b><br>{name} %{{y:.4g}} MB<extra></extra>",
        )
    figure.x_axis(tickvals=list(range(len(shown))), ticktext=[short_label_of(row) for row, _, _ in shown])
    figure.x_axis(showgrid=False, ticks="", autotickangles=[0, -40, -90], ticklabeloverflow="allow")
    figure.y_axis("peak memory of a worker, MB", rangemode="tozero")
    rows = [
        [row.label, whole(predicted / 1e6), whole(peak / 1e6), f"{(predicted / peak - 1) * 100:+.0f} %"]
        for row, predicted, peak in shown
    ]
    table = Values(["Point", "Predicted, MB", "Measured, MB", "Error of the prediction"], rows)
    caption = "Predicted from a few samples before the run starts; measured by the kernel as peak resident memory."
    yield Chart("sweep-memory", "Memory of a worker", caption, [figure], table)


def _remedies(results: Sequence[ShownRow]) -> list[str]:
    return list(dict.fromkeys(result.remedy or "" for result in results))


def _texts(results: Sequence[ShownRow], key: str) -> list[str]:
    """Return the different values of a recipe key as text.

    Numbers are sorted by size; other values have the order of the rows.
    """
    values = [point_of(result)[key] for result in results]
    return list(dict.fromkeys(value_text(value) for value in sorted(_numbers(results, key)) or values))


def _numbers(results: Sequence[ShownRow], key: str) -> list[float]:
    """Return the values of a recipe key if all of them are numbers, else an empty list."""
    values = [point_of(result)[key] for result in results]
    found = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return found if len(found) == len(values) else []
