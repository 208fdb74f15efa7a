"""The part of a product of parameters that the quick tier runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations, product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairwise import cover, mark_uncovered_as_slow


@dataclass
class Item:
    """The part of a pytest item that the covers look at."""

    nodeid: str
    callspec: SimpleNamespace
    marks: set[str] = field(default_factory=set)

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.add(mark.name)


def items_of(name: str, sizes: dict[str, int], mark: str) -> list[Item]:
    rows = product(*(range(size) for size in sizes.values()))
    return [
        Item(f"{name}[{row}]", SimpleNamespace(params=dict(zip(sizes, row, strict=True))), {mark} if mark else set())
        for row in rows
    ]


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_a_pairwise_cover_has_every_pair_of_values(sizes: list[int]) -> None:
    rows = list(product(*(range(size) for size in sizes)))
    chosen = [rows[position] for position in cover(rows, 2)]
    for (first, first_size), (second, second_size) in combinations(enumerate(sizes), 2):
        assert {(row[first], row[second]) for row in chosen} == set(product(range(first_size), range(second_size)))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_each_choice_takes_as_many_rows_as_the_longest_list(sizes: list[int]) -> None:
    rows = list(product(*(range(size) for size in sizes)))
    assert len(cover(rows, 1)) == max(sizes)


def test_a_pairwise_cover_is_much_smaller_than_the_product() -> None:
    # 10 strategies x 4 comms need 40 rows; four world sizes and two optimisers fit into the same rows.
    assert len(cover(list(product(range(10), range(4), range(4), range(2))), 2)) == 40


def test_rows_need_not_be_a_full_product() -> None:
    assert cover([("a", 0), ("b", 0), ("b", 1)], 1) == [0, 2]
    assert cover([("a", 0), ("b", 0), ("b", 1)], 2) == [0, 1, 2]
    assert cover([("only",)], 2) == [0]
    assert cover([], 2) == []


def test_tests_outside_the_cover_are_marked_slow() -> None:
    sizes = {"strategy": 3, "world_size": 3, "optimizer": 3}
    pairs, choices, plain = (items_of(mark or "plain", sizes, mark) for mark in ("pairwise", "each_choice", ""))
    mark_uncovered_as_slow([*pairs, *choices, *plain])
    quick = [sum("slow" not in item.marks for item in items) for items in (pairs, choices, plain)]
    assert quick == [10, 3, 27]  # nine rows would do for the pairs; greedy finds ten


@pytest.mark.each_choice
@pytest.mark.parametrize("second", [1, 2])
@pytest.mark.parametrize("first", [1, 2])
def test_the_markers_work_in_this_suite(request: pytest.FixtureRequest, first: int, second: int) -> None:
    assert (request.node.get_closest_marker("slow") is None) == (first == second)


def test_a_test_without_parameters_cannot_ask_for_a_cover() -> None:
    item = Item("test_x", SimpleNamespace(), {"pairwise"})
    item.callspec = None  # type: ignore[assignment]
    with pytest.raises(AssertionError, match="test_x has no parameters to choose from"):
        mark_uncovered_as_slow([item])
