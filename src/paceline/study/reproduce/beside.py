"""Published rows beside ours: two tables that keep apart what others stated and what was measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.study.reproduce.experiment import Experiment, PublishedRow
from paceline.study.reproduce.figures import QUANTITIES

Row = dict[str, Any]


def side_by_side(experiment: Experiment, ours: Sequence[Row]) -> list[Row]:
    """Every table that others published, each row with the row of ours that does the same, where it was run."""
    tables = []
    for table in experiment.published:
        rows = [
            {
                "name": row.name,
                "point": row.point,
                "published": dict(row.figures),
                "ours": next((one["key"] for one in ours if is_same(row, one)), None),
            }
            for row in table.rows
        ]
        tables.append({"source": table.source, "setting": table.setting, "rows": rows})
    return tables


def is_same(row: PublishedRow, ours: Mapping[str, Any]) -> bool:
    """The same strategy at the same point; a row that names no point means the experiment's usual one."""
    if row.ours != ours["label"]:
        return False
    point = ours["point"]
    if row.point:
        return bool(dict(row.point) == point)
    return not point or bool(ours["is_first_point"])


def columns(experiment: Experiment) -> dict[str, Row]:
    """What the compared quantities are, for whoever shows them."""
    return {name: {"name": QUANTITIES[name].name, "unit": QUANTITIES[name].unit} for name in experiment.quantities}
