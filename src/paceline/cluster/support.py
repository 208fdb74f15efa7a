"""Probe which parts of emulated nodes this machine supports, and refuse requests that need a missing part."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

from paceline.cluster.cgroups import find_controllers
from paceline.cluster.feature_probe import ProbeResult
from paceline.cluster.layout import DIRECT, USER, Controller
from paceline.errors import UsageError
from paceline.recipe import ClusterConfig

WITHOUT = "everything without emulated nodes still works, on real hosts too (--hosts)"
WITHOUT_SHARES = "--without-cpu-shares"
PROBE_S = 30.0


@dataclass(frozen=True)
class Host:
    """The parts of emulated nodes that this machine supports."""

    entry: str = ""  # DIRECT or USER
    no_network: str = ""  # why nodes are not possible; empty if they are
    shapers: frozenset[str] = frozenset()  # those of tbf, htb and netem that work
    controllers: tuple[Controller, ...] = ()
    no_controller: dict[str, str] = field(default_factory=dict)  # reasons, by the controller's name
    num_cores: int = 1


def examine() -> Host:
    """Probe this machine in a short-lived process with its own network namespace."""
    cores = os.cpu_count() or 1
    if not sys.platform.startswith("linux"):
        return Host(no_network=f"network namespaces exist only on Linux, and this is {sys.platform}", num_cores=cores)
    if shutil.which("nsenter") is None:
        return Host(no_network="nsenter (package util-linux) is not installed", num_cores=cores)
    entry, result = DIRECT, _try(DIRECT)
    if result.error:
        entry, result = USER, _try(USER)
    controllers, no_controller = find_controllers()
    return Host(
        entry=entry,
        no_network=f"this host refuses network namespaces ({result.error})" if result.error else "",
        shapers=frozenset(result.shapers),
        controllers=tuple(controllers),
        no_controller=no_controller,
        num_cores=cores,
    )


def check_host(host: Host, config: ClusterConfig) -> None:
    """Raise UsageError for the first requested part that this host lacks."""
    if host.no_network:
        raise UsageError(f"emulated nodes are not possible here: {host.no_network}; {WITHOUT}")
    shaping = {
        "bandwidth": (bool(config.bandwidth), "tbf"),
        "links": (bool(config.links), "htb"),
        "latency and loss": (bool(config.latency or config.loss), "netem"),
    }
    for words, (is_asked, shaper) in shaping.items():
        if is_asked and shaper not in host.shapers:
            raise UsageError(_no_shaper(host, words, shaper))
    groups = {"cpu": bool(config.cpus or config.slow), "memory": bool(config.memory)}
    for name, is_asked in groups.items():
        if is_asked and all(one.name != name for one in host.controllers):
            raise UsageError(no_group(name, host.no_controller.get(name, "")))


def no_group(name: str, reason: str) -> str:
    """Return the error message for CPU shares or memory limits that are not available."""
    if name == "cpu":
        what, remedy = (
            "CPU shares (cpus, slow)",
            f"{WITHOUT_SHARES}, or leaving cpus and slow out, goes on without them",
        )
    else:
        what, remedy = "memory limits (memory)", "leave memory out to go on without them"
    rest = "nodes, addresses and shaped links still work"
    why = f" ({reason})" if reason else ""
    return f"{what} need a writable cgroup, and there is none{why}; {rest}: {remedy}"


def _no_shaper(host: Host, words: str, shaper: str) -> str:
    kept = {"tbf": "bandwidth", "htb": "links", "netem": "latency and loss"}
    works = ", ".join(["nodes", *(kept[name] for name in kept if name in host.shapers), "CPU shares and memory limits"])
    if host.shapers:
        why = f"this kernel has no {shaper} (module sch_{shaper})"
    else:
        why = "links are shaped with the kernel's tbf, htb and netem, and none works here"
    return f"{words} cannot be set: {why}; leave {'it' if words == 'bandwidth' else 'them'} out: {works} still work"


def _try(entry: str) -> ProbeResult:
    command = [sys.executable, "-m", "paceline.cluster.feature_probe", entry]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False)
        return ProbeResult(**json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return ProbeResult(f"the probe took more than {PROBE_S:g} s", [])
    except ValueError:
        return ProbeResult((done.stderr.strip().splitlines() or ["the probe ended without a message"])[-1], [])
