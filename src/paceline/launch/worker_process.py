"""Main program of a worker process on this host: it runs the tasks that its parent process sends through a pipe.

A process pool starts it as `python -m paceline.launch.worker_process FD`, where FD is the file descriptor of the pipe.
Messages from the parent are pickles. The process ends when the pipe closes.
"""

from __future__ import annotations

import gc
import os
import select
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from paceline.launch.messages import (
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


def main() -> None:
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    sys.path[:] = connection.recv()
    serve(PickleChannel(connection))


def serve(pipe: MessageChannel) -> NoReturn:
    """Execute the orders that arrive through the pipe until it closes, then end the process."""
    threading.Thread(target=_end_with_parent, args=(pipe.fileno(),), daemon=True).start()
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
    from paceline.comm.torch import open_store_at

    try:
        store = open_store_at(order.address, order.port, timeout_s=order.timeout_s)
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
    from paceline.comm.torch import is_peer_failure, make_store
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
            store = make_store(*order.master, is_master=False, timeout_s=task.timeout_s)
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


def _end_with_parent(fd: int) -> None:
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
