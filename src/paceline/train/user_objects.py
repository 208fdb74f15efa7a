"""Models, data and losses that the user passes as Python objects, registered under names that a recipe can contain.

A recipe refers to a registered object as `paceline.train.user_objects:NAME`, just as it refers to a function in a
user's file. Worker processes receive the objects through a pipe from their parent process.
"""

from __future__ import annotations

import copy
import pickle
import pickletools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from paceline.errors import UsageError

_objects: dict[str, object] = {}


def __getattr__(name: str) -> Any:
    try:
        return _objects[name]
    except KeyError:
        raise AttributeError(name) from None


@dataclass(frozen=True)
class CopyFactory:
    """Factory that copies a model, so that every run starts from the same weights."""

    model: nn.Module

    def __call__(self) -> nn.Module:
        return copy.deepcopy(self.model)


@dataclass(frozen=True)
class ConstantFactory:
    """Factory that always returns the same object."""

    value: Any

    def __call__(self) -> Any:
        return self.value


def register(name: str, value: Any) -> str:
    """Register an object under a name and return the reference to it."""
    _objects[name] = value
    return f"{__name__}:{name}"


def pack(names: Sequence[str]) -> bytes:
    """Pickle the objects registered under `names` for worker processes.

    Raises UsageError for objects that cannot be pickled, or whose class or function is defined in the main program.
    """
    values = {name: _objects[name] for name in names}
    try:
        data = pickle.dumps(values)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"these objects cannot be sent to worker processes ({reason}); {_REMEDY}") from error
    words = [argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)]
    if "__main__" in words:
        name = words[words.index("__main__") + 1]
        raise UsageError(f"worker processes cannot import {name!r}, which is defined in the main program; {_REMEDY}")
    return data


_REMEDY = "define them in a file, and import them from there or pass its name: 'file.py:factory'"


def unpack(data: bytes) -> None:
    """Register the objects that the parent process packed.

    Pass no bytes from any other source: unpickling them can run arbitrary code.
    """
    _objects.update(pickle.loads(data))


def as_factory(model: nn.Module | Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Return a factory for a model: one that copies it, or the argument itself if it is a factory already."""
    return CopyFactory(model) if isinstance(model, nn.Module) else model
