"""How many examples a property test tries."""

from __future__ import annotations

from hypothesis import settings


def examples(number: int) -> settings:
    """Up to `number` examples; the quick profile never tries more than its own limit."""
    if settings.get_current_profile_name() == "quick":
        number = min(number, settings.default.max_examples)
    return settings(max_examples=number)
