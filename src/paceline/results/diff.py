"""Two runs or studies side by side."""

from __future__ import annotations

from typing import Any

from paceline.results.run import Target
from paceline.results.value import Interval, Value


class DiffSide(Value, frozen=True, kw_only=True):
    name: str
    folder: str
    kind: str
    status: str
    started: str


class DiffRow(Value, frozen=True, kw_only=True):
    """One strategy on both sides; pairs are A and B."""

    label: str
    labels: tuple[str, str]
    workers: tuple[int, int]
    iteration_s: tuple[float, float]
    ratio: float
    interval95: Interval | None
    interval_from: str | None  # repeats or steps
    verdict: str
    gate: str | None
    samples_per_s: tuple[float, float]
    test_accuracy: tuple[float | None, float | None]
    train_loss: tuple[float | None, float | None]
    sent_bytes: tuple[int, int]
    target: tuple[Target | None, Target | None]
    split: dict[str, tuple[float, float]] | None


class Diff(Value, frozen=True, kw_only=True):
    schema: int
    a: DiffSide
    b: DiffSide
    rows: list[DiffRow]
    only_a: list[str]
    only_b: list[str]
    recipe: dict[str, tuple[Any, Any]]  # keys in which the recipes differ
    environment: dict[str, tuple[Any, Any]]
    fail_if_slower_percent: float | None
    gate: str | None
