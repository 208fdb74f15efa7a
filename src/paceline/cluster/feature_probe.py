"""Probe the kernel: a short-lived process builds each part of a cluster and prints which parts work.

python -m paceline.cluster.feature_probe direct|user
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass

from paceline.cluster.namespaces import leave_network
from paceline.cluster.tools import run_lines

SHAPERS = {
    "tbf": ["qdisc add dev try-0 root handle 2: tbf rate 1gbit burst 125000 limit 6250000"],
    "htb": [
        "qdisc add dev try-0 root handle 2: htb default 1",
        "class add dev try-0 parent 2: classid 2:1 htb rate 1gbit",
        "filter add dev try-0 parent 2: protocol ip prio 1 u32 match ip dst 10.0.0.1/32 flowid 2:1",
    ],
    "netem": ["qdisc add dev try-0 root handle 2: netem delay 1ms"],
}


@dataclass(frozen=True)
class ProbeResult:
    """The parts of a cluster that work on this machine."""

    error: str  # empty if namespaces and links can be created
    shapers: list[str]


def trial(entry: str) -> ProbeResult:
    """Build each part once, in a new network namespace that ends with this process."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        leave_network(entry)
        run_lines("ip", ["link add try-br type bridge", "link add try-0 type veth peer name try-1"])
    except OSError as error:
        return ProbeResult(str(error.strerror or error), [])
    return ProbeResult("", [name for name, lines in SHAPERS.items() if _takes(lines)])


def _takes(lines: list[str]) -> bool:
    try:
        run_lines("tc", lines)
        run_lines("tc", ["qdisc del dev try-0 root"])
    except OSError:
        return False  # the kernel lacks it, or tc is not installed
    return True


if __name__ == "__main__":
    print(json.dumps(asdict(trial(sys.argv[1]))))
