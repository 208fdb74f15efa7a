"""Base class of stored results, which are immutable, have typed fields, and are written as JSON objects."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

Json = dict[str, Any]  # a plain JSON object, such as a recipe or a strategy's own metrics
Interval = tuple[float, float]  # low and high
Scalar = bool | int | float | str | None
Point = dict[str, Scalar | list[Scalar]]  # varied settings and their values, which identify a row of a study


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base class of stored results.

    A field declared with `= None` is left out of the JSON while its value is None. A field declared with `= null()` is
    written as null instead. Fields can also be read by their JSON key, such as `result["label"]`.
    """

    def __getitem__(self, key: str) -> Any:
        return getattr(self, _field_names(type(self))[key])

    def get(self, key: str, default: Any = None) -> Any:
        value = self[key] if key in _field_names(type(self)) else None
        return default if value is None else value

    def keys(self) -> Iterable[str]:
        """Return the keys of this value's JSON. Fields that are left out because they are None have no key."""
        return [key for key in _field_names(type(self)) if key in self]

    def __contains__(self, key: object) -> bool:
        names = _field_names(type(self))
        return key in names and (self[str(key)] is not None or key not in _omitted_if_none(type(self)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


@functools.cache
def _field_names(kind: type[Value]) -> dict[str, str]:
    """Return the field names of a result class by JSON key."""
    return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))


@functools.cache
def _omitted_if_none(kind: type[Value]) -> frozenset[str]:
    """Return the keys that are left out of the JSON while their value is None."""
    return frozenset(item.encode_name for item in msgspec.structs.fields(kind) if item.default is None)


V = TypeVar("V", bound=Value)


def null() -> Any:
    """Declare a field that defaults to None and is written as null."""
    return msgspec.field(default_factory=lambda: None)


def empty_list() -> Any:
    """Declare a field that defaults to an empty list and is written as [].

    With a default of `list`, msgspec would leave an empty list out of the JSON.
    """
    return msgspec.field(default_factory=_new_list)


def _new_list() -> list[Any]:
    return []


def changed(value: V, **changes: Any) -> V:
    """Return a copy of the value with some fields replaced."""
    return msgspec.structs.replace(value, **changes)


def to_json(value: Value) -> Json:
    """Convert a value to plain JSON values. NaN and infinity become null."""
    plain: Json = msgspec.json.decode(msgspec.json.encode(value))
    return plain
