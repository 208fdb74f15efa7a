"""Numbers as people read them; a value that is not there is an en dash."""

from __future__ import annotations

from collections.abc import Sequence

DASH = "\N{EN DASH}"


def significant(value: float | None) -> str:
    """Three significant digits, without exponents where a reader can do without."""
    if value is None:
        return DASH
    value = float(f"{value:.2e}")  # rounded first, so that 9.999 is 10.0 and not 10.00
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 100:
        return f"{value:,.0f}"
    if size < 1e-3:
        return f"{value:.2e}"
    decimals = 1 if size >= 10 else 2 if size >= 1 else 3 if size >= 0.1 else 4 if size >= 0.01 else 5
    return f"{value:.{decimals}f}"


def milliseconds(seconds: float | None) -> str:
    """Without the unit: it stands in the column's head."""
    return significant(None if seconds is None else seconds * 1e3)


def duration(seconds: float) -> str:
    """With the unit that suits it."""
    return f"{significant(seconds)} s" if seconds >= 1 else f"{milliseconds(seconds)} ms"


def megabytes(num_bytes: float | None) -> str:
    return significant(None if num_bytes is None else num_bytes / 1e6)


def amount(num_bytes: float | None) -> str:
    """Bytes with the unit that suits them."""
    if num_bytes is None:
        return DASH
    unit, size = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if abs(num_bytes) >= s), ("B", 1.0))
    return f"{significant(num_bytes / size)} {unit}"


def byte_unit(largest: float) -> tuple[str, float]:
    """The unit for an axis that reaches that far, and what one of it is in bytes."""
    return next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if largest >= s), ("bytes", 1.0))


def whole(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def accuracy(fraction: float | None) -> str:
    return DASH if fraction is None else f"{fraction * 100:.2f} %"


def percent(fraction: float) -> str:
    """Without the sign, as coarse as is honest: a measured difference is no more exact than a percent."""
    value = fraction * 100
    return f"{value:.1f}" if abs(value) < 1 else f"{value:.0f}"


def times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def few(words: Sequence[str], limit: int = 6) -> str:
    """a, b and 7 others: a sentence is no table."""
    if len(words) <= limit:
        return listed(words)
    return f"{', '.join(words[: limit - 1])} and {len(words) - limit + 1} others"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
