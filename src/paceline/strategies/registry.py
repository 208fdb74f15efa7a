"""Strategy registry, and the parser of `NAME[:option=value...][+codec[:option=value...]]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.codecs import build_codec
from paceline.errors import UsageError
from paceline.plugins import Registry, convert_options, split_words
from paceline.strategies.base import Strategy
from paceline.strategies.capabilities import check_contract

strategies: Registry[Strategy] = Registry("strategy", "paceline.strategies", Strategy)

# The text after the last plus is a codec if it matches this pattern; otherwise the plus is part of a file's path.
_CODEC = re.compile(r"[A-Za-z0-9-]*(:[^/]*)?")


def available_strategies() -> dict[str, type[Strategy]]:
    """Return the built-in strategies that can be used on this machine, by name."""
    return {name: strategy for name, strategy in strategies.classes.items() if not strategy.unavailable()}


@dataclass(frozen=True)
class StrategySpec:
    """A strategy as the user writes it, split into name, options and codec."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    codec: str = "fp32"  # with its options, as the user writes it

    @staticmethod
    def parse(text: str, default_codec: str = "fp32") -> StrategySpec:
        body, plus, codec = text.strip().rpartition("+")
        if not plus or not _CODEC.fullmatch(codec):
            body, codec = text.strip(), default_codec
        if not body or not codec or body.startswith(":") or codec.startswith(":"):
            raise UsageError(f"strategy {text!r} is not NAME[:option=value...][+codec[:option=value...]]")
        name, options = split_words("strategy", body)
        return StrategySpec(name, options, codec)

    def build(self) -> Strategy:
        """Create the strategy; raise UsageError for unknown names and invalid options."""
        strategy = strategies.get(self.name)
        check_contract(strategy)
        codec = build_codec(self.codec)
        values = convert_options("strategy", self.name, strategy, strategy.option_fields(), self.options)
        return strategy(codec=codec, **values)

    def __str__(self) -> str:
        words = ":".join([self.name, *(f"{key}={value}" for key, value in self.options)])
        return words if self.codec == "fp32" else f"{words}+{self.codec}"
