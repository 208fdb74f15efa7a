"""Messages between a pool and its worker processes, and their encoding for workers on other hosts.

A parent and the processes that it forked on this machine pickle these types. Everything else that comes from a socket
is MessagePack, bounded in size and checked against the types below: reading it never runs code of the sender's choice.
"""

from __future__ import annotations

import importlib
import pickle
import re
from dataclasses import dataclass, is_dataclass
from inspect import isfunction
from multiprocessing.connection import Connection
from typing import Annotated, Any, Literal

import msgspec

from paceline.errors import RunError, UsageError
from paceline.launch.base import Function, Task
from paceline.recipe import Recipe
from paceline.results.value import Json

MAX_MESSAGE_BYTES = 256 << 20  # a worker's result has some 60 bytes per step: that of four million steps
TASK_PACKAGES = ["paceline"]  # only functions of these packages run on the word of another host
RECIPE_CODE = 1  # of the MessagePack extension that holds a recipe

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
_FileName = Annotated[str, msgspec.Meta(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*$")]


class MessageError(RunError):
    """A message that is too large, malformed, or of no known type; nothing of it was used."""


class Enter(msgspec.Struct, frozen=True, tag="enter"):
    """Order to a worker on another host: work in this folder, and also look for modules on this path."""

    folder: str
    path: list[str]


class KeepStore(msgspec.Struct, frozen=True, tag="store"):
    """Order: open the store at which all workers meet."""

    address: str
    port: _Port
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class RunTask:
    """Order: take part in a task."""

    task: Task
    rank: int
    local_rank: int
    node: str
    job: int
    master: tuple[str, int]
    address: str
    objects: bytes = b""  # pickled models, data and losses of the parent; never sent to another host


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Reply: the worker waits for orders."""


class StoreKept(msgspec.Struct, frozen=True, tag="store"):
    """Reply: the store is open."""

    port: _Port


class Emitted(msgspec.Struct, frozen=True, tag="event"):
    """Reply: progress of a task."""

    event: Json


class FilePiece(msgspec.Struct, frozen=True, tag="file"):
    """Reply: a piece of a file of the run."""

    name: _FileName
    data: bytes
    is_first: bool


class Done(msgspec.Struct, frozen=True, tag="result"):
    """Reply: the task is done."""

    result: Any


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Reply: the task failed, by this worker's own fault (raised) or because its peers are gone (comm)."""

    kind: Literal["raised", "comm"]
    message: str
    traceback: str = ""


Order = Enter | KeepStore | RunTask
Reply = Ready | StoreKept | Emitted | FilePiece | Done | Failed


class _PlainTask(msgspec.Struct, frozen=True, tag="task"):
    """A RunTask with functions by name."""

    function: str
    serve: str | None
    arguments: Json
    num_workers: _Count
    num_servers: _Count
    comm: str
    device: str
    threads: _Count
    timeout_s: float
    rank: _Count
    local_rank: _Count
    node: str
    job: int
    master: tuple[str, _Port]
    address: str


class Forked:
    """Messages as pickles, between this process and one that it forked, or was forked by, on this machine."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection

    def fileno(self) -> int:
        return self._connection.fileno()

    def has_message(self, timeout_s: float) -> bool:
        return self._connection.poll(timeout_s)

    def send(self, message: Order | Reply) -> None:
        self._connection.send_bytes(pickle.dumps(message))

    def receive_order(self) -> Order:
        order: Order = self._connection.recv()
        return order

    def receive(self) -> Reply:
        reply: Reply = self._connection.recv()
        return reply

    def close(self) -> None:
        self._connection.close()


class Plain:
    """Messages as MessagePack, to or from a process on another host."""

    def __init__(self, inward: Connection[Any, Any], outward: Connection[Any, Any]) -> None:
        self._inward, self._outward = inward, outward

    def fileno(self) -> int:
        return self._inward.fileno()

    def has_message(self, timeout_s: float) -> bool:
        return self._inward.poll(timeout_s)

    def send(self, message: Order | Reply) -> None:
        self._outward.send_bytes(encode(_plain_task(message) if isinstance(message, RunTask) else message))

    def receive_order(self) -> Order:
        order = _checked(_orders, self._receive())
        return _real_task(order) if isinstance(order, _PlainTask) else order

    def receive(self) -> Reply:
        reply: Reply = _checked(_replies, self._receive())
        if isinstance(reply, Failed):  # shown to the user
            reply = Failed(reply.kind, printable(reply.message), printable(reply.traceback))
        return reply

    def close(self) -> None:
        self._inward.close()
        self._outward.close()

    def _receive(self) -> bytes:
        try:
            return self._inward.recv_bytes(MAX_MESSAGE_BYTES)
        except EOFError:
            raise
        except OSError as error:
            if str(error) == "bad message length":  # multiprocessing's words for a message beyond the limit
                raise MessageError(f"a message of more than {MAX_MESSAGE_BYTES >> 20} MiB") from None
            raise


MessageChannel = Forked | Plain


def encode(value: Any) -> bytes:
    """Plain values as MessagePack; arrays of numbers become lists."""
    return _encoder.encode(value)


def decode(data: bytes) -> Any:
    """Plain values from MessagePack; MessageError for anything else."""
    return _checked(_values, data)


def printable(text: str) -> str:
    """Text of another host without control characters, which could drive a terminal; line breaks stay."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def _encode_other(value: Any) -> Any:
    if hasattr(value, "tolist"):  # arrays and scalars of numpy, tensors, array.array
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be sent to another host")


def _no_extension(code: int, data: memoryview) -> Any:
    del data
    raise ValueError(f"extension {code}, which has no meaning here")


def _read_recipe(code: int, data: memoryview) -> Any:
    if code != RECIPE_CODE:
        return _no_extension(code, data)
    return Recipe.from_dict(msgspec.msgpack.decode(data, type=Json))


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_other)
_orders = msgspec.msgpack.Decoder(Enter | KeepStore | _PlainTask, ext_hook=_read_recipe)
_replies = msgspec.msgpack.Decoder(Reply, ext_hook=_no_extension)
_values = msgspec.msgpack.Decoder(Any, ext_hook=_no_extension)


def _checked(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise MessageError(f"a message that cannot be read ({error})") from None


_TASK_FIELDS = ("num_workers", "num_servers", "comm", "device", "threads", "timeout_s")
_ORDER_FIELDS = ("rank", "local_rank", "node", "job", "master", "address")


def _plain_task(order: RunTask) -> _PlainTask:
    task = order.task
    return _PlainTask(
        function=name_of_function(task.function),
        serve=None if task.serve is None else name_of_function(task.serve),
        arguments={name: _plain_argument(value) for name, value in task.arguments.items()},
        **_fields(task, _TASK_FIELDS),
        **_fields(order, _ORDER_FIELDS),
    )


def _plain_argument(value: Any) -> Any:
    if isinstance(value, Recipe):
        return msgspec.msgpack.Ext(RECIPE_CODE, msgspec.msgpack.encode(value.to_dict()))
    assert not is_dataclass(value), f"a {type(value).__name__} would arrive as a dict; give its values instead"
    return value


def _real_task(order: _PlainTask) -> RunTask:
    serve = None if order.serve is None else find_function(order.serve)
    task = Task(find_function(order.function), order.arguments, serve=serve, **_fields(order, _TASK_FIELDS))
    return RunTask(task=task, **_fields(order, _ORDER_FIELDS))


def _fields(value: Any, names: tuple[str, ...]) -> Json:
    return {name: getattr(value, name) for name in names}


def name_of_function(function: Function) -> str:
    """`module:name` of a function that workers on other hosts may run."""
    name = f"{function.__module__}:{function.__qualname__}"
    if not _may_run(name):
        raise UsageError(f"workers on other hosts run functions of {' and '.join(TASK_PACKAGES)} alone, not {name}")
    return name


def find_function(name: str) -> Function:
    """The function behind `module:name`; only one that is defined in a module of TASK_PACKAGES is found."""
    if not _may_run(name):
        raise MessageError(f"an order to run {name!r}, which is no function of {' or '.join(TASK_PACKAGES)}")
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):
        raise MessageError(f"an order to run {name!r}, which does not exist here") from None
    if not isfunction(found) or found.__module__ != module:
        raise MessageError(f"an order to run {name!r}, which is not a function of that module")
    return found


def _may_run(name: str) -> bool:
    return bool(_REFERENCE.fullmatch(name)) and name.partition(":")[0].partition(".")[0] in TASK_PACKAGES
