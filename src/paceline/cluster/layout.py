"""What is to be built, in numbers: everything that the keeper of a cluster needs, as one line of JSON."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

LABEL = "paceline-"  # starts the name of every cgroup folder of ours
INTERFACE = "pl-"  # starts the name of a bridge, and of a node's interface
NAME_PATTERN = "[a-z0-9]{1,8}"  # an interface's name has room for 15 characters
MOST_NODES = 250  # addresses of one range

DIRECT, USER = "direct", "user"  # namespaces made with our own rights, or inside a user namespace

SWITCH_FD = 99  # where the keeper holds the bridge's namespace open, and from the next number on the nodes'
FIRST_NODE_FD = SWITCH_FD + 1


@dataclass(frozen=True)
class NodeLayout:
    """One node. What is None is not limited."""

    cpus: float | None = None
    memory_bytes: int | None = None
    bits_per_s: float | None = None
    latency_s: float | None = None
    loss_fraction: float | None = None
    peers_bits_per_s: dict[int, float] = field(default_factory=dict)  # nodes that it has a slower link to


@dataclass(frozen=True)
class Controller:
    """A cgroup controller: its version, and the folder that clusters get theirs in."""

    name: str
    version: int
    folder: str


def group_folder(controller: Controller, name: str) -> Path:
    """The folder of the cluster of that name."""
    return Path(controller.folder, f"{LABEL}{name}")


@dataclass(frozen=True)
class ClusterLayout:
    """A cluster before it is built. Its name is the label that everything of it carries."""

    name: str
    nodes: tuple[NodeLayout, ...]
    asked: str = ""  # as a user would write it
    subnet: str = "10.77.0"
    entry: str = DIRECT
    controllers: tuple[Controller, ...] = ()
    parent: int = 0  # process that the cluster ends with; 0: it is kept

    @property
    def bridge(self) -> str:
        return f"{INTERFACE}{self.name}-br"

    def interface(self, index: int) -> str:
        """The name of a node's interface, inside the node."""
        return f"{INTERFACE}{self.name}-{index}"

    def address(self, index: int) -> str:
        return f"{self.subnet}.{index + 1}"

    def group_folders(self) -> list[str]:
        """The cluster's cgroup folders; controllers of version 2 share one."""
        return list(dict.fromkeys(str(group_folder(one, self.name)) for one in self.controllers))

    def node_folders(self, index: int) -> list[str]:
        """The cgroup folders that a process of a node joins."""
        return [os.path.join(folder, f"node-{index}") for folder in self.group_folders()]

    def expected_bits_per_s(self, source: int, target: int) -> float | None:
        """What a connection from one node to another can reach, or None where nothing limits it."""
        limits = (
            self.nodes[source].bits_per_s,
            self.nodes[target].bits_per_s,
            self.nodes[source].peers_bits_per_s.get(target),
        )
        return min((limit for limit in limits if limit is not None), default=None)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> ClusterLayout:
        return msgspec.json.decode(text, type=ClusterLayout)
