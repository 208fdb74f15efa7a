"""Changed inputs of every kind are read or refused with one sentence; `benchmarks/fuzz.py` tries many more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hostile_readers import READERS
from paceline.errors import RunError, UsageError
from paceline.text import shortened


def refusals(name: str, count: int, folder: Path) -> list[str]:
    """Give changed inputs to a reader; return the sentences of refusals. Any other exception is raised."""
    sentences = []
    for number in range(count):
        chance = random.Random(f"{name} {number}")
        inner = folder / str(number)
        inner.mkdir()
        try:
            READERS[name].read(READERS[name].make(chance), inner, chance)
        except (UsageError, RunError) as error:
            sentences.append(shortened(str(error)))
    return sentences


@pytest.mark.parametrize("name", READERS)
def test_a_few_inputs(tmp_path: Path, name: str) -> None:
    sentences = refusals(name, 3 if name == "folder" else 30, tmp_path)
    assert sentences or name in (
        "folder",
        "spool",
    )  # every command ends with a sentence; rows after damage are left out
    assert all(0 < len(sentence) < 2000 for sentence in sentences)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", READERS)
def test_many_inputs(tmp_path: Path, name: str) -> None:
    sentences = refusals(name, 100 if name == "folder" else 1000, tmp_path)
    assert all(0 < len(sentence) < 2000 for sentence in sentences)
