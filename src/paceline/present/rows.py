"""Give the rows of result tables unique labels, and find the fastest row.

A row is the result of one strategy with one combination of settings. All rows that one command shows together are on
one page. Baselines (one worker, and workers that never synchronise) do not compete to be the fastest row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from paceline.present.numbers import counted
from paceline.results import Row

MAX_LABEL = 60  # characters; a longer label is replaced by its short form, which the page explains
TICK_LENGTH = 22  # characters of a label at an axis

R = TypeVar("R", bound=Row)


class ShownRow(Row, frozen=True, kw_only=True):
    """A row of results with its labels for display. `label` is unique on the page.

    `role` says why the row does not compete to be the fastest. It is None for rows that compete.
    """

    short_label: str  # short enough for an axis
    full_label: str
    role: str | None = None  # "one worker", "limit" (never synchronises) or "less accurate" (than the margin allows)


def with_labels(row: Row, *, label: str, short_label: str, full_label: str, role: str | None = None) -> ShownRow:
    """Return a row as a `ShownRow` with the given labels and role."""
    fields = {name: getattr(row, name) for name in Row.__struct_fields__ if name != "label"}
    return ShownRow(**fields, label=label, short_label=short_label, full_label=full_label, role=role)


def fastest_row(rows: Sequence[R]) -> R | None:
    """Return the row with the verdict "fastest", or the only row.

    Returns None if there are several rows that were not compared with each other.
    """
    if len(rows) == 1:
        return rows[0]
    return next((row for row in rows if row.versus_fastest and row.versus_fastest.verdict == "fastest"), None)


def rivals(rows: Sequence[R]) -> list[R]:
    """Return the rows that compete to be the fastest.

    A competing row has several workers that synchronise, and a tuning did not find it too inaccurate. If there is no
    such row, rows that a tuning found too inaccurate compete instead. If no row has several workers that synchronise,
    all rows compete.
    """
    synchronised = [row for row in rows if row.workers > 1 and row.guarantee != "NONE"]
    return [row for row in synchronised if row.is_within is not False] or synchronised or list(rows)


def named_rows(rows: Sequence[tuple[Row, Mapping[str, str]]]) -> list[ShownRow]:
    """Return the rows with unique labels.

    Each row comes with a mapping of settings to their values. Labels that would otherwise be equal get the values that
    distinguish them. The name of the result's folder (key `from`) is added only if labels are equal even then.
    """
    labels = _distinct(rows)
    shorts = _short(labels, [row.label for row, _ in rows])
    competing = {id(row) for row in rivals([row for row, _ in rows])}
    return [
        with_labels(
            row,
            label=label if len(label) <= MAX_LABEL else short,
            short_label=short,
            full_label=label,
            role=None if id(row) in competing else _role(row),
        )
        for (row, _), label, short in zip(rows, labels, shorts, strict=True)
    ]


def names_to_explain(rows: Sequence[ShownRow]) -> list[tuple[str, str]]:
    """Return each short label that differs from the full one, together with the full label."""
    return [(row.short_label, row.full_label) for row in rows if row.short_label != row.full_label]


def _role(row: Row) -> str:
    if row.workers == 1:
        return "one worker"
    return "limit" if row.is_within is not False else "less accurate"


def _distinct(rows: Sequence[tuple[Row, Mapping[str, str]]]) -> list[str]:
    found = [_distinguished(row, notes, rows) for row, notes in rows]
    return [
        f"{label}, from {notes['from']}" if found.count(label) > 1 and "from" in notes else label
        for label, (_, notes) in zip(found, rows, strict=True)
    ]


def _distinguished(row: Row, notes: Mapping[str, str], rows: Sequence[tuple[Row, Mapping[str, str]]]) -> str:
    family = [(other, others) for other, others in rows if other.label == row.label]
    namesakes = [others for other, others in family if other.workers == row.workers]
    label = row.label
    if len({other.workers for other, _ in family}) > 1:
        label += f" on {counted(row.workers, 'worker')}"
    differing = [n for n in notes if n != "from" and len({others.get(n) for others in namesakes}) > 1]
    return ", ".join([label, *(f"no {n}" if notes[n] == "none" else f"{n} {notes[n]}" for n in differing)])


def _short(labels: Sequence[str], families: Sequence[str]) -> list[str]:
    """Return a short form of each label for an axis, with at most `TICK_LENGTH` characters.

    The short form of a longer label is its entry in `families` (the label without the settings that distinguish rows),
    truncated if needed. If several short forms would be equal, each gets a letter (a number from the 27th on).
    """
    cut = [_cut(family, TICK_LENGTH) for family in families]
    alike, letters, found = Counter(cut), Counter[str](), []
    for text, label, family in zip(cut, labels, families, strict=True):
        if len(label) <= TICK_LENGTH or alike[text] == 1:
            found.append(label if len(label) <= TICK_LENGTH else text)
            continue
        base = _cut(family, TICK_LENGTH - 3)
        letters[base] += 1
        found.append(f"{base} {_letter(letters[base])}")
    return found


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}\N{HORIZONTAL ELLIPSIS}"


def _letter(number: int) -> str:
    return chr(ord("A") + number - 1) if number <= 26 else str(number)
