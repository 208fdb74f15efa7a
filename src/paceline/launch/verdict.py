"""Find out which worker failed a task, from the workers' messages, their processes and their activity."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import DivergedError, RunError, WorkerError
from paceline.launch.base import Task
from paceline.limits import Limits
from paceline.worker_activity import Snapshot

OUT_OF_MEMORY = "; it probably ran out of memory: use a smaller --worker-batch-size or --micro-batch-size"


@dataclass(frozen=True)
class Failure:
    """A process that failed: it died, raised an exception, was stopped, diverged, or lost its peers (comm)."""

    rank: int
    kind: str  # died, raised, stopped, diverged, comm
    message: str
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What the launching process knows about one process of a task."""

    rank: int
    activity: Snapshot
    is_stopped: bool = False  # by a signal such as SIGSTOP; False if unknown
    has_answered: bool = False
    location: str = ""  # such as `on emulated node 1`; empty: this host
    address: str = ""  # at which other nodes reach the process; empty: unknown or shared by all


def verdict(task: Task, failures: Sequence[Failure], processes: Sequence[Watched]) -> RunError:
    """Return the error to report to the user after one or more processes failed.

    The error names, in this order of preference, a process that died, one that was stopped, raised an exception or
    diverged, one that its peers cannot reach, one that has not answered, and one that lost the connection to its peers.
    """
    order = ("died", "stopped", "raised", "diverged")
    culprits = sorted((f for f in failures if f.kind != "comm"), key=lambda f: order.index(f.kind))
    if culprits:
        first = culprits[0]
        if first.kind == "diverged":
            return DivergedError(first.message)
        return WorkerError(first.rank, first.message, first.traceback, who=task.name_of(first.rank))
    silent_s = Limits(task.timeout_s).silent_s
    waiting = [failure.rank for failure in failures]
    unanswered = [process for process in processes if not process.has_answered]
    idle = [process for process in unanswered if not process.activity.is_waiting or _is_silent(process, silent_s)]
    cut_off = None if idle else _most_cut_off(processes)
    if cut_off is not None:
        return _unanswered_error(task, cut_off, "its node's network is interrupted since", waiting)
    if unanswered:
        # Of processes that take part in the same operations, the one that is behind has begun the fewest.
        first_missing = min(
            unanswered,
            key=lambda p: (not _is_silent(p, silent_s), p.activity.is_waiting, p.activity.total, p.rank),
        )
        return _unanswered_error(task, first_missing, _state_of(first_missing, silent_s), waiting)
    first = failures[0]
    return WorkerError(first.rank, f"lost its peers: {first.message}", first.traceback, who=task.name_of(first.rank))


def stopped_failure(task: Task, process: Watched) -> Failure:
    """Return the failure of a process that is stopped, and for which no peer needs to wait."""
    return Failure(process.rank, "stopped", _unanswered_message(task, process, "it is stopped since", []))


def death_message(code: int, hint: str, activity: Snapshot, *, is_out_of_memory: bool) -> str:
    """Return the message about a process that ended with this exit code (negative: the number of a signal)."""
    how = f"was ended by signal {-code} ({signal_name(-code)})" if code < 0 else f"ended with exit code {code}"
    memory = OUT_OF_MEMORY if is_out_of_memory and code == -signal.SIGKILL else ""
    return f"died: its process {how}{hint}; last known: {activity}{memory}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "real-time signal"


def _is_silent(process: Watched, silent_s: float) -> bool:
    return process.is_stopped or process.activity.silent_s > silent_s


def _state_of(process: Watched, silent_s: float) -> str:
    if process.is_stopped:
        return "it is stopped since"
    if _is_silent(process, silent_s):
        return f"it has sent no heartbeat for {process.activity.silent_s:.1f} s, since"
    return "it waits in" if process.activity.is_waiting else "it hangs in"


def _unanswered_error(task: Task, process: Watched, state: str, waiting: list[int]) -> WorkerError:
    others = [rank for rank in waiting if rank != process.rank]
    return WorkerError(process.rank, _unanswered_message(task, process, state, others), who=task.name_of(process.rank))


def _unanswered_message(task: Task, process: Watched, state: str, waiting: list[int]) -> str:
    where = f"{process.location} " if process.location else ""
    blocked = f"; it blocked worker {', '.join(map(str, sorted(waiting)))}" if waiting else ""
    return f"{where}did not answer within {task.timeout_s:g} s: {state} {process.activity}{blocked}"


def _most_cut_off(processes: Sequence[Watched]) -> Watched | None:
    """Return the first process of the address with the most interrupted links, or None if no link is interrupted.

    Of two addresses with one link between them, it is the one without worker 0, which holds the rendezvous.
    """
    links = {
        frozenset((process.address, peer))
        for process in processes
        for peer in process.activity.unreachable
        if process.address and peer != process.address
    }
    degree = Counter(address for link in links for address in link)
    by_address: dict[str, Watched] = {}
    for process in processes:
        by_address.setdefault(process.address, process)
    known = [process for address, process in by_address.items() if degree[address]]
    return max(known, key=lambda process: (degree[process.address], process.rank), default=None)


def is_process_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal. A process that a debugger traces does not count."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended, or this system has no /proc
        return False
    return status.rpartition(")")[2].split()[0] == "T"


def num_oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since it started; 0 if it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
