"""The cluster section of a recipe (emulated nodes), and parsing of `--cluster`."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any

from paceline.errors import UsageError, unknown
from paceline.parsing import whole_number
from paceline.recipe.fields import Changes, RecipeSection, option
from paceline.recipe.units import bits_per_s, fraction, num_bytes, seconds

EXAMPLE = "nodes=4,cpus=0.5,bandwidth=1gbit"


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(RecipeSection):
    """Emulated nodes: their number, and the link, CPU share and memory of each."""

    section: typing.ClassVar[str] = "cluster"
    nodes: int = option(0, "nodes to emulate on this machine (0: none, workers are plain processes)", least=0)
    cpus: float | None = option(None, "cores of each node, as 0.5; unset: not limited", least=0.01)
    bandwidth: str = option("", "rate of each node's link in both directions, as 100mbit or 1gbit; empty: not shaped")
    latency: str = option("", "delay of each node's link, as 1ms; empty: none")
    loss: str = option("", "share of packets that get lost, as 0.1%; empty: none")
    memory: str = option("", "most memory of each node, as 2g; empty: not limited")
    links: tuple[str, ...] = option((), "rates between two nodes, as 0-2:100mbit", is_repeated=True)
    slow: tuple[str, ...] = option((), "nodes with a part of the others' cores only, as 3:0.5", is_repeated=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [item.name for item in dataclasses.fields(self) if getattr(self, item.name) != _default(item)]
        if given and not self.nodes:
            raise UsageError(
                f"cluster.{given[0]} is set, but cluster.nodes is 0; set the number of nodes (--cluster nodes=N)"
            )
        # Reading each quantity checks it.
        _ = self.bits_per_s, self.latency_s, self.loss_fraction, self.memory_bytes, self.link_bits_per_s, self.slowness

    def __str__(self) -> str:
        """Return the form that `--cluster` takes; empty if there are no nodes."""
        words = []
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            for one in value if isinstance(value, tuple) else [value]:
                if one:
                    words.append(f"{item.name}={one:g}" if isinstance(one, float) else f"{item.name}={one}")
        return ",".join(words)

    @property
    def bits_per_s(self) -> float | None:
        """Rate of each node's link, or None if it is not shaped."""
        return bits_per_s("cluster.bandwidth", self.bandwidth) if self.bandwidth else None

    @property
    def latency_s(self) -> float | None:
        return seconds("cluster.latency", self.latency) if self.latency else None

    @property
    def loss_fraction(self) -> float | None:
        return fraction("cluster.loss", self.loss) if self.loss else None

    @property
    def memory_bytes(self) -> int | None:
        return num_bytes("cluster.memory", self.memory) if self.memory else None

    @property
    def link_bits_per_s(self) -> dict[tuple[int, int], float]:
        """Rates between pairs of nodes, the smaller number first."""
        found: dict[tuple[int, int], float] = {}
        for word in self.links:
            pair, _, rate = word.partition(":")
            ends = pair.split("-")
            if len(ends) != 2 or not rate or any(whole_number(end) is None for end in ends):
                raise UsageError(f"cluster.links {word!r} is not two nodes and a rate such as 0-2:100mbit")
            first, second = sorted(self._node("links", word, end) for end in ends)
            if first == second or (first, second) in found:
                reason = "joins a node with itself" if first == second else "is the second for the same two nodes"
                raise UsageError(f"cluster.links {word!r} {reason}")
            found[first, second] = bits_per_s("cluster.links", rate)
        return found

    @property
    def slowness(self) -> dict[int, float]:
        """Fraction of the other nodes' cores that each slow node has."""
        found: dict[int, float] = {}
        for word in self.slow:
            node, _, text = word.partition(":")
            try:
                part = float(text)
            except ValueError:
                part = 0.0
            if whole_number(node) is None or not 0 < part <= 1:
                raise UsageError(f"cluster.slow {word!r} is not a node and a part from 0 to 1 such as 3:0.5")
            number = self._node("slow", word, node)
            if number in found:
                raise UsageError(f"cluster.slow {word!r} is the second for node {number}")
            found[number] = part
        return found

    def _node(self, key: str, word: str, text: str) -> int:
        number = whole_number(text)
        if number is None or number >= self.nodes:
            raise UsageError(f"cluster.{key} {word!r}: node {text} is not one of 0 to {self.nodes - 1} (cluster.nodes)")
        return number


def parse_cluster(text: str) -> Changes:
    """Parse `nodes=4,cpus=0.5,links=0-2:100mbit` into changes of the whole section; other keys get their defaults."""
    fields = {item.name: item for item in dataclasses.fields(ClusterConfig)}
    words: dict[str, list[str]] = {}
    for word in (piece.strip() for piece in text.split(",")):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not value:
            raise UsageError(f"--cluster {text!r}: {word!r} is not key=value; an example: {EXAMPLE}")
        if name not in fields:
            raise unknown("key in --cluster", name, fields)
        words.setdefault(name, []).append(value)
    if "nodes" not in words:
        raise UsageError(f"--cluster {text!r} does not say how many nodes; an example: {EXAMPLE}")
    changes = {name: _read(name, given) for name, given in words.items()}
    ClusterConfig(**changes)
    return {f"cluster.{name}": changes.get(name, _default(item)) for name, item in fields.items()}


def cluster_of(text: str | None) -> ClusterConfig:
    """Parse `--cluster` into a section without a recipe; None means no cluster."""
    changes = parse_cluster(text) if text is not None else {}
    return ClusterConfig(**{key.removeprefix("cluster."): value for key, value in changes.items()})


def _read(name: str, given: list[str]) -> Any:
    if name in ("links", "slow"):
        return tuple(given)
    if len(given) > 1:
        raise UsageError(f"--cluster names {name} twice: {given[0]} and {given[1]}")
    if name not in ("nodes", "cpus"):
        return given[0]
    try:
        return int(given[0]) if name == "nodes" else float(given[0])
    except ValueError:
        kind = "a whole number" if name == "nodes" else "a number"
        raise UsageError(f"--cluster {name} must be {kind}, not {given[0]!r}") from None


def _default(item: dataclasses.Field[Any]) -> Any:
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
