"""The base of every stored value: frozen, typed, written to JSON under its field names."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

Json = dict[str, Any]  # an object as it stands in a file: recipes, metrics that a strategy names itself
Interval = tuple[float, float]  # low and high
Scalar = bool | int | float | str | None
Point = dict[str, Scalar | list[Scalar]]  # recipe keys with the values that tell one row from another


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A typed result.

    A field that defaults to `None` is left out of the JSON while it is None; one declared with `null()` is written as
    null. Fields can also be read by key, as in the JSON: `result["label"]`.
    """

    def __getitem__(self, key: str) -> Any:
        return getattr(self, _field_names(type(self))[key])

    def get(self, key: str, default: Any = None) -> Any:
        value = self[key] if key in _field_names(type(self)) else None
        return default if value is None else value

    def keys(self) -> Iterable[str]:
        """The keys of the JSON; a key whose value is None by default is not among them."""
        return [key for key in _field_names(type(self)) if key in self]

    def __contains__(self, key: object) -> bool:
        names = _field_names(type(self))
        return key in names and (self[str(key)] is not None or key not in _left_out(type(self)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


@functools.cache
def _field_names(kind: type[Value]) -> dict[str, str]:
    """The name of a field by its key in the JSON."""
    return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))


@functools.cache
def _left_out(kind: type[Value]) -> frozenset[str]:
    """The keys that the JSON leaves out while their value is None."""
    return frozenset(item.encode_name for item in msgspec.structs.fields(kind) if item.default is None)


V = TypeVar("V", bound=Value)


def null() -> Any:
    """The default of a field that is None until known and is written as null."""
    return msgspec.field(default_factory=_none)


def _none() -> None:
    return None


def changed(value: V, **changes: Any) -> V:
    """The value with some fields replaced."""
    return msgspec.structs.replace(value, **changes)


def to_json(value: Value) -> Json:
    """The value as plain JSON values; NaN and infinity become null, because JSON has neither."""
    plain: Json = msgspec.json.decode(msgspec.json.encode(value))
    return plain
