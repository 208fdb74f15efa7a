"""Parse numbers, lists, quantities, TOML and JSON from users; invalid input raises UsageError with one sentence."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from paceline.errors import UsageError

T = TypeVar("T")
Table = dict[str, Any]  # a TOML table: plain values, lists and nested tables

LARGEST_WHOLE = 2**64  # whole numbers must be smaller: torch's seeds have 64 bits, and Python cannot print 5,000 digits
MOST_LEVELS = 32  # deepest nesting of tables and lists
TYPE_NAMES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}

RATES = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
SIZES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
MOST_OF_A_UNIT = 1e15


def whole_number(text: str) -> int | None:
    """Parse a whole number of ASCII digits.

    Returns None for any other text, such as `²`, and for numbers of more than 18 digits.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def words_in(text: str) -> tuple[str, ...]:
    """Split a comma-separated list, and drop empty items."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers_in(option: str, text: str, *, whole: bool = False) -> tuple[float, ...]:
    """Parse a comma-separated list of numbers. `option` is the name of the option for error messages."""
    try:
        return tuple(int(word) if whole else float(word) for word in words_in(text))
    except ValueError:
        kind = "whole numbers" if whole else "numbers"
        raise UsageError(f"{option} {text!r} are not {kind} separated by commas") from None


def first_repeated(words: Sequence[T]) -> T | None:
    """Return the first item that occurs more than once, or None."""
    return next((word for word in words if words.count(word) > 1), None)


def bits_per_s(key: str, text: str) -> float:
    """Parse a rate into bits per second: `100mbit` is 1e8. `key` names the setting in error messages."""
    return _quantity(key, text, RATES, "a rate such as 100mbit or 1gbit")


def seconds(key: str, text: str) -> float:
    """Parse a time into seconds: `1ms` is 0.001."""
    return _quantity(key, text, TIMES, "a time such as 500us or 1ms")


def num_bytes(key: str, text: str) -> int:
    """Parse a size into bytes: `2g` is 2 GiB."""
    return int(_quantity(key, text, SIZES, "a size such as 512m or 2g"))


def fraction(key: str, text: str) -> float:
    """Parse a percentage into a fraction: `0.1%` is 0.001. The percent sign is required, since 0.05 is ambiguous."""
    value = _quantity(key, text, {"%": 0.01}, "a percentage such as 0.1%")
    if value >= 1:
        raise UsageError(f"{key} {text!r} is too large; give a percentage below 100%")
    return value


def _quantity(key: str, text: str, units: dict[str, float] | dict[str, int], example: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z%]*)", text.strip().lower())
    if match is None or match[2] not in units or not 0 < float(match[1]) < MOST_OF_A_UNIT:
        raise UsageError(f"{key} {text!r} is not {example}")
    return float(match[1]) * units[match[2]]


def read_toml(text: str, what: str) -> Table:
    """Parse a TOML document. `what` is the document's name in error messages."""
    try:
        return _bounded_toml(text, what)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{what} is not valid TOML: {error}") from None


def read_toml_value(text: str, what: str) -> Any:
    """Parse a TOML value. Return the text itself if it is not one valid TOML value."""
    try:
        table = _bounded_toml(f"value = {text}", what)
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text


def _bounded_toml(text: str, what: str) -> Table:
    table: Table = _load(tomllib.loads, text, what)
    _check_limits(table, what, levels=MOST_LEVELS)
    return table


def read_json(text: str, what: str) -> Any:
    """Parse JSON. `what` is the name of the text in error messages."""
    try:
        return _load(json.loads, text, what)
    except json.JSONDecodeError as error:
        raise UsageError(f"{what} is not JSON: {error}") from None


def _load(load: Callable[[str], Any], text: str, what: str) -> Any:
    try:
        return load(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError):
        raise
    except RecursionError:
        raise UsageError(_too_deep(what)) from None
    except ValueError:  # Python limits the number of digits that it converts
        raise UsageError(_too_large(what)) from None


def _check_limits(value: Any, what: str, *, levels: int) -> None:
    if isinstance(value, int):
        if abs(value) >= LARGEST_WHOLE:
            raise UsageError(_too_large(what))
    elif isinstance(value, dict | list):
        if not levels:
            raise UsageError(_too_deep(what))
        for item in value.values() if isinstance(value, dict) else value:
            _check_limits(item, what, levels=levels - 1)


def _too_deep(what: str) -> str:
    return f"{what} is nested too deep"


def _too_large(what: str) -> str:
    return f"{what} holds a whole number beyond 64 bits"
