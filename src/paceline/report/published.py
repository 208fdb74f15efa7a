"""A reproduced experiment: what others published beside what was measured here, each under its own name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.report.chart import LEGEND_ABOVE, Chart, Choice, Figure, Table, new_figure, plain
from paceline.report.numbers import DASH, amount
from paceline.report.points import Point, Result
from paceline.report.sections import Section
from paceline.report.styles import PALETTE, REFERENCES
from paceline.study.reproduce.words import figure_text, heading, proof_words

Study = Mapping[str, Any]
ROW_HEIGHT = 44


def section(study: Study, results: Sequence[Result]) -> Section:
    del results
    found = Section("published", "Published beside measured")
    chart = _bars(study)
    if chart is not None:
        found.charts.append(chart)
    found.tables.append(("Measured here", _ours_table(study)))
    for number, table in enumerate(study["published"], 1):
        title = f"Published (reference {number}): {table['source']}"
        found.tables.append((f"{title}; {table['setting']}", _published_table(study, table)))
    load = _load_table(study)
    if load.rows:
        found.tables.append(("Resources of each worker, measured here, over the first repeat", load))
    if _has_extrapolated(study):
        found.missing.append("Extrapolated: mean iteration times the iterations of an epoch; not run to its end.")
    return found


def points(study: Study) -> list[Point]:
    """The proof, and what keeps figures from being compared."""
    found = [Point("Experiment", f"{study['title']}. Published figures are others' and stand apart from ours.")]
    proof = study["proof"]
    if proof:
        passed = all(row["passed"] for row in proof)
        found.append(Point("Replicas proven", " ".join(proof_words(proof)), is_problem=not passed))
    return found + [Point("Conditions", note) for note in study["notes"]]


def _bars(study: Study) -> Chart | None:
    """Published and measured bars next to each other, for every quantity that both have as a number."""
    shown = [name for name in study["quantities"] if _pairs(study, name)]
    if not shown:
        return None
    views = [_figure(study, name) for name in shown]
    rows = [
        [heading(study, name), row, source, figure_text(theirs, _unit(study, name)), _text(study, name, ours)]
        for name in shown
        for row, source, theirs, ours in _pairs(study, name)
    ]
    table = Table(["Quantity", "Row, as published", "Published in", "Published", "Measured here"], rows)
    choices = [Choice("published quantity", tuple(heading(study, name) for name in shown))] if len(shown) > 1 else []
    caption = (
        "Hatched grey: published by others, on their machines. Solid: measured here; pale where it is extrapolated "
        "from a subset of iterations."
    )
    return Chart("published-bars", "Published and measured", caption, views, table, is_wide=True, choices=choices)


def _pairs(study: Study, name: str) -> list[tuple[str, str, float, Mapping[str, Any]]]:
    """Rows in which a number was published for which we have one, too."""
    ours = {row["key"]: row["figures"] for row in study["ours"]}
    return [
        (row["name"], table["source"], value, ours[row["ours"]][name])
        for table in study["published"]
        for row in table["rows"]
        if isinstance(value := row["published"].get(name), int | float)
        and name in ours.get(row["ours"], {})
        and isinstance(ours[row["ours"]][name]["value"], int | float)
    ]


def _figure(study: Study, name: str) -> Figure:
    pairs = _pairs(study, name)
    figure = new_figure(barmode="overlay", showlegend=True, legend=LEGEND_ABOVE, height=96 + ROW_HEIGHT * len(pairs))
    several = len({source for _, source, _, _ in pairs}) > 1
    labels = [f"{row} ({source.rpartition(', ')[2]})" if several else row for row, source, _, _ in pairs]
    scale = 100 if _unit(study, name) == "%" else 1
    hatched = {"color": REFERENCES["none"], "pattern": {"shape": "/", "size": 5, "fillmode": "replace"}}
    solid = [PALETTE[0] if not ours["is_extrapolated"] else PALETTE[5] for _, _, _, ours in pairs]
    series = [
        ("published", [theirs for _, _, theirs, _ in pairs], hatched, -0.19),
        ("measured here", [ours["value"] for _, _, _, ours in pairs], {"color": solid}, 0.19),
    ]
    for what, values, marker, offset in series:
        figure.add(
            "bar",
            x=[value * scale for value in values],
            y=[place + offset for place in range(len(pairs))],
            width=0.34,
            orientation="h",
            marker=marker,
            name=what,
            text=[_marked(study, name, pair, what) for pair in pairs],
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"{what}: %{{text}}<extra></extra>",
        )
    figure.layout["margin"] = {**figure.layout["margin"], "r": 110}
    figure.y_axis(tickvals=list(range(len(pairs))), ticktext=[_wrapped(label) for label in labels])
    figure.y_axis(range=[len(pairs) - 0.4, -0.6], showgrid=False, ticks="")
    figure.x_axis(heading(study, name) + (", %" if scale == 100 else ""), rangemode="tozero")
    return figure


def _marked(study: Study, name: str, pair: tuple[str, str, float, Mapping[str, Any]], what: str) -> str:
    if what == "published":
        return figure_text(pair[2], _unit(study, name))
    return _text(study, name, pair[3])


def _wrapped(label: str) -> str:
    words, lines = label.split(), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > 30:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "<br>".join(plain(line) for line in lines)


def _unit(study: Study, name: str) -> str:
    return str(study["quantities"][name]["unit"])


def _text(study: Study, name: str, figure: Mapping[str, Any] | None) -> str:
    if figure is None:
        return DASH
    words = figure_text(figure["value"], _unit(study, name))
    return f"{words} (extrapolated)" if figure["is_extrapolated"] else words


def _has_extrapolated(study: Study) -> bool:
    return any(figure["is_extrapolated"] for row in study["ours"] for figure in row["figures"].values())


def _ours_table(study: Study) -> Table:
    names = [name for name in study["quantities"] if any(name in row["figures"] for row in study["ours"])]
    rows = [
        [row["key"], str(row["steps"]), *(_text(study, name, row["figures"].get(name)) for name in names)]
        for row in study["ours"]
    ]
    return Table(["Row", "Steps", *(heading(study, name) for name in names)], rows)


def _published_table(study: Study, table: Mapping[str, Any]) -> Table:
    names = [name for name in study["quantities"] if any(name in row["published"] for row in table["rows"])]
    rows = [
        [
            row["name"],
            row["ours"] or "not run here",
            *(figure_text(row["published"].get(name), _unit(study, name)) for name in names),
        ]
        for row in table["rows"]
    ]
    return Table(["Row, as published", "Row of ours", *(f"{heading(study, name)}, published" for name in names)], rows)


def _load_table(study: Study) -> Table:
    rows = [
        [
            row["key"],
            str(one["rank"]),
            DASH if one["cpu_percent"] is None else f"{one['cpu_percent']:.0f} %",
            *(amount(one[key]) for key in _LOAD),
        ]
        for row in study["ours"]
        for one in row["load"]
    ]
    return Table(["Row", "Worker", "CPU (100 % is a core)", *_LOAD.values()], rows)


_LOAD = {
    "peak_rss_bytes": "Most memory",
    "network_sent_bytes": "Network sent",
    "network_received_bytes": "Network received",
    "disk_read_bytes": "Disk read",
    "disk_written_bytes": "Disk written",
}
