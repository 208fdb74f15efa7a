"""Messages between the launching process and its worker processes, and their encoding for workers on other hosts.

The launching process and its child processes on this host exchange pickles. Messages to and from other hosts are
encoded as MessagePack, limited in size, and validated against the types below. Reading a message from another host
therefore never runs code that the message contains.
"""

from __future__ import annotations

import importlib
import pickle
import re
import threading
from dataclasses import dataclass, field, is_dataclass
from inspect import isfunction
from multiprocessing.connection import Connection
from typing import Annotated, Any, Literal

import msgspec

from paceline.authenticated_channel import SECRET_BYTES
from paceline.errors import RunError, UsageError
from paceline.launch.base import Function, Task
from paceline.recipe import Recipe
from paceline.results.value import Json
from paceline.worker_activity import PAGE_BYTES

MAX_MESSAGE_BYTES = 256 << 20  # a result takes about 60 bytes per step: enough for four million steps
MAX_TEXT = 20_000  # letters of an error or a traceback from another host that are shown
PIECE_BYTES = 1 << 20  # of a file in one message
TASK_PACKAGES = ["paceline"]  # another host can only name functions of these packages
RECIPE_CODE = 1  # MessagePack extension type of a recipe

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Secret = Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
_Whole = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
_FileName = Annotated[str, msgspec.Meta(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*$")]


class MessageError(RunError):
    """Error for a message that is too large, malformed or of an unknown type. No part of the message is used."""


class Enter(msgspec.Struct, frozen=True, tag="enter"):
    """Order to a worker on another host: change to `folder` and append the entries of `path` to sys.path."""

    folder: str
    path: list[str]


class OpenStore(msgspec.Struct, frozen=True, tag="store"):
    """Order to worker 0: open the store through which all workers find each other, and keep it open."""

    address: str
    port: _Port
    timeout_s: float
    secret: _Secret  # whoever connects to the store must know it


@dataclass(frozen=True, kw_only=True)
class RunTask:
    """Order to a worker: run a task. The ranks and addresses are those of this worker."""

    task: Task
    rank: int
    local_rank: int
    node: str  # workers with the same value share a host
    job: int  # number of the task in its pool, counted from 1
    master: tuple[str, int]  # address and port of the rendezvous store
    address: str  # at which peers reach the worker; empty: address of its network interface towards the store
    secret: bytes = field(repr=False)  # of the rendezvous store
    objects: bytes = b""  # pickled models, data and losses of the parent; never sent to another host


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Message from a worker that has started and accepts orders."""


class StoreOpened(msgspec.Struct, frozen=True, tag="store"):
    """Reply to OpenStore: the store is open at `port`."""

    port: _Port


class Emitted(msgspec.Struct, frozen=True, tag="event"):
    """Message from a worker during a task: a progress event for the pool's callback."""

    event: Json


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """Heartbeat of a worker on another host during a task, with a copy of its page of `worker_activity`."""

    page: Annotated[bytes, msgspec.Meta(min_length=PAGE_BYTES, max_length=PAGE_BYTES)]


class FilePiece(msgspec.Struct, frozen=True, tag="file"):
    """Message from worker 0 on another host: up to 1 MiB of a file that the run wrote there."""

    name: _FileName  # path in the run folder
    data: Annotated[bytes, msgspec.Meta(max_length=PIECE_BYTES)]
    is_first: bool  # whether the file begins with this data


class Done(msgspec.Struct, frozen=True, tag="result"):
    """Reply to RunTask: the task is done and returned `result`."""

    result: Any


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Reply to an order that failed.

    `kind` is `comm` if the worker lost the connection to another worker, `diverged` if it stopped training because a
    loss or gradient was not finite, and `raised` after any other error.
    """

    kind: Literal["raised", "comm", "diverged"]
    message: str
    traceback: str = ""


Order = Enter | OpenStore | RunTask
Reply = Ready | StoreOpened | Emitted | Beat | FilePiece | Done | Failed


class _RemoteTask(msgspec.Struct, frozen=True, tag="task"):
    """A RunTask as it is sent to a worker on another host, with the functions' names instead of the functions."""

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
    secret: _Secret


class _WarningEvent(msgspec.Struct):
    text: str


class _StepEvent(msgspec.Struct):
    rank: _Count
    step: _Whole
    total_steps: _Whole
    epoch: _Whole
    iteration: _Whole
    loss: float
    accuracy: float | None
    samples_per_s: float
    in_comm_percent: float | None


class _RoundsEvent(msgspec.Struct):
    rounds: _Whole
    op: str


class PickleChannel:
    """Channel for pickled messages between a parent and its child process on this host."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # a worker sends heartbeats in another thread than its other messages

    def fileno(self) -> int:
        return self._connection.fileno()

    def has_message(self, timeout_s: float) -> bool:
        return self._connection.poll(timeout_s)

    def send(self, message: Order | Reply) -> None:
        data = pickle.dumps(message)
        with self._lock:
            self._connection.send_bytes(data)

    def receive_order(self) -> Order:
        order: Order = self._connection.recv()
        return order

    def receive(self) -> Reply:
        reply: Reply = self._connection.recv()
        return reply

    def close(self) -> None:
        self._connection.close()


class MessagePackChannel:
    """Channel for MessagePack messages to and from a process on another host."""

    def __init__(self, inward: Connection[Any, Any], outward: Connection[Any, Any]) -> None:
        self._inward, self._outward = inward, outward
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._inward.fileno()

    def has_message(self, timeout_s: float) -> bool:
        return self._inward.poll(timeout_s)

    def send(self, message: Order | Reply) -> None:
        data = encode(_to_remote(message) if isinstance(message, RunTask) else message)
        with self._lock:
            self._outward.send_bytes(data)

    def receive_order(self) -> Order:
        order = _decode(_orders, self._receive())
        return _from_remote(order) if isinstance(order, _RemoteTask) else order

    def receive(self) -> Reply:
        reply: Reply = _decode(_replies, self._receive())
        if isinstance(reply, Failed):  # shown to the user
            return Failed(reply.kind, printable(reply.message[:MAX_TEXT]), printable(reply.traceback[-MAX_TEXT:]))
        return Emitted(_checked_event(reply.event)) if isinstance(reply, Emitted) else reply

    def close(self) -> None:
        self._inward.close()
        self._outward.close()

    def _receive(self) -> bytes:
        try:
            return self._inward.recv_bytes(MAX_MESSAGE_BYTES)
        except EOFError:
            raise
        except OSError as error:
            if str(error) == "bad message length":  # multiprocessing's text for a message above the limit
                raise MessageError(f"a message of more than {MAX_MESSAGE_BYTES >> 20} MiB") from None
            raise


MessageChannel = PickleChannel | MessagePackChannel


def encode(value: Any) -> bytes:
    """Encode plain values (numbers, text, bytes, lists, dicts) as MessagePack. Arrays and tensors become lists."""
    return _encoder.encode(value)


def decode(data: bytes) -> Any:
    """Decode plain values from MessagePack. Raises MessageError if the data are malformed."""
    return _decode(_values, data)


def printable(text: str) -> str:
    """Replace all control characters except line breaks by spaces.

    Apply it to text from another host before printing, since escape sequences in the text could control the terminal.
    """
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def _checked_event(event: Json) -> Json:
    """Check the values of an event from another host, which is shown while a task runs. Raises MessageError."""
    kind = event.get("kind")
    if not isinstance(kind, str):
        raise MessageError("a progress event without a kind")
    if kind == "warning":
        shape: type[msgspec.Struct] = _WarningEvent
    elif kind in ("log", "progress"):
        shape = _RoundsEvent if "rounds" in event else _StepEvent
    else:
        return event
    try:
        msgspec.convert(event, shape)
    except msgspec.ValidationError as error:
        raise MessageError(f"a malformed progress event ({error})") from None
    return {**event, "text": printable(event["text"][:MAX_TEXT])} if kind == "warning" else event


def _encode_other(value: Any) -> Any:
    if hasattr(value, "tolist"):  # arrays and scalars of numpy, tensors, array.array
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be sent to another host")


def _no_extension(code: int, data: memoryview) -> Any:
    del data
    raise ValueError(f"unknown extension {code}")


def _read_recipe(code: int, data: memoryview) -> Any:
    if code != RECIPE_CODE:
        return _no_extension(code, data)
    return Recipe.from_dict(msgspec.msgpack.decode(data, type=Json))


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_other)
_orders = msgspec.msgpack.Decoder(Enter | OpenStore | _RemoteTask, ext_hook=_read_recipe)
_replies = msgspec.msgpack.Decoder(Reply, ext_hook=_no_extension)
_values = msgspec.msgpack.Decoder(Any, ext_hook=_no_extension)


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise MessageError(f"a message that cannot be decoded ({error})") from None


_TASK_FIELDS = ("num_workers", "num_servers", "comm", "device", "threads", "timeout_s")
_ORDER_FIELDS = ("rank", "local_rank", "node", "job", "master", "address", "secret")


def _to_remote(order: RunTask) -> _RemoteTask:
    task = order.task
    return _RemoteTask(
        function=name_of_function(task.function),
        serve=None if task.serve is None else name_of_function(task.serve),
        arguments={name: _encode_argument(value) for name, value in task.arguments.items()},
        **_fields(task, _TASK_FIELDS),
        **_fields(order, _ORDER_FIELDS),
    )


def _encode_argument(value: Any) -> Any:
    if isinstance(value, Recipe):
        return msgspec.msgpack.Ext(RECIPE_CODE, msgspec.msgpack.encode(value.to_dict()))
    assert not is_dataclass(value), f"a {type(value).__name__} would arrive as a dict; pass its values instead"
    return value


def _from_remote(order: _RemoteTask) -> RunTask:
    serve = None if order.serve is None else find_function(order.serve)
    task = Task(find_function(order.function), order.arguments, serve=serve, **_fields(order, _TASK_FIELDS))
    return RunTask(task=task, **_fields(order, _ORDER_FIELDS))


def _fields(value: Any, names: tuple[str, ...]) -> Json:
    return {name: getattr(value, name) for name in names}


def name_of_function(function: Function) -> str:
    """Return the name `module:name` of a function.

    Raises UsageError if its module is not in TASK_PACKAGES, since workers on other hosts refuse to run other functions.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    if not _may_run(name):
        raise UsageError(f"workers on other hosts only run functions of {' and '.join(TASK_PACKAGES)}, not {name}")
    return name


def find_function(name: str) -> Function:
    """Return the function with the name `module:name`.

    Raises MessageError if it is not defined in a module of TASK_PACKAGES.
    """
    if not _may_run(name):
        raise MessageError(f"an order to run {name!r}, which is not a function of {' or '.join(TASK_PACKAGES)}")
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
