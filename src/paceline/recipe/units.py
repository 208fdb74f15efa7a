"""Parse quantities with units: rates, times, sizes, percentages."""

from __future__ import annotations

import re

from paceline.errors import UsageError

RATES = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
MOST = 1e15  # of any unit
SIZES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def bits_per_s(key: str, text: str) -> float:
    """Parse a rate in decimal bits per second, as tc does: `100mbit` is 1e8."""
    return _quantity(key, text, RATES, "a rate such as 100mbit or 1gbit")


def seconds(key: str, text: str) -> float:
    """Parse a time: `1ms` is 0.001."""
    return _quantity(key, text, TIMES, "a time such as 500us or 1ms")


def num_bytes(key: str, text: str) -> int:
    """Parse a size: `2g` is 2 GiB."""
    return int(_quantity(key, text, SIZES, "a size such as 512m or 2g"))


def fraction(key: str, text: str) -> float:
    """Parse a percentage: `0.1%` is 0.001. The sign is required, since a bare 0.05 is ambiguous."""
    value = _quantity(key, text, {"%": 0.01}, "a percentage such as 0.1%")
    if value >= 1:
        raise UsageError(f"{key} {text!r} is too large; give a percentage below 100%")
    return value


def _quantity(key: str, text: str, units: dict[str, float] | dict[str, int], example: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z%]*)", text.strip().lower())
    if match is None or match[2] not in units or not 0 < float(match[1]) < MOST:
        raise UsageError(f"{key} {text!r} is not {example}")
    return float(match[1]) * units[match[2]]
