"""Heartbeats of a worker process during a task: a thread that shows that the process runs, even if training does not.

A worker on this host only writes the time into its page of `worker_activity`. A worker on another host also sends a
copy of the page.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paceline.limits import Limits
from paceline.worker_activity import ACTIVITY


@contextmanager
def heartbeats(limits: Limits, send: Callable[[bytes], None] | None) -> Iterator[None]:
    """Context manager: send heartbeats while the `with` block runs. `send` is None for a worker on this host."""
    ACTIVITY.begin_task()
    done = threading.Event()
    thread = threading.Thread(target=_beat, args=(done, limits, send), daemon=True, name="paceline-heartbeat")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(limits.heartbeat_s)


def _beat(done: threading.Event, limits: Limits, send: Callable[[bytes], None] | None) -> None:
    from paceline.measure.unreachable_peers import unreachable_addresses

    while True:
        ACTIVITY.beat()
        waiting_s = ACTIVITY.read().waiting_s
        if waiting_s > limits.operation_s / 2:  # only then, since it reads all sockets
            ACTIVITY.set_unreachable(unreachable_addresses(waiting_s / 2))
        if send is not None:
            try:
                send(ACTIVITY.copy())
            except OSError:
                return  # the launching process has ended, and so will this one
        if done.wait(limits.heartbeat_s):
            return
