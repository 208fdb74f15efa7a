"""Format numbers, times, bytes and percentages as text, in one style for all renderers.

Formatters for columns leave the unit out, because it is in the heading. An unknown value (None) becomes an en dash.
"""

from __future__ import annotations

from collections.abc import Sequence

DASH = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
PLUS_MINUS = "\N{PLUS-MINUS SIGN}"

_BYTE_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def number(value: float | None, digits: int = 4) -> str:
    """Format a number without a unit, such as a loss, with at most `digits` significant digits."""
    return DASH if value is None else f"{value:.{digits}g}"


def significant(value: float | None) -> str:
    """Format a number with three significant digits. Only numbers below 0.001 have an exponent."""
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


def drift(value: float | None) -> str:
    """Format the distance of replicas from their mean with one significant digit, as only its magnitude matters."""
    return DASH if value is None else f"{value:.0e}" if value else "0"


def whole(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def seconds(value: float | None, digits: int = 2) -> str:
    """Format seconds for a column, with `digits` decimals."""
    return DASH if value is None else f"{value:.{digits}f}"


def milliseconds(value_s: float | None) -> str:
    """Format seconds as milliseconds for a column."""
    return DASH if value_s is None else f"{round(1000 * value_s, 2) + 0.0:.2f}"  # + 0.0 avoids -0.00


def short_milliseconds(value_s: float | None) -> str:
    """Format seconds as milliseconds for a narrow column: without decimals from 100 ms on."""
    return milliseconds(value_s) if value_s is None or abs(value_s) < 0.1 else f"{1000 * value_s:.0f}"


def duration(value_s: float) -> str:
    """Format seconds with the unit: as seconds from 1 s on, else as milliseconds."""
    return f"{significant(value_s)} s" if abs(value_s) >= 1 else f"{significant(value_s * 1e3)} ms"


def time_interval(bounds: Sequence[float] | None) -> str:
    """Format an interval of seconds as milliseconds for a column. A lower bound below zero becomes zero."""
    return DASH if not bounds else f"{milliseconds(max(bounds[0], 0.0))} to {milliseconds(bounds[1])}"


def duration_interval(bounds: Sequence[float]) -> str:
    return f"{duration(max(bounds[0], 0.0))} to {duration(bounds[1])}"


def is_wide(bounds: Sequence[float], mean: float) -> bool:
    """Return whether half the width of an interval is over half of the mean, so that a plus-minus sign misleads."""
    return bounds[1] - bounds[0] > mean


def plus_minus(bounds: Sequence[float] | None, mean: float) -> str:
    """Format half the width of an interval as a percentage of the mean, or as "too wide" if `is_wide`."""
    if not bounds:
        return DASH
    return "too wide" if is_wide(bounds, mean) else f"{PLUS_MINUS}{50 * (bounds[1] - bounds[0]) / mean:.0f} %"


def megabytes(num_bytes: float | None, digits: int = 2) -> str:
    """Format bytes as megabytes for a column, with `digits` decimals."""
    return DASH if num_bytes is None else f"{num_bytes / 1e6:,.{digits}f}"


def amount(num_bytes: float | None) -> str:
    """Format bytes with the unit that suits their number: B, kB, MB or GB."""
    if num_bytes is None:
        return DASH
    unit, size = next(((u, s) for u, s in _BYTE_UNITS if abs(num_bytes) >= s), ("B", 1.0))
    return f"{significant(num_bytes / size)} {unit}"


def byte_unit(largest: float) -> tuple[str, float]:
    """Return the unit that suits values up to `largest` bytes: its name, and the number of bytes in it."""
    return next(((u, s) for u, s in _BYTE_UNITS if largest >= s), ("bytes", 1.0))


def percentage(fraction: float | None, digits: int = 1) -> str:
    """Format a fraction in percent, with one decimal unless `digits` says otherwise."""
    return DASH if fraction is None else f"{100 * fraction:.{digits}f} %"


def share(fraction: float | None) -> str:
    """Format a measured fraction in whole percent."""
    return percentage(fraction, 0)


def bare_percent(fraction: float) -> str:
    """Format a fraction in percent without the percent sign. A value below 1 % has one decimal."""
    value = fraction * 100
    return f"{value:.1f}" if abs(value) < 1 else f"{value:.0f}"


def signed_percent(value_percent: float, digits: int = 1) -> str:
    """Format a change, given in percent, with a plus or minus sign and without the percent sign."""
    return f"{value_percent:+.{digits}f}"


def times(ratio: float | None) -> str:
    return DASH if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def factor(ratio: float | None) -> str:
    """Format a speed-up for a column, such as 2.67x."""
    return DASH if ratio is None else f"{ratio:.2f}x"


def times_interval(bounds: Sequence[float]) -> str:
    return f"{times(bounds[0])} to {times(bounds[1])}"


def bounded(ratio: float | None, bounds: Sequence[float] | None) -> str:
    """Format a ratio for a column, with its interval in brackets if it has one."""
    return times(ratio) + (f" ({times_interval(bounds)})" if bounds and ratio is not None else "")


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Join words as in "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def join_few(words: Sequence[str], limit: int = 6) -> str:
    """Join words as in "a, b and c". More than `limit` words become, for example, "a, b and 7 others"."""
    if len(words) <= limit:
        return join_words(words)
    return f"{', '.join(words[: limit - 1])} and {len(words) - limit + 1} others"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"


def without_first(count: int) -> str:
    """Say how many warm-up steps a mean leaves out, with a comma in front, or return "" if it leaves out none."""
    steps = "step" if count == 1 else f"{count:,} steps"
    return f", without the first {steps} (warm-up)" if count else ""


def ms(value_s: float | None) -> str:
    """Format seconds as milliseconds with three significant digits, so that very short times do not become 0."""
    return significant(None if value_s is None else value_s * 1e3)


def accuracy(fraction: float | None) -> str:
    """Format an accuracy in percent with two decimals, for charts."""
    return percentage(fraction, 2)


def short_duration(value_s: float) -> str:
    """Format seconds as microseconds, milliseconds or seconds with the unit, with about three significant digits."""
    for unit, scale in (("\N{MICRO SIGN}s", 1e6), ("ms", 1e3)):
        if value_s * scale < 999.5:
            return f"{_three(value_s * scale)} {unit}"
    return f"{_three(value_s)} s"


def gigabytes_per_s(bytes_per_s: float) -> str:
    """Format bytes per second as GB/s for a column."""
    return _three(bytes_per_s / 1e9)


def _three(value: float) -> str:
    if value == 0:
        return "0"
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.0995 else 4
    return f"{value:.{decimals}f}"


BINARY_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def binary_bytes(num_bytes: int) -> str:
    """Format bytes in powers of 1024, in the form that command-line options accept, such as 4K.

    A size that is not a whole number of units has three significant digits.
    """
    unit = next(unit for unit in reversed(BINARY_UNITS) if num_bytes >= BINARY_UNITS[unit] or not unit)
    size = BINARY_UNITS[unit]
    digits = 4 if num_bytes < 1 << 10 or num_bytes % size == 0 else 3
    return f"{num_bytes / size:.{digits}g}{unit}"
