"""Charts of learning: loss and accuracy over steps, seconds and bytes, and final accuracy against time and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from paceline.present.chart import Chart, Choice, PlotlyFigure, Values, label_of, new_figure, short_label_of
from paceline.present.charts.registry import Rows, chart
from paceline.present.charts.shared_figures import (
    bars_per_worker,
    label_rows,
    line_values,
    lines,
    row_height_of,
    thinned,
    worker_values,
    write_after_bar,
)
from paceline.present.numbers import DASH, accuracy, amount, byte_unit, counted, duration, significant, whole
from paceline.present.rows import ShownRow
from paceline.present.styles import styles_of
from paceline.results import Evaluation, Target, changed

LOG_RATIO = 100.0  # the axis is logarithmic if the largest loss is more than this many times the smallest
MARK_SIZES = (9, 30)  # sizes in pixels of the smallest and the largest marker in the trade-off chart
OVER = {"step": "steps", "train_s": "seconds", "sent_bytes": "bytes"}


@chart("learning", order=10)
def loss(content: Rows) -> Iterator[Chart]:
    results = content.rows
    views = [_loss_axis(_over(results, x, "loss", ".4g"), results) for x in _abscissas(results)]
    table = line_values(results, {**_abscissa_columns(results), "loss": ("Loss", significant)})
    caption = "Training loss over all workers. Strategies with equal curves share one striped line."
    yield Chart("loss", "Loss", caption, views, table, choices=_choices(results))


@chart("learning", order=20)
def accuracy_over(content: Rows) -> Iterator[Chart | str]:
    results = content.rows
    if not has_accuracy(results):
        yield "No accuracy: this task does not define one."
        return
    views = []
    for x in _abscissas(results):
        figure = _over(results, x, "accuracy", ".2%")
        _add_evaluations(figure, results, x)
        figure.y_axis("accuracy", tickformat=".0%")
        views.append(figure)
    table = line_values(results, {**_abscissa_columns(results), "accuracy": ("Training accuracy", accuracy)})
    has_tests = any(result.evaluations for result in results)
    caption = "Lines: training accuracy of each step." + (" Markers: evaluations on the test set." if has_tests else "")
    yield Chart("accuracy", "Accuracy", caption, views, table, choices=_choices(results))


@chart("learning", order=30)
def accuracy_per_worker(content: Rows) -> Iterator[Chart]:
    results = content.rows
    if not has_accuracy(results) or not has_worker_accuracy(results):
        return
    fields = {"train": "train_accuracy", "test": "test_accuracy"}
    figure = bars_per_worker(results, fields, accuracy)
    figure.y_axis("accuracy", tickformat=".0%", range=[0, 1.02])
    caption = "Two bars per worker, ranks from left to right: train (solid) and test (hatched) accuracy at the end."
    table = worker_values(results, fields, accuracy)
    yield Chart("accuracy-workers", "Accuracy per strategy and worker", caption, [figure], table)


@chart("learning", order=40)
def to_target(content: Rows) -> Iterator[Chart]:
    """Draw the seconds of training until the target accuracy. A strategy that did not reach it has no bar."""
    results = content.rows
    targets = [(index, r, r.target) for index, r in enumerate(results) if r.target]
    if not targets or not has_accuracy(results):
        return
    shown, styles = [result for _, result, _ in targets], styles_of(results)
    figure = new_figure()
    for row, (index, result, given) in enumerate(targets):
        seconds = _seconds_to(given)
        text = duration(seconds) if given.reached else f"never, best {accuracy(given.best)}"
        hover = f"<b>{label_of(result)}</b><br>{text}"
        if given.reached:
            hover += f"<br>{counted(given.step or 0, 'step')}<br>{amount(given.sent_bytes)} sent"
        marker = {"color": styles[index].colour}
        bar = {"x": [seconds], "y": [row], "orientation": "h", "width": 0.62, "marker": marker, "meta": index}
        figure.add("bar", **bar, hovertemplate=f"{hover}<extra></extra>")
        write_after_bar(figure, seconds, row, text, index)
    label_rows(figure, shown, row_height_of(shown))
    longest = max((_seconds_to(given) for _, _, given in targets if given.reached), default=1.0)
    figure.x_axis("seconds of training (less is better)", range=[0, longest * 1.04])
    rows = [[r.label, *_target_cells(given)] for _, r, given in targets]
    table = Values(["Strategy", "Reached", "Steps", "Epoch", "Seconds", "Sent by all", "Best"], rows)
    title = f"Time to {accuracy(targets[0][2].accuracy)} accuracy"
    caption = "Seconds of training until the target; hovering shows steps and bytes."
    yield Chart("target", title, caption, [figure], table)


def _seconds_to(given: Target) -> float:
    return (given.train_s or 0.0) if given.reached else 0.0


def _target_cells(given: Target) -> list[str]:
    if not given.reached:
        return ["never", DASH, DASH, DASH, DASH, accuracy(given.best)]
    figures = [whole(given.step), whole(given.epoch), significant(given.train_s)]
    return ["yes", *figures, amount(given.sent_bytes), DASH]


@chart("learning", order=50)
def trade_off(content: Rows) -> Iterator[Chart]:
    """Draw final accuracy against seconds of training in one view, and against bytes sent in the other.

    In each view, the size of a marker shows the quantity that is on the axis of the other view.
    """
    results = content.rows
    key = "test_accuracy" if any(r.final.test_accuracy is not None for r in results) else "train_accuracy"
    shown = [(index, r) for index, r in enumerate(results) if getattr(r.final, key) is not None]
    if len(shown) < 2 or not has_accuracy(results):
        return
    what = f"{key.removesuffix('_accuracy')} accuracy at the end"
    views = [_trade_off_figure(results, shown, key, name, what) for name in ("seconds", "bytes")]
    rows = [
        [r.label, accuracy(getattr(r.final, key)), significant(r.train_s), amount(sent_by_all(r))] for _, r in shown
    ]
    table = Values(["Strategy", what.capitalize(), "Training, s", "Sent by all workers"], rows)
    caption = (
        "Up and to the left is better. Larger marks: more bytes sent (view by seconds) or more time (view by bytes)."
    )
    choice = Choice("trade-off over", ("seconds", "bytes"))
    yield Chart("trade-off", "Accuracy against time and bytes", caption, views, table, choices=[choice], is_wide=True)


@chart("learning", order=60)
def missing_bytes(content: Rows) -> Iterator[str]:
    if not any(any(row.curve.sent_bytes or ()) for row in content.rows):
        yield "Bytes over the run were not recorded, so no chart has bytes on its horizontal axis."


def has_accuracy(results: Sequence[ShownRow]) -> bool:
    return any(value is not None for result in results for value in result.curve.accuracy)


def has_worker_accuracy(results: Sequence[ShownRow]) -> bool:
    keys = ("train_accuracy", "test_accuracy")
    return any(getattr(row, key) is not None for result in results for row in result.per_worker for key in keys)


def sent_by_all(result: ShownRow) -> int:
    return sum(row.sent_bytes for row in result.per_worker)


def _abscissas(results: Sequence[ShownRow]) -> list[str]:
    has_bytes = any(any(result.curve.sent_bytes or ()) for result in results)
    return ["step", "train_s", *(["sent_bytes"] if has_bytes else [])]


def _choices(results: Sequence[ShownRow]) -> list[Choice]:
    return [Choice("over", tuple(OVER[x] for x in _abscissas(results)))]


def _abscissa_columns(results: Sequence[ShownRow]) -> dict[str, tuple[str, Any]]:
    columns = {"step": ("Step", whole), "train_s": ("Seconds", significant), "sent_bytes": ("Sent", amount)}
    return {key: columns[key] for key in _abscissas(results)}


def _over(results: Sequence[ShownRow], x: str, y: str, form: str) -> PlotlyFigure:
    if x == "step":
        figure = lines(results, x, y, f"%{{y:{form}}}", has_stripes=True)
        figure.x_axis("step")
    elif x == "train_s":
        figure = lines(results, x, y, f"%{{y:{form}}} at %{{x:.3g}} s")
        figure.x_axis("seconds of training", rangemode="tozero")
    else:
        unit, size = _unit_of(results)
        # A strategy that sends nothing is left out: its line would be vertical at zero.
        senders = [
            r if any(r.curve.sent_bytes or ()) else changed(r, curve=changed(r.curve, sent_bytes=[])) for r in results
        ]
        figure = lines(senders, x, y, f"%{{y:{form}}} at %{{x:.3g}} {unit}", x_scale=1 / size)
        figure.x_axis(f"{unit} sent by all workers together", rangemode="tozero")
    return figure


def _unit_of(results: Sequence[ShownRow]) -> tuple[str, float]:
    return byte_unit(max(value or 0 for result in results for value in result.curve.sent_bytes or [0]))


def _add_evaluations(figure: PlotlyFigure, results: Sequence[ShownRow], x: str) -> None:
    """Add markers of the test accuracy of evaluations, over the column `x`: steps, seconds or bytes sent.

    Evaluations whose value of `x` is unknown are left out. Each strategy gets at most 100 markers.
    """
    _, size = _unit_of(results)
    for index, (result, style) in enumerate(zip(results, styles_of(results), strict=True)):
        places = [(_place(result, e, x, size), e.accuracy) for e in result.evaluations]
        points = [(place, value) for place, value in places if place is not None]
        if points:
            positions = thinned(points, 100)
            figure.add(
                "scatter",
                x=[points[i][0] for i in positions],
                y=[points[i][1] for i in positions],
                mode="markers",
                marker={"color": style.colour, "symbol": style.symbol, "size": 9, "line": {"width": 1}},
                name=f"{label_of(result)}, test",
                hovertemplate="%{y:.2%}",
                meta=index,
                legendgroup=str(index),
                showlegend=False,
            )


def _place(result: ShownRow, evaluation: Evaluation, x: str, size: float) -> float | None:
    if x != "sent_bytes":
        place: float | None = getattr(evaluation, x)
        return None if place is None else float(place)
    column = result.curve.sent_bytes or []
    if not any(column):
        return None
    later = (sent for step, sent in zip(result.curve.step, column, strict=True) if step >= evaluation.step)
    sent = next(later, column[-1])
    return None if sent is None else float(sent / size)


def _trade_off_figure(
    results: Sequence[ShownRow], shown: Sequence[tuple[int, ShownRow]], key: str, over: str, what: str
) -> PlotlyFigure:
    figure = new_figure(height=400)
    styles = styles_of(results)
    unit, size = byte_unit(max(sent_by_all(r) for _, r in shown))
    seconds, sent = [r.train_s for _, r in shown], [sent_by_all(r) / size for _, r in shown]
    across, areas = (seconds, sent) if over == "seconds" else (sent, seconds)
    largest = max(areas) or 1
    order = sorted(range(len(shown)), key=lambda position: across[position])
    for position, ((index, result), x, area) in enumerate(zip(shown, across, areas, strict=True)):
        hover = f"{accuracy(getattr(result.final, key))}<br>{duration(result.train_s)} of training<br>"
        figure.add(
            "scatter",
            x=[x],
            y=[getattr(result.final, key)],
            mode="markers+text",
            text=[short_label_of(result)],
            textposition=("top center", "bottom center")[
                order.index(position) % 2
            ],  # alternate, so that labels do not overlap
            cliponaxis=False,
            marker={
                "color": styles[index].colour,
                "symbol": styles[index].symbol,
                "size": MARK_SIZES[0] + (MARK_SIZES[1] - MARK_SIZES[0]) * (area / largest) ** 0.5,
                "opacity": 0.85,
            },
            hovertemplate=f"<b>{label_of(result)}</b><br>{hover}{amount(sent_by_all(result))} sent<extra></extra>",
            name=label_of(result),
            meta=index,
        )
    span = max(across) or 1
    title = "seconds of training" if over == "seconds" else f"{unit} sent by all workers together"
    figure.x_axis(title, range=[-0.06 * span, 1.1 * span])
    values = [getattr(r.final, key) for _, r in shown]
    margin = max((max(values) - min(values)) * 0.2, 0.01)
    figure.y_axis(
        what, tickformat=".1%" if margin < 0.05 else ".0%", range=[min(values) - margin, max(values) + margin]
    )
    return figure


def _loss_axis(figure: PlotlyFigure, results: Sequence[ShownRow]) -> PlotlyFigure:
    values = [value for result in results for value in result.curve.loss if value is not None]
    is_log = bool(values) and min(values) > 0 and max(values) / min(values) > LOG_RATIO
    figure.y_axis("loss, log scale" if is_log else "loss", type="log" if is_log else "linear")
    if is_log:
        figure.y_axis(dtick=1, tickformat="~g")
    return figure
