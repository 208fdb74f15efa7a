"""Main program of a worker process on this host: it runs the tasks that its parent process sends through a pipe.

A process pool starts it as `python -m paceline.launch.worker_process FD PAGE`. FD is the file descriptor of the pipe,
and PAGE that of the page of `worker_activity`. Messages from the parent are pickles. The process ends when the pipe
closes. With the argument `--end-with-parent`, the kernel also kills it when its parent ends, even if it is stopped.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from paceline.launch.heartbeat import heartbeats
from paceline.launch.messages import (
    Beat,
    Done,
    Emitted,
    Failed,
    MessageChannel,
    MessageError,
    OpenStore,
    PickleChannel,
    Ready,
    Reply,
    RunTask,
    StoreOpened,
)
from paceline.launch.process_host import END_WITH_PARENT
from paceline.limits import Limits
from paceline.standard_streams import tolerate_errors
from paceline.worker_activity import ACTIVITY

PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def main() -> None:
    if END_WITH_PARENT in sys.argv:
        end_with_parent()
    tolerate_errors()
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    ACTIVITY.share(int(sys.argv[2]))
    try:
        sys.path[:] = connection.recv()
    except (EOFError, ConnectionError):  # the parent was interrupted
        _leave(1)
    serve(PickleChannel(connection), is_on_this_host=True)


def serve(pipe: MessageChannel, *, is_on_this_host: bool) -> NoReturn:
    """Execute the orders that arrive through the pipe until it closes, then end the process.

    A worker on another host than the launching process sends its heartbeats through the pipe.
    """
    send_beat = None if is_on_this_host else lambda page: pipe.send(Beat(page))
    threading.Thread(target=_end_with_pipe, args=(pipe.fileno(),), daemon=True).start()
    _import_and_warm_up()
    pipe.send(Ready())
    store: Any = None
    while True:
        try:
            order = pipe.receive_order()
        except EOFError:
            _leave(0)
        except MessageError as error:
            pipe.send(Failed("raised", f"received {error}"))
            _leave(1)
        reply: Reply
        if isinstance(order, OpenStore):
            store, reply = _open_store(order)
        elif isinstance(order, RunTask):
            with heartbeats(Limits(order.task.timeout_s), send_beat):
                store, reply = _run_task(order, pipe, store)
        else:
            reply = Failed("raised", "received an unexpected order")
        try:
            pipe.send(reply)
        except (TypeError, OverflowError, UnicodeEncodeError) as error:  # a result that cannot be encoded
            pipe.send(Failed("raised", f"returned a result that cannot be sent: {error}"))


def _open_store(order: OpenStore) -> tuple[Any, Reply]:
    """Open, in this process, the store through which all workers find each other. Return the store and the reply.

    The store is None after an error.
    """
    from paceline.comm.authenticated_store import open_store

    try:
        store = open_store(order.address, order.port, order.secret, timeout_s=Limits(order.timeout_s).operation_s)
    except (OSError, RuntimeError) as error:
        return None, Failed("raised", str(error).partition("\n")[0])
    return store, StoreOpened(store.port)


def _import_and_warm_up() -> None:
    """Import torch and train a small model for one step, since both would otherwise slow down the first task."""
    import torch

    from paceline.train import job  # noqa: F401
    from paceline.train.allocator import keep_memory
    from paceline.train.job import warm_up

    keep_memory()
    torch.set_num_threads(1)
    warm_up()


def _run_task(order: RunTask, pipe: MessageChannel, store: Any) -> tuple[Any, Reply]:
    import torch

    from paceline.comm import CommError
    from paceline.comm.authenticated_store import AuthenticatedStore
    from paceline.comm.torch import is_peer_failure
    from paceline.errors import DivergedError, PacelineError
    from paceline.launch.file_transfer import send_files_after
    from paceline.launch.rendezvous import TaskSlot, address_towards, joined_task
    from paceline.train.allocator import give_back_memory
    from paceline.train.user_objects import unpack

    gc.collect()  # free the reference cycles of the previous task
    give_back_memory()
    task = order.task
    try:
        if order.objects:
            unpack(order.objects)
        torch.set_num_threads(task.threads)
        if store is None:
            store = AuthenticatedStore(*order.master, order.secret, timeout_s=Limits(task.timeout_s).operation_s)
        slot = TaskSlot(
            job=order.job,
            rank=order.rank,
            local_rank=order.local_rank,
            node=order.node,
            address=order.address or address_towards(*order.master),
        )
        with joined_task(task, store, slot, lambda event: pipe.send(Emitted(event))) as context:
            if order.rank == 0:
                with send_files_after(task, pipe.send) as local_task:
                    result = local_task.call(context)
            else:
                result = task.call(context)
        return store, Done(result)
    except CommError as error:
        return store, Failed("comm", str(error))
    except DivergedError as error:
        return store, Failed("diverged", str(error))
    except PacelineError as error:
        return store, Failed("raised", f"stopped: {error}")
    except BaseException as error:
        if is_peer_failure(error):
            return store, Failed("comm", str(error).partition("\n")[0])
        return store, Failed("raised", f"raised {type(error).__name__}: {error}", traceback.format_exc())


def end_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends. Do nothing on systems other than Linux."""
    if sys.platform != "linux":
        return
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was asked
        _leave(1)


def _end_with_pipe(fd: int) -> None:
    """Wait until the parent closes the pipe or is killed, then end this process, even if a task is running."""
    poller = select.poll()
    half_closed = getattr(select, "POLLRDHUP", 0)  # reported instead of POLLHUP for a worker on another host
    poller.register(fd, select.POLLHUP | half_closed)
    while True:
        if any(event & (select.POLLHUP | select.POLLERR | half_closed) for _, event in poller.poll()):
            _leave(1)


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # skip the interpreter's clean-up: native threads of a comm may still run


if __name__ == "__main__":
    main()
