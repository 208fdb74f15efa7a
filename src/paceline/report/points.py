"""What sentences are made of: one point per subject, and the row that all others are measured by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Point:
    """One sentence or a few about one subject; a problem is something that the reader has to know first."""

    subject: str
    text: str
    is_problem: bool = False


def fastest_row(results: Sequence[Result]) -> Result | None:
    """None where results were not compared, because they cannot be; a result on its own is its own fastest."""
    if len(results) == 1:
        return results[0]
    return next((r for r in results if r.get("versus_fastest", {}).get("verdict") == "fastest"), None)


def rivals(results: Sequence[Result]) -> list[Result]:
    """Who can be the fastest: those that synchronise and were not found to learn less, or all where none does."""
    synchronised = [r for r in results if r["workers"] > 1 and r["guarantee"] != "NONE"]
    return [r for r in synchronised if r.get("is_within", True)] or synchronised or list(results)


def with_roles(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Results with the `role` of those that are no rivals: one worker, the limit without agreement, who learnt less."""
    racing = [id(result) for result in rivals(results)]
    roles = [None if id(result) in racing else _role(result) for result in results]
    return [{**result, "role": role} for result, role in zip(results, roles, strict=True)]


def _role(result: Result) -> str:
    if result["workers"] == 1:
        return "one worker"
    return "limit" if result.get("is_within", True) else "less accurate"
