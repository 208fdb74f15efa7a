"""Names of rows: the strategy, and only what tells it from its namesakes, in the words in which a user wrote it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.recipe import Recipe
from paceline.report.numbers import counted

MAX_LABEL = 60  # characters; a longer name is for a table of names, and a short one stands for it
TICK_LENGTH = 22  # characters of a name at an axis


def value_text(recipe: Recipe, key: str) -> str:
    """A recipe's value as a user writes it."""
    if key == "train.batch_size":
        return str(recipe.batch_size)
    section, dot, name = key.partition(".")
    value = getattr(getattr(recipe, section), name) if dot else getattr(recipe, section)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return " plus ".join(str(item) for item in value) if value else "none"
    return "unset" if value is None else str(value)


def key_text(key: str) -> str:
    """A recipe's key without its section, unless that is all that says what it is."""
    section, _, name = key.rpartition(".")
    return section if name == "name" and section else name


def named(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]]) -> list[dict[str, Any]]:
    """Results with names of their own: `label`, `short_label` for an axis and `full_label` for who wants all of it.

    Each comes with what may tell it from its namesakes besides the number of workers, by its name.
    """
    labels = _distinct(rows)
    families = [str(result["label"]) for result, _ in rows]
    shorts = _short(labels, families)
    return [
        {
            **result,
            "label": label if len(label) <= MAX_LABEL else short,
            "short_label": short,
            "full_label": label,
        }
        for (result, _), label, short in zip(rows, labels, shorts, strict=True)
    ]


def names_to_explain(results: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Short names that stand for longer ones somewhere on the page, each with the whole."""
    names = [(str(r.get("short_label", r["label"])), str(r.get("full_label", r["label"]))) for r in results]
    return [(short, full) for short, full in names if short != full]


def _distinct(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]]) -> list[str]:
    """The folder, under `from`, only where nothing else tells two apart."""
    found = [_told_apart(result, notes, rows) for result, notes in rows]
    return [
        f"{label}, from {notes['from']}" if found.count(label) > 1 and "from" in notes else label
        for label, (_, notes) in zip(found, rows, strict=True)
    ]


def _told_apart(
    result: Mapping[str, Any],
    notes: Mapping[str, str],
    rows: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]],
) -> str:
    family = [(other, others) for other, others in rows if other["label"] == result["label"]]
    namesakes = [others for other, others in family if other["workers"] == result["workers"]]
    label = str(result["label"])
    if len({other["workers"] for other, _ in family}) > 1:
        label += f" on {counted(result['workers'], 'worker')}"
    differing = [n for n in notes if n != "from" and len({others.get(n) for others in namesakes}) > 1]
    return ", ".join([label, *(f"no {n}" if notes[n] == "none" else f"{n} {notes[n]}" for n in differing)])


def _short(labels: Sequence[str], families: Sequence[str]) -> list[str]:
    """Names that fit an axis, no two the same: the end cut off where that tells them apart, else lettered."""
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
