"""The keeper: the process that builds an emulated cluster, holds its namespaces and removes it.

    python -m paceline.cluster.keeper LAYOUT

The keeper prints one line of JSON, which says that the cluster is ready or why it cannot be built. It ends on SIGTERM,
SIGINT or SIGHUP, and together with the process that opened the cluster. (A cluster of `paceline cluster up` does not
depend on another process.) Before the keeper ends, it stops all processes inside the nodes and removes the cgroups. The
kernel then removes namespaces, bridge and links, because no process holds them any longer.
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

from paceline.cluster.cgroups import GroupError, check_joining, claim_groups, limit_groups, reason_of, remove_group
from paceline.cluster.layout import FIRST_NODE_FD, SWITCH_FD, ClusterLayout
from paceline.cluster.network import (
    bridge_requests,
    enter_network,
    hold_network,
    new_network,
    node_requests,
    receiving_requests,
    send,
    sending_requests,
)
from paceline.cluster.running import end_processes, ready_name


def main() -> None:
    layout = ClusterLayout.from_json(sys.argv[1])
    if not layout.parent and os.fork():
        os._exit(0)  # a cluster of `paceline cluster up` outlives the process that starts it
    signalled = _listen_for_signals()
    os.chdir("/")
    try:
        claim_groups(layout)
    except OSError as error:
        _report(error)
        return
    try:
        build(layout)
        Path("/proc/self/comm").write_text(ready_name(layout), encoding="ascii")
        _report(None)
        _wait(layout.parent, signalled)
    except OSError as error:
        _report(error)
    finally:
        take_down(layout)


def _listen_for_signals() -> int:
    """Return a file descriptor that becomes readable on SIGTERM, SIGINT or SIGHUP, which no longer end this process."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ignore)
    signal.set_wakeup_fd(writable)
    return readable


def _ignore(number: int, frame: FrameType | None) -> None:
    del number, frame


def build(layout: ClusterLayout) -> None:
    """Set the cgroup limits of a cluster, then create its network. The limits are first: they fail most often."""
    limit_groups(layout)
    check_joining(layout)
    new_network(layout.entry)
    hold_network(SWITCH_FD)
    indices = range(len(layout.nodes))
    for index in indices:
        new_network()
        hold_network(FIRST_NODE_FD + index)
    enter_network(SWITCH_FD)
    incoming = [request for index in indices for request in receiving_requests(layout, index)]
    send([*bridge_requests(layout), *incoming])
    for index in indices:
        enter_network(FIRST_NODE_FD + index)
        send([*node_requests(layout, index), *sending_requests(layout, index)])
    enter_network(SWITCH_FD)


def take_down(layout: ClusterLayout) -> None:
    """End all processes inside the nodes and remove the cgroups.

    The file descriptors of the namespaces are closed first, so that no process can enter a node in the meantime. The
    kernel removes the networks when this process ends.
    """
    for number in (SWITCH_FD, *(FIRST_NODE_FD + index for index in range(len(layout.nodes)))):
        with contextlib.suppress(OSError):  # this namespace was not created
            os.close(number)
    end_processes(layout.name, excluding=os.getpid())
    for folder in layout.group_folders():
        remove_group(Path(folder))


def _wait(parent: int, signalled: int) -> None:
    """Wait until a signal arrives, which makes the file descriptor `signalled` readable.

    If `parent` is not 0, return also when the process with this id ends or closes the pipe to this process's stdin.
    """
    watched = [signalled]
    if parent:
        try:
            watched += [sys.stdin.fileno(), os.pidfd_open(parent)]
        except ProcessLookupError:
            return
    select.select(watched, [], [])


def _report(failure: OSError | None) -> None:
    """Print one line of JSON, with the failure if there is one; then redirect standard output and error to /dev/null.

    The redirection closes the pipe to which both were connected, so that a process that reads it to its end continues.
    """
    answer = {
        "error": reason_of(failure) if failure else "",
        "controller": failure.controller if isinstance(failure, GroupError) else "",
        "pid": os.getpid(),
    }
    devnull = os.open(os.devnull, os.O_RDWR)
    with contextlib.suppress(BrokenPipeError):
        os.write(1, (json.dumps(answer) + "\n").encode())
    for descriptor in (1, 2):
        os.dup2(devnull, descriptor)
    os.close(devnull)


if __name__ == "__main__":
    main()
