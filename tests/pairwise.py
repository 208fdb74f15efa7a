"""Select the parameter combinations that the quick tier runs; the others are marked slow.

A test is parametrised over its full product. Two markers select the quick part:

- `@pytest.mark.pairwise`: every pair of values of two parameters occurs in a quick test at least once.
- `@pytest.mark.each_choice`: every value of every parameter occurs in a quick test at least once.

Values that a new strategy, codec or comm adds to the registry are part of the product, hence of the cover.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, groupby
from typing import Any

import pytest

Row = tuple[Any, ...]
STRENGTHS = {"pairwise": 2, "each_choice": 1}  # number of parameters whose combinations are covered


def cover(rows: Sequence[Row], strength: int) -> list[int]:
    """Return the positions of rows that together contain every combination of `strength` values.

    Greedy: choose the row with the most missing combinations, the earliest on a tie. Rows need not form a full
    product.
    """
    parts = [_combinations_of(row, strength) for row in rows]
    missing = set().union(*parts)
    chosen: list[int] = []
    while missing:
        best = max(range(len(rows)), key=lambda position: (len(parts[position] & missing), -position))
        chosen.append(best)
        missing -= parts[best]
    return sorted(chosen)


def _combinations_of(row: Row, strength: int) -> set[Any]:
    return set(combinations(enumerate(row), min(strength, len(row))))


def mark_uncovered_as_slow(items: Sequence[pytest.Item]) -> None:
    """Mark as slow the tests outside the cover that their marker requests."""
    for strength_name, strength in STRENGTHS.items():
        asking = [item for item in items if item.get_closest_marker(strength_name)]
        for _, group in groupby(asking, key=lambda item: item.nodeid.partition("[")[0]):
            tests = list(group)
            quick = set(cover([_row_of(item) for item in tests], strength))
            for position, item in enumerate(tests):
                if position not in quick:
                    item.add_marker(pytest.mark.slow)


def _row_of(item: pytest.Item) -> Row:
    """Return the parameters of a test as text, because values may not be hashable."""
    callspec = getattr(item, "callspec", None)
    assert callspec is not None, f"{item.nodeid} has no parameters to choose from"
    return tuple(repr(callspec.params[name]) for name in sorted(callspec.params))
