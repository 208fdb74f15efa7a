"""Sets of moments, held against sets of whole numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.measure.split import Intervals, difference, intersection, length, union

PARTS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def moments(parts: Intervals) -> set[int]:
    return {moment for begin, end in parts for moment in range(int(begin), int(end))}


@given(PARTS)
def test_a_union_is_sorted_and_does_not_touch(parts: Intervals) -> None:
    found = union(parts)
    assert moments(found) == moments(parts)
    assert all(begin < end for begin, end in found)
    assert all(first[1] < second[0] for first, second in pairwise(found))


@given(PARTS, PARTS)
def test_sets_of_moments(ours: Intervals, theirs: Intervals) -> None:
    a, b = union(ours), union(theirs)
    assert moments(intersection(a, b)) == moments(a) & moments(b)
    assert moments(difference(a, b)) == moments(a) - moments(b)
    assert length(difference(a, b)) + length(intersection(a, b)) == pytest.approx(length(a))
