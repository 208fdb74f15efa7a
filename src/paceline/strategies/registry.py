"""From words to a strategy: `NAME[:option=value...][+codec]`."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Any

from paceline.codecs import Codec, codecs
from paceline.errors import UsageError, unknown
from paceline.plugins import Registry, is_reference
from paceline.strategies.base import Strategy

strategies: Registry[Strategy] = Registry("strategy", "paceline.strategies", Strategy)


def available_strategies() -> dict[str, type[Strategy]]:
    """Those of our strategies that can be used on this machine."""
    return {name: strategy for name, strategy in strategies.classes.items() if not strategy.unavailable()}


@dataclass(frozen=True)
class StrategySpec:
    """A strategy as the user writes it."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    codec: str = "fp32"

    @staticmethod
    def parse(text: str, default_codec: str = "fp32") -> StrategySpec:
        body, plus, codec = text.strip().rpartition("+")
        if not plus or (codec and not codec.replace("-", "").isalnum()):  # a plus may also stand in a file's path
            body, codec = text.strip(), default_codec
        name, *words = body.split(":")
        if words and is_reference(f"{name}:{words[0]}"):
            name, *words = f"{name}:{words[0]}", *words[1:]
        if not name or not codec:
            raise UsageError(f"strategy {text!r} is not NAME[:option=value...][+codec]")
        pairs = [word.partition("=") for word in words]
        for key, equals, _ in pairs:
            if not equals:
                raise UsageError(f"strategy {text!r}: {key!r} is not option=value")
        return StrategySpec(name, tuple((key, value) for key, _, value in pairs), codec)

    def build(self) -> Strategy:
        """A fresh strategy; every mistake in the words is found here."""
        strategy = strategies.get(self.name)
        codec: Codec = codecs.get(self.codec)()
        known = strategy.option_fields()
        hints = typing.get_type_hints(strategy)
        values: dict[str, Any] = {}
        for key, text in self.options:
            if key not in known:
                if not known:
                    raise UsageError(f"strategy {self.name!r} has no options, but {key!r} was given")
                raise unknown(f"option of strategy {self.name}", key, known)
            values[key] = _convert(f"option {key} of strategy {self.name}", hints[key], text)
        return strategy(codec=codec, **values)

    def __str__(self) -> str:
        words = ":".join([self.name, *(f"{key}={value}" for key, value in self.options)])
        return words if self.codec == "fp32" else f"{words}+{self.codec}"


def _convert(what: str, hint: Any, text: str) -> Any:
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise UsageError(f"{what} must be true or false, not {text!r}")
        return text.lower() == "true"
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        if text not in choices:
            raise UsageError(f"{what} must be {' or '.join(choices)}, not {text!r}")
        return text
    try:
        return hint(text)
    except ValueError:
        raise UsageError(f"{what} must be {_TYPE_NAMES.get(hint, hint.__name__)}, not {text!r}") from None


_TYPE_NAMES = {int: "a whole number", float: "a number"}
