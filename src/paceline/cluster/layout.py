"""Layout of an emulated cluster: all settings, passed as JSON to the keeper (the process that builds the cluster)."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

LABEL = "paceline-"  # prefix of the cgroup folders of clusters
INTERFACE = "pl-"  # prefix of a bridge's and of a node's interface name
NAME_PATTERN = "[a-z0-9]{1,8}"  # of a cluster's name; an interface name that contains it has at most 15 characters
NODE_PATTERN = "node-(0|[1-9][0-9]{0,2})"  # of the cgroup folder of a node
MOST_NODES = 250  # all nodes have addresses in one /24 subnet

DIRECT, USER = "direct", "user"  # namespaces created with our own privileges, or inside a user namespace

SWITCH_FD = 99  # the keeper's file descriptor of the bridge's network namespace; those of the nodes follow
FIRST_NODE_FD = SWITCH_FD + 1


@dataclass(frozen=True)
class NodeLayout:
    """Limits of one node. None means that there is no limit."""

    cpus: float | None = None
    memory_bytes: int | None = None
    bits_per_s: float | None = None
    latency_s: float | None = None
    loss_fraction: float | None = None
    peers_bits_per_s: dict[int, float] = field(default_factory=dict)  # rates of links to single peers, by index


@dataclass(frozen=True)
class Controller:
    """A cgroup controller: its name, its cgroup version, and the folder in which clusters create their cgroups."""

    name: str
    version: int
    folder: str


def group_folder(controller: Controller, name: str) -> Path:
    """Return the folder of the cgroup that the cluster `name` has for a controller."""
    return Path(controller.folder, f"{LABEL}{name}")


@dataclass(frozen=True)
class ClusterLayout:
    """All settings of a cluster. Its name is part of the names of its interfaces and cgroups."""

    name: str
    nodes: tuple[NodeLayout, ...]
    asked: str = ""  # the requested settings, as --cluster takes them
    subnet: str = "10.77.0"
    entry: str = DIRECT
    controllers: tuple[Controller, ...] = ()
    parent: int = 0  # id of the process with which the cluster ends; 0: it stays until `paceline cluster down`

    def __post_init__(self) -> None:
        """Refuse values that a keeper's command line must not have: they become parts of paths and commands."""
        is_valid = (
            re.fullmatch(NAME_PATTERN, self.name)
            and re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){2}", self.subnet)
            and len(self.nodes) <= MOST_NODES
            and self.entry in (DIRECT, USER)
            and all(
                os.path.normpath(one.folder) == one.folder and os.path.isabs(one.folder) for one in self.controllers
            )
        )
        if not is_valid:
            raise ValueError("these are not the settings of a cluster")

    @property
    def bridge(self) -> str:
        return f"{INTERFACE}{self.name}-br"

    def interface(self, index: int) -> str:
        """Return the name that a node's interface has inside the node."""
        return f"{INTERFACE}{self.name}-{index}"

    def address(self, index: int) -> str:
        return f"{self.subnet}.{index + 1}"

    def group_folders(self) -> list[str]:
        """Return the cgroup folders of the whole cluster. All controllers of version 2 share one folder."""
        return list(dict.fromkeys(str(group_folder(one, self.name)) for one in self.controllers))

    def node_folders(self, index: int) -> list[str]:
        """Return the cgroup folders whose limits apply to a node's processes."""
        return [os.path.join(folder, f"node-{index}") for folder in self.group_folders()]

    def expected_bits_per_s(self, source: int, target: int) -> float | None:
        """Return the highest rate from one node to another in bits per second, or None if it is not limited."""
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
