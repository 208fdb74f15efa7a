"""Sorted, disjoint time intervals: union, intersection and difference."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[float, float]
Intervals = list[Interval]


def union(parts: Iterable[Interval]) -> Intervals:
    """Merge any intervals into sorted, disjoint ones; empty ones are dropped."""
    found: Intervals = []
    for begin, end in sorted(part for part in parts if part[1] > part[0]):
        if found and begin <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return found


def intersection(ours: Intervals, theirs: Intervals) -> Intervals:
    """Return the times in both."""
    found: Intervals = []
    i = j = 0
    while i < len(ours) and j < len(theirs):
        begin, end = max(ours[i][0], theirs[j][0]), min(ours[i][1], theirs[j][1])
        if end > begin:
            found.append((begin, end))
        if ours[i][1] < theirs[j][1]:
            i += 1
        else:
            j += 1
    return found


def difference(ours: Intervals, theirs: Intervals) -> Intervals:
    """Return the times in ours but not in theirs."""
    found: Intervals = []
    j = 0
    for begin, end in ours:
        while j < len(theirs) and theirs[j][1] <= begin:
            j += 1
        k = j
        while k < len(theirs) and theirs[k][0] < end:
            if theirs[k][0] > begin:
                found.append((begin, theirs[k][0]))
            begin = max(begin, theirs[k][1])
            k += 1
        if end > begin:
            found.append((begin, end))
    return found


def length(parts: Iterable[Interval]) -> float:
    """Return the total length of disjoint intervals."""
    return sum(end - begin for begin, end in parts)
