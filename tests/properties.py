"""Number of examples of property tests."""

from __future__ import annotations

from hypothesis import settings


def examples(number: int) -> settings:
    """Try up to `number` examples; the quick profile has a lower limit."""
    if settings.get_current_profile_name() == "quick":
        number = min(number, settings.default.max_examples)
    return settings(max_examples=number)
