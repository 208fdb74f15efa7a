"""Lists in options: words and numbers separated by commas."""

from __future__ import annotations

from paceline.errors import UsageError


def words_in(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers_in(option: str, text: str, *, whole: bool = False) -> tuple[float, ...]:
    try:
        return tuple(int(word) if whole else float(word) for word in words_in(text))
    except ValueError:
        kind = "whole numbers" if whole else "numbers"
        raise UsageError(f"{option} {text!r} are not {kind} separated by commas") from None
