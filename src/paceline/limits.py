"""Time limits of waiting for workers, peers, servers and the rendezvous, all derived from `--timeout` (`timeout_s`).

`--timeout` is the longest time from a failure until the failed worker is named. Most of it is the limit of one
operation of a comm. The rest is reserved for finding out which worker failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DEFAULT_TIMEOUT_S = 60.0

# Limits that bound something else than waiting for a worker that trains; they do not depend on --timeout.
START_S = 120.0  # start of a worker process: importing torch is slow on a busy machine
CONNECT_S = 15  # connection of ssh to a host
STOP_S = 2.0  # between asking a process to end and killing it
DISK_S = 30.0  # wait for the disk at the end of a run


class Limit(NamedTuple):
    """One time limit, as `--verbose` prints it."""

    name: str
    seconds: float
    source: str  # how it is computed
    reason: str

    def __str__(self) -> str:
        return f"limits: {self.name} {self.seconds:g} s ({self.source}): {self.reason}"


@dataclass(frozen=True)
class Limits:
    """The limits that follow from one value of `--timeout`."""

    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def report_s(self) -> float:
        return max(self.timeout_s / 10, min(1.0, self.timeout_s / 2))

    @property
    def operation_s(self) -> float:
        return self.timeout_s - self.report_s

    @property
    def cause_s(self) -> float:
        return min(self.report_s / 2, 1.5)

    @property
    def heartbeat_s(self) -> float:
        return min(self.timeout_s / 10, 1.0)

    @property
    def silent_s(self) -> float:
        return 4 * self.heartbeat_s

    @property
    def goodbye_s(self) -> float:
        return self.timeout_s / 12

    @property
    def host_s(self) -> int:
        return max(int(self.timeout_s / 4), 1)

    def table(self) -> list[Limit]:
        """Return all limits: first those derived from the timeout, then the constant ones."""
        return [
            Limit("report", self.report_s, "timeout / 10, at least 1 s, at most half", "finding the failed worker"),
            Limit("operation", self.operation_s, "timeout - report", "one wait for a peer, server or the rendezvous"),
            Limit(
                "cause",
                self.cause_s,
                "report / 2, at most 1.5 s",
                "messages of further workers after the first that lost a peer",
            ),
            Limit("heartbeat", self.heartbeat_s, "timeout / 10, at most 1 s", "period of each worker's heartbeats"),
            Limit("silent", self.silent_s, "4 heartbeats", "a worker without heartbeats counts as stopped"),
            Limit("goodbye", self.goodbye_s, "timeout / 12", "a peer's last message when a comm closes"),
            Limit("host", self.host_s, "timeout / 4, at least 1 s", "period of ssh's probes; 3 without reply end it"),
            Limit("start", START_S, "constant", "starting a worker process, which imports torch"),
            Limit("connect", CONNECT_S, "constant", "connecting to a host over ssh"),
            Limit("stop", STOP_S, "constant", "ending a process politely before it is killed"),
            Limit("disk", DISK_S, "constant", "writing the last measurements of a run"),
        ]
