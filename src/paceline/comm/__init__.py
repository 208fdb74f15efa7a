"""Communication backends ("comms"): point-to-point messages and collectives between workers."""

from paceline.comm.base import Comm, CommConfig, CommError
from paceline.comm.collectives import CompletedWork, Reduction, SharedVector, Work
from paceline.comm.traffic_counts import Counter, Operation, Wire
from paceline.plugins import Registry

comms: Registry[Comm] = Registry("comm", "paceline.comm", Comm, other_names=("auto",))

__all__ = [
    "Comm",
    "CommError",
    "SharedVector",
    "Counter",
    "CompletedWork",
    "Operation",
    "CommConfig",
    "Reduction",
    "Wire",
    "Work",
    "comms",
]
