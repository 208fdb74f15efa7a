"""Charts of a scaling study: time, speed-up, efficiency and communication against the number of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paceline.present.chart import Chart, Choice, PlotlyFigure, Values, new_figure, plotly_text
from paceline.present.charts.registry import chart
from paceline.present.charts.shared_figures import scaled, whiskers
from paceline.present.charts.step_split import split_of
from paceline.present.numbers import DASH, duration, ms, significant, times
from paceline.present.rows import with_labels
from paceline.present.styles import REFERENCES, Style, styles_of
from paceline.results import Row, Scaling
from paceline.study.entries import ONE_WORKER
from paceline.study.scale_analysis import STRONG, WEAK, modes_of, reference_of, rows_by_strategy

Rows = Sequence[Row]

IDEAL = "one worker, perfect scaling"
SHARES = {"communication": "communication_s", "waiting": "waiting_s", "hidden communication": "overlap_s"}


@dataclass(frozen=True)
class ScaleQuantity:
    """A quantity to draw over the number of workers, with its 95 % interval and its value under perfect scaling."""

    value: Callable[[Row], float | None]
    text: Callable[[float], str]
    bounds: Callable[[Row], Sequence[float] | None] = lambda _: None
    ideal: Callable[[str, int, float], float] | None = None  # arguments: mode, workers, value of one worker


def ideal_name(mode: str) -> str:
    """Return the formula of the time of a step under perfect scaling: "t_1/N" (strong scaling) or "t_1" (weak)."""
    return "t_1" if mode == WEAK else "t_1/N"


def mode_of(row: Row) -> str:
    return str((row.point or {}).get("mode"))


def scaling_of(row: Row) -> Scaling:
    return row.scaling or Scaling()


def labels_of(results: Rows) -> list[str]:
    """Return the label of each strategy, in the order of the rows. The one-worker baseline is left out."""
    return [label for label in dict.fromkeys(r.label for r in results) if label != ONE_WORKER]


def line_styles(results: Rows) -> list[Style]:
    """Return the style of each strategy, in the order of `labels_of`.

    The last style is for the line of perfect scaling, which is computed from the one-worker baseline.
    """
    firsts = [next(r for r in results if r.label == label) for label in labels_of(results)]
    return [*styles_of(firsts), Style(REFERENCES[ONE_WORKER], "dash", "square")]


@chart("scale", order=10)
def time_over_workers(results: Rows) -> Iterator[Chart]:
    quantity = ScaleQuantity(
        lambda r: r.iteration_s.mean * 1e3,
        lambda value: duration(value / 1e3),
        lambda r: [bound * 1e3 for bound in r.iteration_mean_s_interval95 or ()] or None,
        lambda mode, workers, alone: alone / workers if mode == STRONG else alone,
    )
    heads = ["Step, ms", "95 % interval, ms"]
    caption = (
        f"Mean over timed steps and workers; less is better. {_interval_note(results)} Dashed: perfect scaling, "
        f"{_ideals(results)}."
    )
    yield _chart("time-workers", "Time per step over workers", caption, results, quantity, "ms", heads, is_wide=True)


@chart("scale", order=30)
def speedup(results: Rows) -> Iterator[Chart]:
    quantity = ScaleQuantity(
        lambda r: scaling_of(r).speedup,
        lambda value: f"{times(value)} times",
        lambda r: scaling_of(r).speedup_interval95,
        lambda mode, workers, alone: float(workers),  # noqa: ARG005
    )
    caption = "Samples per second over those of one worker; more is better. Dashed: perfect scaling."
    heads = ["Speed-up", "95 % interval"]
    yield from _only_with_values(
        _chart("speedup-workers", "Speed-up", caption, results, quantity, "times one worker", heads)
    )


@chart("scale", order=40)
def efficiency(results: Rows) -> Iterator[Chart]:
    quantity = ScaleQuantity(
        lambda r: scaled(scaling_of(r).efficiency, 100),
        lambda value: f"{value:.0f} %",
        lambda r: [100 * bound for bound in scaling_of(r).efficiency_interval95 or ()] or None,
        lambda mode, workers, alone: 100.0,  # noqa: ARG005
    )
    caption = "Speed-up over the number of workers. Dashed: perfect scaling."
    heads = ["Efficiency, %", "95 % interval, %"]
    yield from _only_with_values(_chart("efficiency-workers", "Efficiency", caption, results, quantity, "%", heads))


@chart("scale", order=50)
def communication_share(results: Rows) -> Iterator[Chart]:
    """Draw the share of a step that communication, waiting or hidden communication takes.

    The reader of the page chooses one of the three.
    """
    modes, options = modes_of(results), tuple(SHARES)
    views = []
    for mode in modes:
        for key in SHARES.values():
            quantity = ScaleQuantity(_share(key), lambda value: f"{value:.1f} %")
            views.append(_figure(results, mode, quantity, "% of a step"))
    if not any(trace["y"] for view in views for trace in view.traces):
        return
    rows = [
        [r.label, str(r.workers), mode_of(r), *(significant(_share(key)(r)) for key in SHARES.values())]
        for r in results
    ]
    heads = ["Strategy", "Workers", "Scaling", *(f"{name.capitalize()}, %" for name in SHARES)]
    choices = [*_mode_choice(modes), Choice("part", options)]
    caption = (
        "Share of a step, mean over workers. Communication: only the part that is not hidden under computing. Waiting: "
        "for a slower worker."
    )
    title = "Communication in a step"
    yield Chart("communication-workers", title, caption, views, Values(heads, rows), choices=choices)


@chart("scale", order=20)
def beyond_ideal(results: Rows) -> Iterator[Chart]:
    """Draw how much longer a step takes than under perfect scaling.

    Dotted lines show the measured time of communication and waiting.
    """
    modes = modes_of(results)
    estimated = ScaleQuantity(
        lambda r: scaled(scaling_of(r).beyond_ideal_s, 1e3), lambda value: f"{significant(value)} ms beyond"
    )
    measured = ScaleQuantity(_measured_ms, lambda value: f"{significant(value)} ms communicating and waiting")
    views = []
    for mode in modes:
        figure = _figure(results, mode, estimated, "ms per step")
        _add_lines(figure, results, mode, measured, dash="dot")
        views.append(figure)
    points = [r for r in results if r.workers > 1 and scaling_of(r).beyond_ideal_s is not None]
    if not points:
        return
    keys = ("beyond_ideal_s", "communication_s", "waiting_s", "overlap_s")
    rows = [[r.label, str(r.workers), mode_of(r), *(ms(getattr(scaling_of(r), key)) for key in keys)] for r in points]
    heads = ["Strategy", "Workers", "Scaling", "Beyond, ms", "Communication, ms", "Waiting, ms", "Hidden, ms"]
    caption = (
        f"Solid: time of a step beyond {_ideals(results)}, an estimate of communication that needs no spans. Dotted: "
        "measured communication and waiting. The difference is computing that did not get shorter with the batch."
    )
    title = "Beyond perfect scaling, estimated and measured"
    values = Values(heads, rows)
    yield Chart("beyond-workers", title, caption, views, values, is_wide=True, choices=_mode_choice(modes))


@chart("scale", order=60)
def where_time_goes(results: Rows) -> Iterator[Chart]:
    """Draw the time that each part of a step takes, for every strategy and number of workers."""
    labels, modes = labels_of(results), modes_of(results)
    rows = []
    for result in results:
        index = labels.index(result.label) if result.label in labels else len(labels)
        where = "" if result.label == ONE_WORKER else f" on {result.workers}"
        mode = f", {mode_of(result)}" if len(modes) > 1 else ""
        label = f"{result.label}{where}{mode}"
        rows.append((index, with_labels(result, label=label, short_label=label, full_label=label)))
    yield from split_of(rows)


def _chart(
    id: str,
    title: str,
    caption: str,
    results: Rows,
    quantity: ScaleQuantity,
    unit: str,
    heads: Sequence[str],
    *,
    is_wide: bool = False,
) -> Chart:
    modes = modes_of(results)
    views = [_figure(results, mode, quantity, unit) for mode in modes]
    rows = [[r.label, str(r.workers), mode_of(r), significant(quantity.value(r))] for r in results]
    intervals = [_interval(quantity.bounds(r)) for r in results]
    if any(text != DASH for text in intervals):
        rows = [[*row, text] for row, text in zip(rows, intervals, strict=True)]
    else:
        heads = heads[:1]
    table = Values(["Strategy", "Workers", "Scaling", *heads], rows)
    return Chart(id, title, caption, views, table, is_wide=is_wide, choices=_mode_choice(modes))


def _only_with_values(made: Chart) -> Iterator[Chart]:
    """Yield the chart, unless all its values are unknown because the one-worker baseline was not measured."""
    if any(row[3] != DASH for row in made.table.rows):
        yield made


def _figure(results: Rows, mode: str, quantity: ScaleQuantity, unit: str) -> PlotlyFigure:
    figure = new_figure(hovermode="closest")
    reference, index = reference_of(results, mode), len(labels_of(results))
    numbers = sorted({r.workers for r in results if mode_of(r) == mode})
    alone = quantity.value(reference) if reference is not None else None
    if quantity.ideal is not None and alone is not None:
        figure.add(
            "scatter",
            x=numbers,
            y=[quantity.ideal(mode, number, alone) for number in numbers],
            mode="lines",
            line={"color": REFERENCES[ONE_WORKER], "width": 1.5, "dash": "dash"},
            name=IDEAL,
            meta=index,
            legendgroup=str(index),
            hoverinfo="skip",
        )
    _add_lines(figure, results, mode, quantity)
    figure.x_axis("workers", tickvals=numbers, range=[numbers[0] - 0.15, numbers[-1] + 0.15])
    figure.y_axis(unit, rangemode="tozero")
    return figure


def _add_lines(figure: PlotlyFigure, results: Rows, mode: str, quantity: ScaleQuantity, dash: str = "") -> None:
    """Add a line for each strategy whose value is known for more than one worker.

    If the one-worker baseline was measured, it is the first point of every line.
    """
    reference, lines = reference_of(results, mode), rows_by_strategy(results, mode)
    for index, (label, style) in enumerate(zip(labels_of(results), line_styles(results), strict=False)):
        rows = ([reference] if reference is not None else []) + lines.get(label, [])
        pairs = [(row, value) for row in rows if (value := quantity.value(row)) is not None]
        if len(pairs) <= (reference is not None):
            continue
        figure.add(
            "scatter",
            x=[row.workers for row, _ in pairs],
            y=[value for _, value in pairs],
            error_y=whiskers([(value, quantity.bounds(row)) for row, value in pairs]),
            mode="lines+markers",
            line={"color": style.colour, "width": 2, "dash": dash or style.dash},
            marker={"color": style.colour, "symbol": f"{style.symbol}-open" if dash else style.symbol, "size": 8},
            customdata=[[quantity.text(value)] for _, value in pairs],
            hovertemplate=f"<b>{plotly_text(label)}</b> on %{{x}}<br>%{{customdata[0]}}<extra></extra>",
            name=plotly_text(label),
            meta=index,
            legendgroup=str(index),
            showlegend=not dash,
        )


def _mode_choice(modes: Sequence[str]) -> list[Choice]:
    return [Choice("scaling", tuple(f"{mode} scaling" for mode in modes))] if len(modes) > 1 else []


def _share(key: str) -> Callable[[Row], float | None]:
    def share(row: Row) -> float | None:
        seconds: float | None = getattr(scaling_of(row), key)
        step = row.split.mean.step_s if row.split is not None else None
        return None if seconds is None or not step else 100 * seconds / step

    return share


def _measured_ms(row: Row) -> float | None:
    communication, waiting = scaling_of(row).communication_s, scaling_of(row).waiting_s
    return None if communication is None or waiting is None else (communication + waiting) * 1e3


def _interval_note(results: Rows) -> str:
    has_intervals = any(r.iteration_mean_s_interval95 for r in results)
    return "Whiskers are 95 % confidence intervals over repeats." if has_intervals else "One repeat: no interval."


def _ideals(results: Rows) -> str:
    return " or ".join(f"{ideal_name(mode)} ({mode})" for mode in modes_of(results))


def _interval(bounds: Sequence[float] | None) -> str:
    return f"{significant(max(bounds[0], 0.0))} to {significant(bounds[1])}" if bounds else DASH
