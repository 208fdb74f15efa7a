"""Charts of a sweep: time, accuracy and memory over the key that was varied; squares of a grid for two keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.report.chart import LEGEND_ABOVE, Chart, Choice, Figure, Table, label_of, new_figure, plain
from paceline.report.curves import Result
from paceline.report.numbers import DASH, accuracy, listed, significant, whole
from paceline.report.styles import DASHES, PALETTE, SYMBOLS
from paceline.study.findings import sweep_lines
from paceline.study.vary import short_key, value_text

LOG_RATIO = 8  # from here on steps of a key are factors, not differences
COLOURS = ((0.0, "#F7E8A4"), (0.5, "#5AB4AC"), (1.0, "#01665E"))
NO_REMEDY = "as the recipe says"


@dataclass(frozen=True)
class Quantity:
    """A figure of a row."""

    name: str
    axis: str
    of: Callable[[Result], float | None]
    text: Callable[[float | None], str]


QUANTITIES = (
    Quantity("time per iteration", "ms per iteration", lambda r: r["iteration_s"]["mean"] * 1e3, significant),
    Quantity("samples per second", "samples per second", lambda r: r["samples_per_s"], whole),
    Quantity("epoch", "seconds per epoch", lambda r: r["epoch_s"], significant),
)
ACCURACY = Quantity("test accuracy", "test accuracy", lambda r: r["final"]["test_accuracy"], accuracy)
LOSS = Quantity("test loss", "test loss", lambda r: r["final"]["test_loss"], significant)


def is_sweep(results: Sequence[Result]) -> bool:
    """Whether all rows are points of one grid, each once."""
    points = [result for result in results if "remedy" in result and result.get("point")]
    keys = {tuple(result["point"]) for result in points}
    places = {(result["remedy"], *map(value_text, result["point"].values())) for result in points}
    return len(keys) == 1 and len(places) == len(results)


def headline(results: Sequence[Result]) -> str:
    """The sentences of a sweep as one; empty where these results are none."""
    if not is_sweep(results):
        return ""
    lines = sweep_lines({"results": results, "repeats": 2})  # what one repeat cannot tell is said elsewhere
    return "; ".join(line.rstrip(".") for line in lines)


def cautions(results: Sequence[Result]) -> list[str]:
    if not is_sweep(results):
        return []
    keys = listed(list(results[0]["point"]))
    return [f"Varied from row to row: {keys}. Conditions and recipe below are those that all rows start from."]


def charts(results: Sequence[Result]) -> list[Chart]:
    """Time and learning over one key or two, and memory; beyond two keys the tables and bars of rows must do."""
    if not is_sweep(results):
        return []
    keys = list(results[0]["point"])
    found = []
    if len(keys) == 1:
        found = [_over_key(results, keys[0], _present(results, QUANTITIES), "sweep-time", "Time")]
        found.append(_over_key(results, keys[0], _learning(results), "sweep-learning", "Learning"))
    elif len(keys) == 2:
        found = [_grid(results, keys, [*_present(results, QUANTITIES), *_learning(results)])]
    memory = _memory(results)
    return [*found, memory] if memory is not None else found


def _present(results: Sequence[Result], quantities: Sequence[Quantity]) -> list[Quantity]:
    return [quantity for quantity in quantities if any(quantity.of(result) is not None for result in results)]


def _learning(results: Sequence[Result]) -> list[Quantity]:
    return _present(results, (ACCURACY, LOSS)) or [LOSS]


def _over_key(results: Sequence[Result], key: str, quantities: Sequence[Quantity], id: str, title: str) -> Chart:
    name = short_key(key, results[0]["point"])
    views = [_lines(results, key, name, quantity) for quantity in quantities]
    remedies = ", a line for each remedy" if len(_remedies(results)) > 1 else ""
    rows = [[str(r["label"]), *(quantity.text(quantity.of(r)) for quantity in quantities)] for r in results]
    table = Table(["Point", *(quantity.name.capitalize() for quantity in quantities)], rows)
    choices = [Choice(f"{title.lower()} as", tuple(quantity.name for quantity in quantities))]
    caption = f"Every point is a run{remedies}. Means over workers, medians of repeats."
    return Chart(id, f"{title} over {name}", caption, views, table, choices=choices if len(views) > 1 else ())


def _lines(results: Sequence[Result], key: str, name: str, quantity: Quantity) -> Figure:
    remedies = _remedies(results)
    figure = new_figure(showlegend=len(remedies) > 1, legend=LEGEND_ABOVE)
    texts = _texts(results, key)
    is_log = _is_log([result["point"][key] for result in results])
    for number, remedy in enumerate(remedies):
        shown = [result for result in results if result["remedy"] == remedy]
        values = [result["point"][key] for result in shown]
        colour = PALETTE[number % len(PALETTE)]
        figure.add(
            "scatter",
            x=values if is_log else [texts.index(value_text(value)) for value in values],
            y=[quantity.of(result) for result in shown],
            mode="lines+markers",
            line={"color": colour, "width": 2, "dash": DASHES[number % len(DASHES)]},
            marker={"color": colour, "symbol": SYMBOLS[number % len(SYMBOLS)], "size": 8},
            name=plain(remedy or NO_REMEDY),
            customdata=[[label_of(result), quantity.text(quantity.of(result))] for result in shown],
            hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
        )
    ticks = sorted({result["point"][key] for result in results}) if is_log else list(range(len(texts)))
    labels = [value_text(tick) for tick in ticks] if is_log else texts
    figure.x_axis(plain(name), type="log" if is_log else "linear", tickvals=ticks, ticktext=[plain(t) for t in labels])
    if quantity is ACCURACY:
        figure.y_axis(quantity.axis, tickformat=".0%")
    else:
        figure.y_axis(quantity.axis, rangemode="tozero")
    return figure


def _grid(results: Sequence[Result], keys: Sequence[str], quantities: Sequence[Quantity]) -> Chart:
    remedies = _remedies(results)
    views = [_squares(results, keys, quantity, remedy) for quantity in quantities for remedy in remedies]
    choices = [Choice("grid of", tuple(quantity.name for quantity in quantities))]
    if len(remedies) > 1:
        choices.append(Choice("remedy", tuple(remedy or NO_REMEDY for remedy in remedies), is_list=True))
    names = [short_key(key, results[0]["point"]) for key in keys]
    rows = [[str(r["label"]), *(quantity.text(quantity.of(r)) for quantity in quantities)] for r in results]
    table = Table(["Point", *(quantity.name.capitalize() for quantity in quantities)], rows)
    caption = "Every square is a run; an empty one was refused or failed. Darker is more."
    title = f"{names[0]} and {names[1]}"
    return Chart("sweep-grid", title, caption, views, table, is_wide=True, choices=choices)


def _squares(results: Sequence[Result], keys: Sequence[str], quantity: Quantity, remedy: str) -> Figure:
    down, across = (_texts(results, key) for key in keys)
    found = {tuple(value_text(r["point"][key]) for key in keys): r for r in results if r["remedy"] == remedy}
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
        colorscale=[list(step) for step in COLOURS],
        showscale=False,
        xgap=2,
        ygap=2,
    )
    names = [short_key(key, results[0]["point"]) for key in keys]
    figure.x_axis(plain(names[1]), tickvals=list(range(len(across))), ticktext=[plain(t) for t in across])
    figure.y_axis(plain(names[0]), tickvals=list(range(len(down))), ticktext=[plain(t) for t in down])
    figure.x_axis(showgrid=False)
    figure.y_axis(showgrid=False, autorange="reversed")
    return figure


def _memory(results: Sequence[Result]) -> Chart | None:
    """The most memory of a worker beside what was predicted before it started."""
    shown = [r for r in results if _predicted(r) is not None and r["memory"]["peak_rss_bytes"] is not None]
    if not shown:
        return None
    figure = new_figure(showlegend=True, legend=LEGEND_ABOVE, barmode="group")
    names = ("predicted", "measured")
    for name, colour, of in zip(names, PALETTE[:2], (_predicted, _peak), strict=True):
        figure.add(
            "bar",
            x=list(range(len(shown))),
            y=[of(result) / 1e6 for result in shown],
            marker={"color": colour},
            name=name,
            customdata=[label_of(result) for result in shown],
            hovertemplate=f"<b>%{{customdata}}</b><br>{name} %{{y:.4g}} MB<extra></extra>",
        )
    figure.x_axis(tickvals=list(range(len(shown))), ticktext=[plain(str(r["short_label"])) for r in shown])
    figure.x_axis(showgrid=False, ticks="", autotickangles=[0, -40, -90], ticklabeloverflow="allow")
    figure.y_axis("MB of a worker, at most", rangemode="tozero")
    rows = [[str(r["label"]), whole(_predicted(r) / 1e6), whole(_peak(r) / 1e6), _error(r)] for r in shown]
    table = Table(["Point", "Predicted, MB", "Measured, MB", "Prediction's error"], rows)
    caption = "Predicted from a few samples before a point starts; measured as the kernel counts a worker's peak."
    return Chart("sweep-memory", "Memory of a worker", caption, [figure], table)


def _predicted(result: Result) -> Any:
    return (result.get("memory") or {}).get("predicted") and result["memory"]["predicted"]["worker_bytes"]


def _peak(result: Result) -> Any:
    return result["memory"]["peak_rss_bytes"]


def _error(result: Result) -> str:
    return f"{(_predicted(result) / _peak(result) - 1) * 100:+.0f} %"


def _remedies(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(str(result["remedy"]) for result in results))


def _texts(results: Sequence[Result], key: str) -> list[str]:
    """A key's values in words: numbers by size, other things in the order in which rows have them."""
    values = [result["point"][key] for result in results]
    ordered = sorted(values) if all(_is_number(value) for value in values) else values
    return list(dict.fromkeys(value_text(value) for value in ordered))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_log(values: Sequence[Any]) -> bool:
    """Whether values are positive numbers that lie factors apart."""
    if not all(_is_number(value) and value > 0 for value in values):
        return False
    return bool(max(values) / min(values) >= LOG_RATIO)


def failures_in_words(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for every point that has no row."""
    return [f"{one['label']} was {_verb(one)}: {str(one['reason']).rstrip('.')}." for one in failures]


def _verb(failure: Mapping[str, Any]) -> str:
    return "refused" if failure["status"] == "refused" else "begun and failed"
