"""The process that a cluster is: it holds the namespaces, and takes everything down when its time has come.

    python -m paceline.cluster.keeper PLAN

It ends when the process that opened the cluster ends, however that ends, or, where the cluster is kept, when it is told
to (SIGTERM). Namespaces, bridge and links go with it by themselves: only it holds them. Whatever runs inside is ended
before, one by one, and cgroups are removed. Its one line of output says that the cluster is ready, or why it cannot be.
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
from paceline.cluster.shaping import node_lines, receiving_lines, sending_lines, switch_lines
from paceline.cluster.tools import run_lines


def main() -> None:
    plan = ClusterLayout.from_json(sys.argv[1])
    if not plan.parent and os.fork():
        os._exit(0)  # a kept cluster is nobody's child
    told_to_end = _listen_for_signals()
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
        _wait(plan.parent, told_to_end)
    except OSError as error:
        _report(_reason(error), _part(error))
    finally:
        take_down(plan)


def _listen_for_signals() -> int:
    """Being told to end interrupts nothing, so that nothing is left half made: it makes a file descriptor readable."""
    told, teller = os.pipe()
    os.set_blocking(teller, False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ignore)
    signal.set_wakeup_fd(teller)
    return told


def _ignore(number: int, frame: FrameType | None) -> None:
    del number, frame


def build(plan: ClusterLayout) -> None:
    """Cgroups first: they are what a host refuses most often."""
    limit_groups(plan)
    try_to_join(plan)
    leave_network(plan.entry)
    hold_network(SWITCH_FD)
    for index in range(len(plan.nodes)):
        new_network()
        hold_network(FIRST_NODE_FD + index)
    enter_network(SWITCH_FD)
    run_lines("ip", switch_lines(plan, os.getpid()))
    run_lines("tc", [line for index in range(len(plan.nodes)) for line in receiving_lines(plan, index)])
    for index in range(len(plan.nodes)):
        enter_network(FIRST_NODE_FD + index)
        run_lines("ip", node_lines(plan, index))
        run_lines("tc", sending_lines(plan, index))
    enter_network(SWITCH_FD)


def take_down(plan: ClusterLayout) -> None:
    """End what runs inside and remove the cgroups; the networks go with this process.

    Nobody can enter any more before anybody is ended: who is on the way in finds no door, and ends by itself.
    """
    for number in (SWITCH_FD, *(FIRST_NODE_FD + index for index in range(len(plan.nodes)))):
        with contextlib.suppress(OSError):  # building had not come as far
            os.close(number)
    end_processes(plan.name, but=os.getpid())
    for folder in plan.group_folders():
        remove_group(Path(folder))


def _wait(parent: int, told_to_end: int) -> None:
    """Return when somebody tells us to end, or when the parent has ended or let go of our standard input."""
    watched = [told_to_end]
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
    """The controller that was refused, or nothing."""
    return error.controller if isinstance(error, GroupError) else ""


def _report(error: str, part: str = "") -> None:
    """Say once how it went, and then let go of whoever listens."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    with contextlib.suppress(BrokenPipeError):
        os.write(1, (json.dumps({"error": error, "part": part, "pid": os.getpid()}) + "\n").encode())
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


if __name__ == "__main__":
    main()
