"""The keeper: the process that builds a cluster, holds its namespaces and takes it down.

    python -m paceline.cluster.keeper PLAN

It ends with the process that opened the cluster, or, for a kept cluster, on SIGTERM. Before that it ends all processes
inside the nodes and removes the cgroups. The kernel removes namespaces, bridge and links when the keeper ends, because
nothing else holds them. It prints one line of JSON: the cluster is ready, or the reason why it cannot be built.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from pathlib import Path
from types import FrameType

from paceline.cluster.cgroups import GroupError, claim_groups, limit_groups, remove_group, try_to_join
from paceline.cluster.discovery import end_processes, ready_name
from paceline.cluster.layout import FIRST_NODE_FD, SWITCH_FD, ClusterLayout
from paceline.cluster.namespaces import enter_network, hold_network, leave_network, new_network
from paceline.cluster.shaping import node_requests, receiving_requests, send, sending_requests, switch_requests


def main() -> None:
    plan = ClusterLayout.from_json(sys.argv[1])
    if not plan.parent and os.fork():
        os._exit(0)  # a kept cluster outlives the process that starts it
    signalled = _listen_for_signals()
    os.chdir("/")
    try:
        claim_groups(plan)
    except OSError as error:
        _report(_reason(error), _part(error))
        return
    try:
        build(plan)
        Path("/proc/self/comm").write_text(ready_name(plan), encoding="ascii")
        _report("")
        _wait(plan.parent, signalled)
    except OSError as error:
        _report(_reason(error), _part(error))
    finally:
        take_down(plan)


def _listen_for_signals() -> int:
    """Return a file descriptor that becomes readable on a signal, so that a signal never interrupts building."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ignore)
    signal.set_wakeup_fd(writable)
    return readable


def _ignore(number: int, frame: FrameType | None) -> None:
    del number, frame


def build(plan: ClusterLayout) -> None:
    """Build the cluster; cgroups first, because hosts refuse them most often."""
    limit_groups(plan)
    try_to_join(plan)
    leave_network(plan.entry)
    hold_network(SWITCH_FD)
    for index in range(len(plan.nodes)):
        new_network()
        hold_network(FIRST_NODE_FD + index)
    enter_network(SWITCH_FD)
    incoming = [request for index in range(len(plan.nodes)) for request in receiving_requests(plan, index)]
    send([*switch_requests(plan), *incoming])
    for index in range(len(plan.nodes)):
        enter_network(FIRST_NODE_FD + index)
        send([*node_requests(plan, index), *sending_requests(plan, index)])
    enter_network(SWITCH_FD)


def take_down(plan: ClusterLayout) -> None:
    """End all processes inside and remove the cgroups; the kernel removes the networks with this process.

    The namespaces are closed first, so that no process can enter while others are ended.
    """
    for number in (SWITCH_FD, *(FIRST_NODE_FD + index for index in range(len(plan.nodes)))):
        with contextlib.suppress(OSError):  # not built yet
            os.close(number)
    end_processes(plan.name, but=os.getpid())
    for folder in plan.group_folders():
        remove_group(Path(folder))


def _wait(parent: int, signalled: int) -> None:
    """Wait for a signal, for the parent's end, or until the parent closes our standard input."""
    watched = [signalled]
    if parent:
        try:
            watched += [sys.stdin.fileno(), os.pidfd_open(parent)]
        except ProcessLookupError:
            return
    select.select(watched, [], [])


def _reason(error: OSError) -> str:
    named = f"{error.filename}: " if error.filename else ""
    return f"{named}{error.strerror or error}"


def _part(error: OSError) -> str:
    """Return the name of the refused controller, or an empty string."""
    return error.controller if isinstance(error, GroupError) else ""


def _report(error: str, part: str = "") -> None:
    """Print the result once, then close standard output and error so that the reader continues."""
    devnull = os.open(os.devnull, os.O_RDWR)
    with contextlib.suppress(BrokenPipeError):
        os.write(1, (json.dumps({"error": error, "part": part, "pid": os.getpid()}) + "\n").encode())
    for descriptor in (1, 2):
        os.dup2(devnull, descriptor)
    os.close(devnull)


if __name__ == "__main__":
    main()
