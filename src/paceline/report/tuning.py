"""How a tuning went: everybody's time over the rungs, what each lost against exact, and who was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.report.chart import Chart, Figure, Table, new_figure, plain
from paceline.report.numbers import DASH, accuracy, counted, listed, megabytes, milliseconds, significant, times
from paceline.report.points import Point, Result
from paceline.report.sections import Section
from paceline.report.styles import REFERENCES, Style, styles
from paceline.study.advice import command_in, lost_words

Study = Mapping[str, Any]
OUT = Style(REFERENCES["none"])  # whoever did not reach the last rung


def section(study: Study, results: Sequence[Result]) -> Section:
    looks = {str(r["full_label"]): (i, look) for i, (r, look) in enumerate(zip(results, styles(results), strict=True))}
    found = Section("tuning", "Tuning")
    if not study["rungs"]:
        found.missing.append("No rung was completed, so nothing was decided.")
        return found
    found.charts.extend([_over_rungs(study, looks), _lost(study, looks)])
    for table in study["rungs"]:
        title = f"Rung {table['rung']}: {counted(table['steps'], 'step')}, {counted(table['repeats'], 'round')}"
        found.tables.append((f"{title}, judged by test {table['judged_by']}", _rung_table(table)))
    left_out = study["left_out"]
    for reason in dict.fromkeys(left_out.values()):
        labels = listed([label for label, why in left_out.items() if why == reason])
        found.missing.append(f"Left out before the start: {labels}: {reason}.")
    return found


def points(study: Study) -> list[Point]:
    """Who was chosen, and what to type."""
    best = study.get("best")
    if not best:
        return [Point("Tuning", "It did not come to an end, so nothing was chosen.", is_problem=True)]
    if best["label"] == study["reference"]:
        chosen = f"{best['label']}, the exact strategy itself: nothing was clearly faster within the margin."
    else:
        bounds = best["versus_reference_interval95"]
        interval = f" (95 % interval {times(bounds[0])} to {times(bounds[1])})" if bounds else " (one repeat)"
        ratio = f"{times(best['versus_reference'])} times the time per step of {study['reference']}"
        chosen = f"{best['label']} was chosen: {ratio}{interval}; {lost_words(best)}."
    call = "; ".join(best["library"].splitlines())
    return [Point("Tuning", chosen), Point("To use it", f"{command_in(best, study['folder'])} or, in a loop, {call}")]


Looks = Mapping[str, tuple[int, Style]]


def _over_rungs(study: Study, looks: Looks) -> Chart:
    """A line per candidate that ends where it went out."""
    figure = new_figure(height=380)
    lines: dict[str, list[tuple[int, float]]] = {}
    for table in study["rungs"]:
        for row in _measured(table):
            lines.setdefault(row["label"], []).append((table["steps"], row["iteration_s"] * 1e3))
    # Who went out early is drawn first, so that finalists lie on top.
    for label, line in sorted(lines.items(), key=lambda item: item[0] in looks):
        index, look = looks.get(label, (None, OUT))
        shown = {"x": [steps for steps, _ in line], "y": [value for _, value in line], "name": plain(label)}
        hover = f"<b>{plain(label)}</b><br>%{{x}} steps: %{{y:.3g}} ms<extra></extra>"
        _add(figure, index, shown, look, hover, width=2 if label in looks else 1)
    steps = [table["steps"] for table in study["rungs"]]
    figure.x_axis("steps of the rung", type="log", tickvals=steps, ticktext=[str(number) for number in steps])
    figure.y_axis("ms per step (less is better)", rangemode="tozero")
    rows = [[label, *(_at(line, number) for number in steps)] for label, line in lines.items()]
    table = Table(["Strategy", *(f"{number} steps, ms" for number in steps)], rows)
    caption = (
        "Time per step of the slowest worker at each rung; a line ends where its strategy went out. Grey: not last."
    )
    return Chart("tuning-rungs", "Who went how far", caption, [figure], table)


def _at(line: Sequence[tuple[int, float]], steps: int) -> str:
    return next((significant(value) for number, value in line if number == steps), DASH)


def _lost(study: Study, looks: Looks) -> Chart:
    """What each lost against exact over the time that it took, in the last rung that judged it as the final one did."""
    final = study["rungs"][-1]
    by, figure = final["judged_by"], new_figure(height=380)
    latest: dict[str, Mapping[str, Any]] = {}
    for table in study["rungs"]:
        if table["judged_by"] == by:
            latest |= {row["label"]: {**row, "steps": table["steps"]} for row in _measured(table)}
    for label, row in latest.items():
        index, look = looks.get(label, (None, OUT))
        shown = {"x": [row["versus_reference"]], "y": [row["lost"]], "mode": "markers", "name": plain(label)}
        hover = (
            f"<b>{plain(label)}</b><br>{times(row['versus_reference'])} times the time of "
            f"{plain(study['reference'])}<br>lost {row['lost']:.2f}, after {row['steps']} steps<extra></extra>"
            if row["lost"] is not None
            else f"<b>{plain(label)}</b>: no finite figure<extra></extra>"
        )
        _add(figure, index, shown, look, hover, width=1)
    unit = "points of test accuracy" if by == "accuracy" else "% of test loss"
    margin = final["margin"]
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": margin, "y1": margin}
    figure.layout["shapes"] = [{**line, "line": {"dash": "dash", "width": 1.5, "color": REFERENCES["one-worker"]}}]
    figure.x_axis(f"time per step, times that of {plain(study['reference'])} (less is better)")
    figure.y_axis(f"lost, {unit} (less is better)")
    rows = [
        [label, times(row["versus_reference"]), significant(row["lost"]), str(row["steps"])]
        for label, row in latest.items()
    ]
    table = Table(["Strategy", "Time, times the reference's", f"Lost, {unit}", "Steps"], rows)
    caption = f"Below the dashed line ({margin:g}) is allowed at the end; down and to the left is better."
    return Chart("tuning-lost", "What was lost for the time", caption, [figure], table)


def _add(figure: Figure, index: int | None, shown: dict[str, Any], look: Style, hover: str, *, width: int) -> None:
    marker = {"color": look.colour, "symbol": look.symbol, "size": 8 if index is not None else 6}
    line = {"color": look.colour, "dash": look.dash, "width": width}
    trace = {"mode": "lines+markers", "marker": marker, "line": line, "hovertemplate": hover, **shown}
    figure.add("scatter", **trace, **({} if index is None else {"meta": index}))


def _measured(table: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in table["rows"] if row["end"] != "failed"]


def _rung_table(table: Mapping[str, Any]) -> Table:
    unit = "points" if table["judged_by"] == "accuracy" else "%"
    rows = []
    for row in sorted(table["rows"], key=lambda row: float(row.get("iteration_s") or 1e9)):
        if row["end"] == "failed":
            rows.append([row["label"], *[DASH] * 6, f"failed: {row['reason']}"])
            continue
        lost = "exact" if row["guarantee"] == "EXACT" else significant(row["lost"])
        figures = [milliseconds(row["iteration_s"]), times(row["versus_reference"]), accuracy(row["test_accuracy"])]
        figures += [significant(row["test_loss"]), lost, megabytes(row["sent_bytes"])]
        rows.append([row["label"], *figures, row["end"]])
    heads = [
        "Strategy",
        "ms per step",
        "Times the reference",
        "Test accuracy",
        "Test loss",
        f"Lost, {unit}",
        "Sent, MB",
    ]
    return Table([*heads, "End"], rows)
