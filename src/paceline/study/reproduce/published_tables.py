"""Published tables with the matching rows of our study."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.results.study import OurRow, PublishedColumn, PublishedTable
from paceline.results.study import PublishedRow as StoredRow
from paceline.study.reproduce.experiment import Experiment, ExperimentRow
from paceline.study.reproduce.figures import QUANTITIES


def side_by_side(experiment: Experiment, ours: Sequence[OurRow]) -> list[PublishedTable]:
    """Return every published table; each row has the key of our matching row, if that ran."""
    return [
        PublishedTable(
            source=table.source,
            setting=table.setting,
            rows=[
                StoredRow(
                    name=row.name,
                    point=row.point,
                    published=dict(row.figures),
                    ours=next((one.key for one in ours if is_same(row, one)), None),
                )
                for row in table.rows
            ],
        )
        for table in experiment.published
    ]


def is_same(row: ExperimentRow, ours: OurRow) -> bool:
    """Whether two rows have the same strategy and point; a published row without a point means the first point."""
    if row.ours != ours.label:
        return False
    if row.point:
        return dict(row.point) == ours.point
    return not ours.point or ours.is_first_point


def columns(experiment: Experiment) -> dict[str, PublishedColumn]:
    """Return the compared quantities by name."""
    return {
        name: PublishedColumn(name=QUANTITIES[name].name, unit=QUANTITIES[name].unit) for name in experiment.quantities
    }
