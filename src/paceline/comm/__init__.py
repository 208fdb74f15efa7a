"""How bytes move between workers."""

from paceline.comm.base import Comm, CommError, Counter, Done, Operation, Place, Wire, Work
from paceline.comm.lending import Common, Reduction
from paceline.plugins import Registry

comms: Registry[Comm] = Registry("comm", "paceline.comm", Comm, also=("auto",))

__all__ = ["Comm", "CommError", "Common", "Counter", "Done", "Operation", "Place", "Reduction", "Wire", "Work", "comms"]
