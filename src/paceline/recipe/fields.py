"""Base class that checks the types and bounds of values in each section of a recipe (all settings of a run)."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from paceline.errors import UsageError, unknown
from paceline.parsing import LARGEST_WHOLE, TYPE_NAMES, whole_number


def option(
    default: Any,
    help: str,
    *,
    flag: str = "",
    choices: tuple[str, ...] = (),
    least: float | None = None,
    most: float | None = None,
    is_repeated: bool = False,
) -> Any:
    """Declare a recipe field with its default, help text, command-line option (`flag`) and bounds.

    `is_repeated` marks a list whose items contain commas: on the command line, its option is repeated for every item.
    """
    metadata = {
        "help": help,
        "flag": flag,
        "choices": choices,
        "least": least,
        "most": most,
        "is_repeated": is_repeated,
    }
    if isinstance(default, list | tuple):
        return field(default_factory=lambda: tuple(default), metadata=metadata)
    return field(default=default, metadata=metadata)


class RecipeSection:
    """A group of related recipe keys, such as those of the optimiser.

    Construction checks the type and bounds of each value, and raises UsageError if one is invalid.
    """

    def __post_init__(self) -> None:
        prefix = f"{self.section}." if self.section else ""
        own: typing.Any = type(self)
        hints = hints_of(own)
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            if not dataclasses.is_dataclass(hints[item.name]):
                value = getattr(self, item.name)
                if item.metadata.get("is_repeated") and isinstance(value, str):
                    value = [value]
                value = _coerce(f"{prefix}{item.name}", hints[item.name], value)
                object.__setattr__(self, item.name, value)
                _check_bounds(f"{prefix}{item.name}", value, item.metadata)

    section: typing.ClassVar[str] = ""


Changes = dict[str, Any]  # dotted recipe keys such as `train.epochs`, with new values that `Recipe.replace` checks


@functools.cache  # resolving hints takes longer than the rest of building a recipe
def hints_of(cls: Any) -> dict[str, Any]:
    """Return the types of a section's fields by name."""
    return typing.get_type_hints(cls)


def _coerce(key: str, hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType):
        parts = [part for part in hint.__args__ if part is not type(None)]
        if value is None and len(parts) < len(hint.__args__):
            return None
        # A number as text, as on the command line, is the number.
        if int in parts and isinstance(value, str) and (number := whole_number(value)) is not None:
            value = number
        hint = next((part for part in parts if type(value) is part), parts[0])
    if isinstance(value, int) and abs(value) >= LARGEST_WHOLE:
        raise UsageError(f"{key} must be a number within 64 bits; the given number is larger")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if typing.get_origin(hint) is tuple:
        words = value.split(",") if isinstance(value, str) else value
        if isinstance(words, list | tuple) and all(isinstance(word, str) for word in words):
            return tuple(word.strip() for word in words if word.strip())
        raise UsageError(f"{key} must be a list of strings, not {value!r}")
    if type(value) is not hint:
        raise UsageError(f"{key} must be {TYPE_NAMES[hint]}, not {value!r}")
    return value


def _check_bounds(key: str, value: Any, metadata: Mapping[str, Any]) -> None:
    if metadata.get("choices") and value not in metadata["choices"]:
        raise unknown(key, str(value), metadata["choices"])
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{key} must be a finite number, not {value}")
    if isinstance(value, str):
        return
    least = metadata.get("least")
    if least is not None and value is not None and not value >= least:
        raise UsageError(f"{key} must be at least {least:g}, not {value}")
    most = metadata.get("most")
    if most is not None and value is not None and not value <= most:
        named = f"{metadata['flag']} ({key})" if metadata.get("flag") else key
        hint = f": it is a fraction, {value / 100:g} for {value:g} %" if most == 1 and value <= 100 else ""
        raise UsageError(f"{named} must be at most {most:g}, not {value:g}{hint}")
