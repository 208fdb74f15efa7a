"""Parse numbers, lists, TOML and JSON from users; invalid input raises UsageError with one sentence."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from typing import Any, TypeVar

from paceline.errors import UsageError

T = TypeVar("T")
Table = dict[str, Any]  # a TOML table: plain values, lists and nested tables

LARGEST_WHOLE = 2**64  # what TOML, numpy and torch's seeds can hold; Python itself cannot print 5,000 digits
MOST_LEVELS = 32  # of nested tables and lists


def whole_number(text: str) -> int | None:
    """Parse ASCII digits; return None for anything else, such as `²`, and for numbers of more than 18 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def words_in(text: str) -> tuple[str, ...]:
    """Split a comma-separated list; empty items are dropped."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers_in(option: str, text: str, *, whole: bool = False) -> tuple[float, ...]:
    """Parse a comma-separated list of numbers; `option` names it in errors."""
    try:
        return tuple(int(word) if whole else float(word) for word in words_in(text))
    except ValueError:
        kind = "whole numbers" if whole else "numbers"
        raise UsageError(f"{option} {text!r} are not {kind} separated by commas") from None


def first_repeated(words: Sequence[T]) -> T | None:
    """Return the first item that occurs more than once, or None."""
    return next((word for word in words if words.count(word) > 1), None)


def read_toml(text: str, what: str) -> Table:
    """Parse a TOML document; `what` names it in errors."""
    try:
        return _bounded_toml(text, what)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{what} is not valid TOML: {error}") from None


def read_toml_value(text: str, what: str) -> Any:
    """Parse a TOML value; return the text itself if it is not one."""
    try:
        found = _bounded_toml(f"value = {text}", what)
    except tomllib.TOMLDecodeError:
        return text
    return found["value"] if len(found) == 1 else text


def _bounded_toml(text: str, what: str) -> Table:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise UsageError(_too_deep(what)) from None
    except ValueError:  # from Python's limit on the digits of a number
        raise UsageError(_too_large(what)) from None
    _check(found, what, levels=MOST_LEVELS)
    return found


def read_json(text: str, what: str) -> Any:
    """Parse JSON; `what` names it in errors."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{what} is not JSON: {error}") from None
    except RecursionError:
        raise UsageError(_too_deep(what)) from None
    except ValueError:  # from Python's limit on the digits of a number
        raise UsageError(_too_large(what)) from None


def _check(value: Any, what: str, *, levels: int) -> None:
    if isinstance(value, int):
        if abs(value) >= LARGEST_WHOLE:
            raise UsageError(_too_large(what))
    elif isinstance(value, dict | list):
        if not levels:
            raise UsageError(_too_deep(what))
        for item in value.values() if isinstance(value, dict) else value:
            _check(item, what, levels=levels - 1)


def _too_deep(what: str) -> str:
    return f"{what} is nested too deep"


def _too_large(what: str) -> str:
    return f"{what} holds a whole number beyond 64 bits"
