"""Charts of a quantization: accuracy by stage, weights, activations, error per layer, predictions and latency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.present.chart import LEGEND_ABOVE, Chart, Choice, PlotlyFigure, Values, new_figure, plotly_text
from paceline.present.charts.registry import chart
from paceline.present.charts.sweep import COLOUR_SCALE
from paceline.present.numbers import DASH, accuracy, join_words, ms, significant
from paceline.present.styles import PALETTE, REFERENCES
from paceline.results.quantize import ActivationPicture, Latency, Quantization, WeightPicture

ROW_HEIGHT = 34
METHOD_COLOURS = {"minmax": PALETTE[3], "percentile": PALETTE[1], "entropy": PALETTE[4], "mse": PALETTE[2]}


@chart("quantize", order=10)
def stages(study: Quantization) -> Iterator[Chart]:
    """Draw the test accuracy of each stage. If any stage has no accuracy, draw test losses instead."""
    rows = study.stages
    has_accuracy = all(row.test_accuracy is not None for row in rows)
    values = [100 * (row.test_accuracy or 0.0) if has_accuracy else row.test_loss for row in rows]
    texts = [accuracy(row.test_accuracy) if has_accuracy else significant(row.test_loss) for row in rows]
    figure = new_figure(height=90 + ROW_HEIGHT * len(rows))
    colours = [REFERENCES["one-worker"] if row.stage == "float" else PALETTE[0] for row in rows]
    figure.add(
        "bar",
        x=values,
        y=list(range(len(rows))),
        orientation="h",
        marker={"color": colours},
        text=texts,
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{text}<extra></extra>",
    )
    figure.layout["margin"] = {**figure.layout["margin"], "r": 70}
    figure.y_axis(tickvals=list(range(len(rows))), ticktext=[plotly_text(row.name) for row in rows], showgrid=False)
    figure.y_axis(range=[len(rows) - 0.4, -0.6], ticks="")
    figure.x_axis("test accuracy, %" if has_accuracy else "test loss", rangemode="tozero")
    cells = [
        [
            row.name,
            row.calibration or DASH,
            accuracy(row.test_accuracy),
            change_points(row.change_points),
            accuracy(row.agreement),
            significant(row.test_loss),
        ]
        for row in rows
    ]
    heads = ["Stage", "Calibration", "Test accuracy", "Change, points", "Same prediction as float", "Test loss"]
    caption = "From the float model to inference with integers only; all stages use the same test set."
    yield Chart("quantize-stages", "Accuracy by stage", caption, [figure], Values(heads, cells), is_wide=True)


@chart("quantize", order=20)
def weights(study: Quantization) -> Iterator[Chart]:
    layers = study.weights
    if not layers:
        return
    views = [_weight_figure(layer) for layer in layers]
    cells = [
        [
            layer.layer,
            layer.kind,
            " x ".join(map(str, layer.shape)),
            significant(layer.high),
            significant(layer.snr_db),
        ]
        for layer in layers
    ]
    table = Values(["Layer", "Kind", "Shape", "Largest weight", "Signal over noise, dB"], cells)
    choice = Choice("layer", tuple(layer.layer for layer in layers), is_list=True)
    caption = "Histogram of weights with BatchNorm folded in: float and int8."
    yield Chart("quantize-weights", "Weights before and after", caption, views, table, choices=[choice])


def _weight_figure(layer: WeightPicture) -> PlotlyFigure:
    figure = new_figure(showlegend=True, legend=LEGEND_ABOVE, barmode="overlay", bargap=0)
    centres = _centres(layer.low, layer.high, len(layer.before))
    figure.add("bar", x=centres, y=layer.after, name="int8", marker={"color": PALETTE[1]}, opacity=0.75)
    line = {"color": PALETTE[0], "width": 2, "shape": "hvh"}
    figure.add("scatter", x=centres, y=layer.before, name="float", mode="lines", line=line)
    figure.x_axis("weight")
    figure.y_axis("weights", rangemode="tozero")
    return figure


@chart("quantize", order=30)
def activations(study: Quantization) -> Iterator[Chart]:
    tensors = study.activations
    if not tensors:
        return
    views = [_activation_figure(tensor) for tensor in tensors]
    methods = list(tensors[0].ranges)
    cells = [
        [tensor.tensor, tensor.kind, _range([tensor.low, tensor.high])]
        + [_range(tensor.ranges[method]) for method in methods]
        + [significant(tensor.scale), str(tensor.zero_point)]
        for tensor in tensors
    ]
    heads = [
        "Tensor",
        "Operation",
        "Observed range",
        *(f"Range by {method}" for method in methods),
        "Scale",
        "Zero point",
    ]
    choice = Choice("tensor", tuple(tensor.tensor for tensor in tensors), is_list=True)
    caption = (
        "Histogram of activations on the calibration images, on a log scale. Vertical lines: the range of each "
        f"calibration method; solid: {tensors[0].chosen}, which was chosen."
    )
    first = min(1, len(views) - 1)  # the first tensor is the input of the model
    table = Values(heads, cells)
    title = "Activations and ranges"
    yield Chart("quantize-activations", title, caption, views, table, choices=[choice], initial=first)


def _activation_figure(tensor: ActivationPicture) -> PlotlyFigure:
    figure = new_figure(showlegend=True, legend=LEGEND_ABOVE, bargap=0)
    centres = _centres(tensor.low, tensor.high, len(tensor.counts))
    figure.add(
        "bar",
        x=centres,
        y=[count or None for count in tensor.counts],
        name="activations",
        marker={"color": PALETTE[0]},
        showlegend=False,
    )
    most = max(tensor.counts)
    for method, (low, high) in tensor.ranges.items():
        dash = "solid" if method == tensor.chosen else "dash"
        line = {"color": METHOD_COLOURS.get(method, PALETTE[5]), "dash": dash, "width": 2}
        figure.add(
            "scatter",
            x=[low, low, None, high, high],
            y=[0.5, most, None, 0.5, most],
            mode="lines",
            line=line,
            name=method,
            hovertemplate=f"{plotly_text(method)}: {significant(low)} to {significant(high)}<extra></extra>",
        )
    figure.x_axis("activation")
    figure.y_axis("activations", type="log", exponentformat="power")
    return figure


@chart("quantize", order=40)
def noise(study: Quantization) -> Iterator[Chart]:
    """Draw the ratio of signal to quantization noise, for each operation's output and for each layer's weights."""
    tensors = [row for row in study.activations if row.snr_db is not None]
    if not tensors:
        return
    names = [row.tensor for row in tensors]
    of_weights = {row.layer: row.snr_db for row in study.weights}
    figure = new_figure(showlegend=True, legend=LEGEND_ABOVE, height=340)
    series = (
        ("activations, with the error of all earlier layers", [row.snr_db for row in tensors], PALETTE[0], "circle"),
        ("weights alone", [of_weights.get(name) for name in names], PALETTE[1], "square"),
    )
    for what, values, colour, symbol in series:
        figure.add(
            "scatter",
            x=list(range(len(names))),
            y=values,
            mode="lines+markers" if symbol == "circle" else "markers",
            name=what,
            line={"color": colour, "width": 2},
            marker={"color": colour, "symbol": symbol, "size": 8},
            text=[plotly_text(name) for name in names],
            hovertemplate="%{text}: %{y:.1f} dB<extra></extra>",
        )
    figure.x_axis(tickvals=list(range(len(names))), ticktext=[plotly_text(name) for name in names], tickangle=-60)
    figure.y_axis("signal over noise, dB (more is better)")
    cells = [[row.tensor, significant(row.snr_db), significant(of_weights.get(row.tensor))] for row in tensors]
    table = Values(["Tensor", "Activations, dB", "Weights, dB"], cells)
    caption = "Signal-to-noise ratio of the integer network's values, taking the float network's as the signal."
    yield Chart("quantize-noise", "Error per layer", caption, [figure], table, is_wide=True)


@chart("quantize", order=50)
def confusion(study: Quantization) -> Iterator[Chart]:
    """Draw a confusion matrix of the classes that the float model and the integer model predict for test samples.

    The diagonal, where both models predict the same class, has no colour.
    """
    counts = study.confusion
    if not counts:
        return
    size = len(counts)
    shown = [[None if row == column else counts[row][column] for column in range(size)] for row in range(size)]
    figure = new_figure(height=120 + 30 * size)
    figure.add(
        "heatmap",
        x=list(range(size)),
        y=list(range(size)),
        z=shown,
        text=[[str(count) if count else "" for count in row] for row in counts],
        texttemplate="%{text}",
        hovertemplate="float %{y}, integer %{x}: %{text}<extra></extra>",
        colorscale=[list(step) for step in COLOUR_SCALE],
        showscale=False,
        xgap=1,
        ygap=1,
    )
    ticks = {"tickvals": list(range(size)), "ticktext": [str(number) for number in range(size)], "showgrid": False}
    figure.x_axis("class predicted by the integer model", **ticks)
    figure.y_axis("class predicted by the float model", autorange="reversed", **ticks)
    cells = [[str(row), *(str(count) for count in counts[row])] for row in range(size)]
    changed = sum(counts[row][column] for row in range(size) for column in range(size) if row != column)
    total = sum(map(sum, counts))
    caption = f"{changed:,} of {total:,} predictions changed. Off the diagonal, darker squares have larger counts."
    table = Values(["Float prediction", *(f"Integer {number}" for number in range(size))], cells)
    yield Chart("quantize-confusion", "Predictions of the integer and the float model", caption, [figure], table)


@chart("quantize", order=60)
def latency(study: Quantization) -> Iterator[Chart]:
    tables = latency_tables(study)
    if study.deployed is None or not tables:
        return
    runners = [row.runner for row in next(iter(tables.values()))]
    views = []
    for rows in tables.values():
        figure = new_figure(height=90 + 46 * len(rows))
        figure.add(
            "bar",
            x=[1e3 * row.p50_s for row in rows],
            y=[plotly_text(row.runner) for row in rows],
            orientation="h",
            marker={"color": list(PALETTE[: len(rows)])},
            text=[f"{ms(row.p50_s)} ms" for row in rows],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{text}<extra></extra>",
        )
        figure.layout["margin"] = {**figure.layout["margin"], "r": 80}
        figure.y_axis(autorange="reversed", showgrid=False)
        figure.x_axis("ms per batch, median (less is better)", rangemode="tozero")
        views.append(figure)
    cells = [[row.runner, str(row.batch), ms(row.p50_s), ms(row.p95_s)] for rows in tables.values() for row in rows]
    choice = Choice("batch", tuple(f"batch of {size}" for size in tables))
    caption = f"{join_words(runners)}, measured in turn on {study.deployed.threads} threads."
    table = Values(["Runner", "Batch", "p50, ms", "p95, ms"], cells)
    yield Chart("quantize-latency", "Time of a batch", caption, views, table, choices=[choice])


def _centres(low: float, high: float, count: int) -> list[float]:
    width = (high - low) / count
    return [low + (number + 0.5) * width for number in range(count)]


def _range(bounds: Sequence[float]) -> str:
    return f"{significant(bounds[0])} to {significant(bounds[1])}"


def change_points(change: float | None) -> str:
    """Format a change of accuracy, given in percentage points, with its sign."""
    return DASH if change is None else f"{change:+.2f}"


def latency_tables(study: Quantization) -> dict[int, list[Latency]]:
    """Return the measured latencies, grouped by batch size."""
    found: dict[int, list[Latency]] = {}
    for row in study.deployed.latency if study.deployed is not None else ():
        found.setdefault(row.batch, []).append(row)
    return found
