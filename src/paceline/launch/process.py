"""A worker process: takes tasks from its parent's pipe until the pipe closes.

Started as `python -m paceline.launch.process FD`; the parent's own pipe is the one place where pickles are read.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any, NoReturn, Protocol


class Pipe(Protocol):
    """What leads to the parent, both ways."""

    def fileno(self) -> int: ...

    def recv_bytes(self) -> bytes: ...

    def send(self, message: Any) -> None: ...


def main() -> None:
    pipe: Connection = Connection(int(sys.argv[1]))
    sys.path[:] = pipe.recv()
    serve(pipe)


def serve(pipe: Pipe) -> NoReturn:
    """Do what the parent orders, one thing after the other, as long as it is there."""
    threading.Thread(target=_end_with_parent, args=(pipe.fileno(),), daemon=True).start()
    _get_ready()
    pipe.send({"kind": "ready"})
    store: Any = None
    while True:
        try:
            order = pickle.loads(pipe.recv_bytes())
        except EOFError:
            _leave(0)
        if order["kind"] == "store":
            store, message = _keep_store(order)
        else:
            store, message = _work(order, pipe, store)
        pipe.send(message)


def _keep_store(order: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Let all workers meet in this process."""
    from paceline.comm.torch import keep_store

    try:
        store = keep_store(order["address"], order["port"], timeout_s=order["timeout_s"])
    except (OSError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        return None, {"kind": "raised", "message": reason, "traceback": ""}
    return store, {"kind": "store", "port": store.port}


def _get_ready() -> None:
    """Everybody is warm before the first task: who sleeps during it must not disturb what is measured."""
    import torch

    from paceline.train import job  # noqa: F401
    from paceline.train.memory import keep_memory
    from paceline.train.warmup import warm_up

    keep_memory()
    torch.set_num_threads(1)
    warm_up()


def _work(order: dict[str, Any], pipe: Pipe, store: Any) -> tuple[Any, dict[str, Any]]:
    import torch

    from paceline.comm import CommError
    from paceline.comm.torch import is_peer_failure, make_store
    from paceline.errors import PacelineError
    from paceline.launch.delivery import delivered
    from paceline.launch.rendezvous import MoreComms, address_towards, connect, device_for, part
    from paceline.train.context import Context
    from paceline.train.memory import give_back_memory

    gc.collect()  # what the last task has left in circles
    give_back_memory()
    task, local_rank = order["task"], order["local_rank"]
    try:
        torch.set_num_threads(task.threads)
        if store is None:
            store = make_store(*order["master"], is_master=False, timeout_s=task.timeout_s)
        where = {key: order[key] for key in ("job", "rank", "local_rank", "node", "address")}
        where["address"] = where["address"] or address_towards(*order["master"])
        comm, wide = connect(task, store, **where)
        context = Context(
            comm,
            device_for(task, local_rank),
            lambda event: pipe.send({"kind": "event", "event": event}),
            MoreComms(task, store, **where).connect,
            wide,
        )
        if order["rank"] == 0:
            with delivered(task, pipe.send) as placed:
                result = placed.call(context)
        else:
            result = task.call(context)
        part(task, order["rank"], comm, wide)
        return store, {"kind": "result", "result": result}
    except CommError as error:
        return store, {"kind": "comm", "message": str(error), "traceback": ""}
    except PacelineError as error:
        return store, {"kind": "raised", "message": f"stopped: {error}", "traceback": ""}
    except BaseException as error:
        if is_peer_failure(error):
            return store, {"kind": "comm", "message": str(error).partition("\n")[0], "traceback": ""}
        summary = f"raised {type(error).__name__}: {error}"
        return store, {"kind": "raised", "message": summary, "traceback": traceback.format_exc()}


def _end_with_parent(fd: int) -> None:
    """End this process when the parent is gone, even by kill -9 in the middle of a task."""
    poller = select.poll()
    half_closed = getattr(select, "POLLRDHUP", 0)  # as far as a connection from another host goes
    poller.register(fd, select.POLLHUP | half_closed)
    while True:
        if any(event & (select.POLLHUP | select.POLLERR | half_closed) for _, event in poller.poll()):
            _leave(1)


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # native threads of a comm may still run; there is nothing left to clean up


if __name__ == "__main__":
    main()
