"""Find out whether this machine supports emulated clusters, and refuse settings that it does not support.

A short-lived process tries namespaces, links and link shaping once, and prints which of them work:

    python -m paceline.cluster.support direct|user
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field

from paceline.cluster.cgroups import find_controllers, reason_of
from paceline.cluster.layout import DIRECT, USER, ClusterLayout, Controller, NodeLayout
from paceline.cluster.network import ROOT, Request, new_network, send, sending_requests
from paceline.errors import UsageError
from paceline.recipe import ClusterConfig

PROBE_S = 30.0
DEVICE = "try-0"  # network interface of the probe
# Queueing disciplines of the kernel that shape links, each with limits that need it.
SHAPERS = {
    "tbf": NodeLayout(bits_per_s=1e9),
    "htb": NodeLayout(peers_bits_per_s={1: 1e9}),
    "netem": NodeLayout(latency_s=0.001),
}
SHAPED = {"tbf": "bandwidth", "htb": "links", "netem": "latency and loss"}  # settings that need each discipline


@dataclass(frozen=True)
class Host:
    """Support of this machine for emulated clusters."""

    entry: str = ""  # how namespaces are created: DIRECT or USER
    no_network: str = ""  # why emulated nodes are not possible; empty if they are possible
    shapers: frozenset[str] = frozenset()  # queueing disciplines that work: tbf, htb, netem
    controllers: tuple[Controller, ...] = ()  # usable cgroup controllers
    no_controller: dict[str, str] = field(default_factory=dict)  # why a controller is not usable, by its name
    num_cores: int = 1


@dataclass(frozen=True)
class ProbeResult:
    """The network features of an emulated cluster that work on this machine."""

    error: str  # empty if namespaces and links can be created
    shapers: list[str]  # queueing disciplines that work


def examine() -> Host:
    """Return what this machine supports for emulated clusters. Everything created by the examination is removed."""
    cores = os.cpu_count() or 1
    if not sys.platform.startswith("linux"):
        return Host(no_network=f"network namespaces exist only on Linux, and this is {sys.platform}", num_cores=cores)
    if shutil.which("nsenter") is None:
        return Host(no_network="nsenter (package util-linux) is not installed", num_cores=cores)
    entry, result = DIRECT, _run_probe(DIRECT)
    if result.error:
        entry, result = USER, _run_probe(USER)
    controllers, no_controller = find_controllers()
    return Host(
        entry=entry,
        no_network=f"network namespaces or links cannot be created ({result.error})" if result.error else "",
        shapers=frozenset(result.shapers),
        controllers=tuple(controllers),
        no_controller=no_controller,
        num_cores=cores,
    )


def _run_probe(entry: str) -> ProbeResult:
    command = [sys.executable, "-m", "paceline.cluster.support", entry]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False)
        return ProbeResult(**json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return ProbeResult(f"the probe took more than {PROBE_S:g} s", [])
    except OSError as error:
        return ProbeResult(reason_of(error), [])
    except ValueError:
        return ProbeResult((done.stderr.strip().splitlines() or ["the probe ended without a message"])[-1], [])


def probe(entry: str) -> ProbeResult:
    """Create links and try each queueing discipline in a new network namespace, and return the disciplines that work.

    `entry` says how the namespace is created: `DIRECT` or `USER`. This process stays in the namespace.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
        new_network(entry)
        pair = Request("link", "add", DEVICE, {"kind": "veth", "peer": {"ifname": "try-1"}})
        send([Request("link", "add", "try-br", {"kind": "bridge"}), pair])
    except OSError as error:
        return ProbeResult(reason_of(error), [])
    return ProbeResult("", [name for name, node in SHAPERS.items() if _can_shape(node)])


def _can_shape(node: NodeLayout) -> bool:
    requests = [request._replace(device=DEVICE) for request in sending_requests(ClusterLayout("try", (node,)), 0)]
    try:
        send([*requests, Request("tc", "del", DEVICE, {"parent": ROOT})])
    except OSError:
        return False  # the kernel lacks this queueing discipline
    return True


def check_host(host: Host, config: ClusterConfig) -> None:
    """Raise UsageError for the first requested setting that this host does not support."""
    if host.no_network:
        raise UsageError(
            f"emulated nodes are not possible here: {host.no_network}; "
            "everything without emulated nodes still works, on real hosts too (--hosts)"
        )
    needed = {"tbf": config.bandwidth, "htb": config.links, "netem": config.latency or config.loss}
    for shaper, is_requested in needed.items():
        if is_requested and shaper not in host.shapers:
            raise UsageError(_no_shaper(host, shaper))
    usable = {one.name for one in host.controllers}
    for name in requested_controllers(config):
        if name not in usable:
            raise UsageError(no_controller(name, host.no_controller.get(name, "this machine has none")))


def requested_controllers(config: ClusterConfig) -> list[str]:
    """Return the cgroup controllers that a requested cluster needs."""
    requested = {"cpu": config.cpus or config.slow, "memory": config.memory}
    return [name for name, setting in requested.items() if setting]


def no_controller(name: str, reason: str) -> str:
    """Return the error message for CPU shares or memory limits that are not available."""
    feature, remedy = {
        "cpu": ("CPU shares (cpus, slow)", "add --without-cpu-shares, or leave out cpus and slow"),
        "memory": ("memory limits (memory)", "leave out memory"),
    }[name]
    rest = "nodes, addresses and shaped links work without them"
    return f"{feature} need a writable cgroup, but {reason}; {remedy}: {rest}"


def _no_shaper(host: Host, shaper: str) -> str:
    """Return the error message for a link setting that the kernel does not support."""
    supported = [setting for name, setting in SHAPED.items() if name in host.shapers]
    if supported:
        reason = f"this kernel has no {shaper} (module sch_{shaper})"
    else:
        reason = "links are shaped with the kernel's tbf, htb and netem, and none works here"
    rest = ", ".join(["nodes", *supported, "CPU shares and memory limits"])
    pronoun = "it" if shaper == "tbf" else "them"
    return f"{SHAPED[shaper]} cannot be set: {reason}; leave {pronoun} out: {rest} still work"


if __name__ == "__main__":
    print(json.dumps(asdict(probe(sys.argv[1]))))
