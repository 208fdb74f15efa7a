"""Chart of where the time of a step goes, as stacked bars: compute, overlap, communication, waiting, data, other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.present.chart import (
    LEGEND_ABOVE,
    Chart,
    Choice,
    PlotlyFigure,
    Values,
    label_of,
    new_figure,
    short_label_of,
    wrapped_label_of,
)
from paceline.present.charts.registry import Rows, chart
from paceline.present.charts.shared_figures import row_height_of
from paceline.present.numbers import DASH, amount, ms
from paceline.present.rows import ShownRow
from paceline.present.styles import COMMUNICATION, PART_NAMES, PARTS
from paceline.results import Split, SplitMean

PHASES = ("data", "forward", "backward", "optimizer")
WORKER_ROW = 24  # height of a worker's row in pixels
GAP = 0.6  # space between the workers of two strategies, as a share of a row's height
NO_SPANS = "spans were not recorded in these runs (an earlier version, or --no-measure)"

Shown = tuple[int, ShownRow, Split]


@chart("time", order=10)
def split(content: Rows) -> Iterator[Chart | str]:
    without = [row.label for row in content.rows if not row.split]
    if len(without) == len(content.rows):
        yield f"No split of a step and no timeline: {NO_SPANS}."
        return
    yield from split_of(list(enumerate(content.rows)))
    if without:
        yield f"Not shown, because spans were not recorded: {', '.join(without)}."


def split_of(rows: Sequence[tuple[int, ShownRow]]) -> Iterator[Chart]:
    """Draw the time of each part of a step, such as computing or waiting, by strategy and by worker.

    `rows` has pairs: the index of a strategy in `Page.key` (the legend of the page), and a row of that strategy.
    """
    shown = [(index, result, result.split) for index, result in rows if result.split]
    if not shown:
        return
    views = [figure(shown, unit) for figure in (_strategies, _workers) for unit in ("ms", "percent")]
    choices = [Choice("of", ("each strategy", "each worker")), Choice("in", ("ms", "% of the step"))]
    caption = (
        "Mean of timed steps. Overlap (striped): communication hidden under computing. Communication: the part that is "
        "not hidden. Waiting: for a slower worker."
    )
    title = "Where the time of a step goes"
    yield Chart("split", title, caption, views, _values(shown), is_wide=True, choices=choices)


def _strategies(shown: Sequence[Shown], unit: str) -> PlotlyFigure:
    figure = _figure(unit)
    row_height = row_height_of([result for _, result, _ in shown])
    for row, (index, result, measured) in enumerate(shown):
        _stack(figure, [measured.mean], row, unit, f"<b>{label_of(result)}</b>", index, 24 / row_height)
    _finish(
        figure, list(range(len(shown))), [wrapped_label_of(result) for _, result, _ in shown], row_height * len(shown)
    )
    return figure


def _workers(shown: Sequence[Shown], unit: str) -> PlotlyFigure:
    figure = _figure(unit)
    row, places, names = 0.0, [], []
    for index, result, measured in shown:
        workers = measured.per_worker
        _stack(figure, workers, row, unit, f"<b>{label_of(result)}</b>, worker ", index, 0.8)
        places += [row + position for position in range(len(workers))]
        names += [f"{short_label_of(result)}   {workers[0].rank}", *(str(worker.rank) for worker in workers[1:])]
        row += len(workers) + GAP
    _finish(figure, places, names, round(WORKER_ROW * row))
    return figure


def _figure(unit: str) -> PlotlyFigure:
    """Return an empty figure with a legend of the parts of a step.

    The legend stays when a reader hides a strategy.
    """
    figure = new_figure(barmode="stack", showlegend=True, legend=LEGEND_ABOVE)
    for part in PARTS:
        figure.add(
            "bar", x=[None], y=[None], name=PART_NAMES[part], marker=_marker(part), legendgroup=part, hoverinfo="skip"
        )
    figure.x_axis("ms per step" if unit == "ms" else "% of the step")
    if unit == "percent":
        figure.x_axis(range=[0, 100])
    return figure


def _stack(
    figure: PlotlyFigure, rows: Sequence[SplitMean], first: float, unit: str, subject: str, index: int, width: float
) -> None:
    """Add a stacked bar of the parts of a step for each row, at the vertical positions `first`, `first + 1`, ...

    Hover texts begin with `subject`, followed by the rank if the row belongs to one worker.
    """
    for part in PARTS:
        seconds = [getattr(row, f"{part}_s") or 0.0 for row in rows]
        steps = [row.step_s or 1.0 for row in rows]
        shares = [100 * value / step for value, step in zip(seconds, steps, strict=True)]
        if not any(seconds):
            continue
        figure.add(
            "bar",
            x=[value * 1e3 for value in seconds] if unit == "ms" else shares,
            y=[first + position for position in range(len(rows))],
            width=width,
            orientation="h",
            marker=_marker(part),
            legendgroup=part,
            showlegend=False,
            meta=index,
            customdata=[
                [getattr(row, "rank", ""), ms(value), f"{share:.1f}", ms(step)]
                for row, value, share, step in zip(rows, seconds, shares, steps, strict=True)
            ],
            hovertemplate=f"{subject}%{{customdata[0]}}<br>{PART_NAMES[part]} %{{customdata[1]}} ms, "
            "%{customdata[2]} % of %{customdata[3]} ms<extra></extra>",
        )


def _marker(part: str) -> dict[str, object]:
    marker: dict[str, object] = {"color": PARTS[part]}
    if part == "overlap":
        marker["pattern"] = {
            "shape": "/",
            "size": 6,
            "bgcolor": PARTS[part],
            "fgcolor": COMMUNICATION,
            "solidity": 0.45,
        }
    return marker


def _finish(figure: PlotlyFigure, places: Sequence[float], names: Sequence[str], height: int) -> None:
    figure.layout["height"] = 120 + height
    figure.y_axis(tickvals=list(places), ticktext=list(names), showgrid=False, ticks="")
    figure.y_axis(range=[max(places) + 0.55, -0.55])


def _values(shown: Sequence[Shown]) -> Values:
    heads = [
        "Strategy",
        "Worker",
        "Step, ms",
        *(f"{PART_NAMES[part].capitalize()}, ms" for part in PARTS),
        "Hidden, %",
        "Bandwidth",
    ]
    heads += [f"Own {phase}, ms" for phase in PHASES]
    rows = []
    for _, result, measured in shown:
        workers: list[tuple[str, SplitMean]] = [("all", measured.mean)]
        workers += [(str(worker.rank), worker) for worker in measured.per_worker]
        for rank, parts in workers:
            hidden, bandwidth = parts.overlap_fraction, parts.bandwidth_bytes_per_s
            rows.append(
                [
                    result.label,
                    rank,
                    ms(parts.step_s),
                    *(ms(getattr(parts, f"{part}_s")) for part in PARTS),
                    DASH if hidden is None else f"{hidden * 100:.0f}",
                    DASH if bandwidth is None else f"{amount(bandwidth)}/s",
                    *(ms(parts.phases_s.get(phase)) for phase in PHASES),
                ]
            )
    return Values(heads, rows)
