"""Models, data and losses that are objects instead of names: found by reference, like a user's own file.

A recipe names its parts. What is given as an object is kept here under a name, and the recipe says
`paceline.train.user_objects:NAME`; worker processes receive the objects through their parent's own pipe.
"""

from __future__ import annotations

import copy
import pickle
import pickletools
from collections.abc import Callable
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
class Copies:
    """Builds a model by copying one: every run starts from the same weights."""

    model: nn.Module

    def __call__(self) -> nn.Module:
        return copy.deepcopy(self.model)


@dataclass(frozen=True)
class Constant:
    """Hands out the same object every time."""

    value: Any

    def __call__(self) -> Any:
        return self.value


def give(name: str, value: Any) -> str:
    """Keep an object under a name; the reference to it."""
    _objects[name] = value
    return f"{__name__}:{name}"


def packed(names: list[str]) -> bytes:
    """Objects as bytes for the workers' pipes; raises for what another process could not find again."""
    values = {name: _objects[name] for name in names}
    try:
        data = pickle.dumps(values)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"worker processes cannot be given these objects ({reason}); {_REMEDY}") from error
    words = [argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)]
    if "__main__" in words:
        name = words[words.index("__main__") + 1]
        raise UsageError(f"worker processes cannot find {name!r}, which is defined in the main program; {_REMEDY}")
    return data


_REMEDY = "put what they are made of into a file, and import it from there or give its name: 'file.py:factory'"


def unpack(data: bytes) -> None:
    """Keep the objects that the parent of this process packed; only for bytes from a pipe of its own."""
    _objects.update(pickle.loads(data))


def as_factory(model: nn.Module | Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    return Copies(model) if isinstance(model, nn.Module) else model
