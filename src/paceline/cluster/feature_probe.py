"""Probe the kernel: a short-lived process builds each part of a cluster and prints which parts work.

python -m paceline.cluster.feature_probe direct|user
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass

from paceline.cluster.layout import ClusterLayout, NodeLayout
from paceline.cluster.namespaces import leave_network
from paceline.cluster.shaping import ROOT, Request, send, sending_requests

SHAPERS = {
    "tbf": NodeLayout(bits_per_s=1e9),
    "htb": NodeLayout(peers_bits_per_s={1: 1e9}),
    "netem": NodeLayout(latency_s=0.001),
}
DEVICE = "try-0"


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
        pair = Request("link", "add", DEVICE, {"kind": "veth", "peer": {"ifname": "try-1"}})
        send([Request("link", "add", "try-br", {"kind": "bridge"}), pair])
    except OSError as error:
        return ProbeResult(str(error.strerror or error), [])
    return ProbeResult("", [name for name, node in SHAPERS.items() if _works(node)])


def _works(node: NodeLayout) -> bool:
    requests = [request._replace(device=DEVICE) for request in sending_requests(ClusterLayout("try", (node,)), 0)]
    try:
        send([*requests, Request("tc", "del", DEVICE, {"parent": ROOT})])
    except OSError:
        return False  # the kernel lacks it
    return True


if __name__ == "__main__":
    print(json.dumps(asdict(trial(sys.argv[1]))))
