"""Messages between hosts: what is sent arrives, and nothing that a peer sends can run code here."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import threading
from array import array
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_up import made_up_worker
from paceline.errors import RunError, UsageError
from paceline.launch import messages
from paceline.launch.base import Task
from paceline.launch.messages import (
    Done,
    Emitted,
    Enter,
    Failed,
    FilePiece,
    MessageError,
    MessagePackChannel,
    OpenStore,
    PickleChannel,
    Ready,
    RunTask,
    StoreOpened,
    find_function,
    name_of_function,
)
from paceline.launch.rendezvous import CHUNK_BYTES, collect, publish
from paceline.recipe import Recipe, builtin_recipes
from paceline.results import Evaluation, Link, changed, convert_reports, to_json
from paceline.results.worker_report import WorkerReport
from paceline.train.job import serve_job, train_job


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._file}",)


@pytest.fixture
def ends() -> Iterator[tuple[MessagePackChannel, int]]:
    """A channel, and the peer's end as a file descriptor."""
    ours, theirs = os.pipe(), os.pipe()
    inward: Connection[Any, Any] = Connection(ours[0], writable=False)
    outward: Connection[Any, Any] = Connection(theirs[1], readable=False)
    channel = MessagePackChannel(inward, outward)
    yield channel, ours[1]
    channel.close()
    for descriptor in (ours[1], theirs[0]):
        os.close(descriptor)


def put(descriptor: int, data: bytes) -> None:
    """A message as a peer writes it."""
    os.write(descriptor, struct.pack("!i", len(data)) + data)


STEP_EVENT = {"kind": "progress", "rank": 1, "step": 3, "total_steps": 9, "epoch": 1, "iteration": 3, "loss": 0.5}
STEP_EVENT |= {"accuracy": None, "samples_per_s": 10.5, "in_comm_percent": 3}


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"kind": 3},
        {"kind": ["progress"]},
        {"kind": "progress"},
        {"kind": "warning"},
        {"kind": "warning", "text": 3},
        {"kind": "progress", "rounds": "many", "op": "all_reduce"},
        *({**STEP_EVENT, key: "text"} for key in STEP_EVENT if key != "kind"),
        {**STEP_EVENT, "rank": -1},
        {**STEP_EVENT, "total_steps": 1 << 60},
    ],
)
def test_malformed_events_are_refused(ends: tuple[MessagePackChannel, int], event: dict[str, Any]) -> None:
    channel, peer = ends
    put(peer, messages.encode(Emitted(event)))
    with pytest.raises(MessageError, match=r"a progress event without a kind|a malformed progress event"):
        channel.receive()


def test_texts_cannot_control_the_terminal_or_fill_it(ends: tuple[MessagePackChannel, int]) -> None:
    channel, peer = ends
    put(peer, messages.encode(Emitted({"kind": "warning", "text": "\x1b[2Jred\u202e\x9b31m" + "x" * 30_000})))
    reply = channel.receive()
    assert isinstance(reply, Emitted)
    assert reply.event["text"].startswith(" [2Jred  31mxxx")
    assert len(reply.event["text"]) == messages.MAX_TEXT
    put(peer, messages.encode(Failed("raised", "\x07" + "m" * 30_000, "t" * 30_000 + "\x1bend")))
    failed = channel.receive()
    assert isinstance(failed, Failed)
    assert (len(failed.message), failed.message[:2]) == (messages.MAX_TEXT, " m")
    assert (len(failed.traceback), failed.traceback[-4:]) == (messages.MAX_TEXT, " end")


def test_pieces_of_files_are_limited(ends: tuple[MessagePackChannel, int]) -> None:
    channel, peer = ends
    data = bytes(messages.PIECE_BYTES + 1)
    thread = threading.Thread(
        target=put, args=(peer, messages.encode(FilePiece("workers/0.jsonl", data, is_first=True)))
    )
    thread.start()
    with pytest.raises(MessageError, match="length <= 1048576"):
        channel.receive()
    thread.join(10)


@pytest.mark.parametrize(
    "reply",
    [
        Ready(),
        StoreOpened(29400),
        Emitted(STEP_EVENT),
        Emitted({"kind": "progress", "rounds": 3, "op": "all_reduce"}),
        Emitted({"kind": "warning", "text": "the disk is full"}),
        FilePiece("workers/0.jsonl", b"\x00\xff", is_first=True),
        Done({"loss": [1.0, 2.0], "links": {0: 5}, "nothing": None}),
        Failed("comm", "worker 1 is gone"),
    ],
    ids=lambda reply: type(reply).__name__,
)
def test_replies_arrive(ends: tuple[MessagePackChannel, int], reply: Any) -> None:
    channel, peer = ends
    put(peer, messages.encode(reply))
    assert channel.receive() == reply


def test_numbers_keep_every_bit() -> None:
    found = messages.decode(messages.encode({"loss": array("d", [0.1, float("nan"), float("inf")]), "n": np.int64(3)}))
    assert found["loss"][0] == 0.1
    assert str(found["loss"][1:]) == "[nan, inf]"
    assert found["n"] == 3
    assert messages.decode(messages.encode(np.arange(6).reshape(2, 3))) == [[0, 1, 2], [3, 4, 5]]


def test_a_report_arrives_from_another_host(ends: tuple[MessagePackChannel, int]) -> None:
    channel, peer = ends
    evaluation = Evaluation(step=2, epoch=1, train_s=0.5, loss=0.25, accuracy=None)
    link = Link(source=0, target=1, bytes=8, predicted_bytes=8, medium="network")
    plain = {**made_up_worker(0, [0.5, 0.25]), "evaluations": [to_json(evaluation)], "links": [to_json(link)]}
    [sent] = convert_reports([plain], WorkerReport)
    put(peer, messages.encode(Done(changed(sent, loss=array("d", [2.0, 1.0])))))
    reply = channel.receive()
    assert isinstance(reply, Done)
    assert convert_reports([reply.result], WorkerReport) == [sent]
    assert convert_reports([sent], WorkerReport)[0] is sent, "a report of a forked worker is typed already"


@pytest.mark.parametrize("wrong", [{"loss": "low"}, {"rank": None}, {"evaluations": [{"step": 1}]}])
def test_a_report_that_does_not_fit_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RunError, match=r"^the report of worker 1 cannot be read \(.*\); install the same version"):
        convert_reports([made_up_worker(0, [1.0]), made_up_worker(1, [1.0]) | wrong], WorkerReport)


@pytest.mark.parametrize("order", [Enter("/tmp", ["/tmp/a"]), OpenStore("10.0.0.1", 0, 5.0, bytes(32))])
def test_orders_arrive(ends: tuple[MessagePackChannel, int], order: Any) -> None:
    channel, peer = ends
    put(peer, messages.encode(order))
    assert channel.receive_order() == order


@pytest.mark.parametrize("name", [*builtin_recipes(), "changed"])
def test_a_task_arrives_with_its_recipe(ends: tuple[MessagePackChannel, int], name: str) -> None:
    channel, peer = ends
    changes = {"train.iterations": 3, "train.epochs": None, "cluster.nodes": 2, "train.precision": "fp64"}
    recipe = Recipe().replace(changes) if name == "changed" else builtin_recipes()[name]
    arguments = {"recipe": recipe, "strategy": "ring", "folder": "", "cases": [["all_reduce", 4]]}
    task = Task(train_job, arguments, num_workers=2, num_servers=1, serve=serve_job, comm="torch", timeout_s=7.0)
    order = RunTask(
        task=task, rank=1, local_rank=0, node="1", job=3, master=("10.0.0.1", 29400), address="", secret=bytes(32)
    )
    put(peer, messages.encode(messages._to_remote(order)))
    assert channel.receive_order() == order


@pytest.mark.parametrize("is_order", [False, True])
def test_a_pickle_is_not_loaded(ends: tuple[MessagePackChannel, int], tmp_path: Path, is_order: bool) -> None:
    channel, peer = ends
    data = pickle.dumps(Bomb(tmp_path / "proof"))
    put(peer, data)
    with pytest.raises(MessageError, match=r"^a message that cannot be decoded "):
        channel.receive_order() if is_order else channel.receive()
    assert not (tmp_path / "proof").exists()
    pickle.loads(data)
    assert (tmp_path / "proof").exists(), "loading it would have left a file"


def test_a_message_beyond_the_limit_is_not_read(
    ends: tuple[MessagePackChannel, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, peer = ends
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 2 << 20)
    os.write(peer, struct.pack("!i", (2 << 20) + 1))
    with pytest.raises(MessageError, match=r"^a message of more than 2 MiB$"):
        channel.receive()


def test_a_length_of_terabytes_is_refused(ends: tuple[MessagePackChannel, int]) -> None:
    channel, peer = ends
    os.write(peer, struct.pack("!iQ", -1, 1 << 42))
    with pytest.raises(MessageError, match=r"^a message of more than 256 MiB$"):
        channel.receive()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"\xdd\xff\xff\xff\xff",  # a list of four billion entries, of which none follows
        b"\x91" * 20_000,  # nested deeper than any stack
        b"\xa3\xff\xff\xff",  # not UTF-8
        msgspec.msgpack.encode({"type": "result"}),
        msgspec.msgpack.encode({"type": "ready", "result": msgspec.msgpack.Ext(1, b"\x80")}) + b"x",
        msgspec.msgpack.encode({"type": "result", "result": msgspec.msgpack.Ext(1, b"\x80")}),
        msgspec.msgpack.encode({"type": "result", "result": msgspec.msgpack.Ext(99, b"")}),
        msgspec.msgpack.encode({"type": "no such type"}),
        msgspec.msgpack.encode({"type": "store", "port": 70_000}),
        msgspec.msgpack.encode({"type": "event", "event": [1, 2]}),
        msgspec.msgpack.encode({"type": "failed", "kind": "died", "message": ""}),
        msgspec.msgpack.encode({"type": "file", "name": "a\x00b", "data": b"", "is_first": True}),
        msgspec.msgpack.encode({"type": "file", "name": "x" * 2000, "data": b"", "is_first": True}),
        msgspec.msgpack.encode({"type": "task", "function": "os:system"}),
    ],
)
def test_a_malformed_reply_is_one_sentence(ends: tuple[MessagePackChannel, int], data: bytes) -> None:
    channel, peer = ends
    put(peer, data)
    with pytest.raises(MessageError, match=r"^a message that cannot be decoded \(.+\)$"):
        channel.receive()


VALID = [
    messages.encode(Emitted({"kind": "progress", "values": [1.5, None, True, {"a": b"x"}]})),
    messages.encode(FilePiece("checkpoints/final.safetensors", b"weights", is_first=False)),
    messages.encode(Failed("raised", "no such file", "Traceback")),
    messages.encode(OpenStore("10.0.0.1", 29400, 60.0, bytes(32))),
    messages.encode({"type": "task", "function": "os:system", "recipe": msgspec.msgpack.Ext(1, b"\x81\xa4seed\x01")}),
]


@given(
    data=st.one_of(
        st.binary(max_size=300),
        st.tuples(st.sampled_from(VALID), st.integers(0, 200), st.binary(max_size=4)).map(
            lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] + len(parts[2]) :]
        ),
    )
)
def test_no_bytes_end_in_a_traceback(data: bytes) -> None:
    for decoder in (messages._orders, messages._replies, messages._values):
        found: Any = None
        with contextlib.suppress(MessageError):
            found = messages._decode(decoder, data)
        assert not isinstance(found, msgspec.msgpack.Ext | Recipe)


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "subprocess:run",
        "paceline:__builtins__",
        "pacelinex.evil:f",
        "paceline.launch.file_transfer:shutil",
        "paceline.train.user_objects:pickle",
        "paceline.launch.pool:make_store",  # imported there, not defined there
        "paceline.launch.pool:ProcessPool",
        "paceline.no_such_module:f",
        "paceline.train.job:no_such_function",
        "paceline.train.job:Trainer.run",
        "paceline.train.job",
        "../evil.py:f",
        "",
    ],
)
def test_only_functions_of_paceline_run_on_the_word_of_another_host(name: str) -> None:
    with pytest.raises(MessageError, match=r"^an order to run "):
        find_function(name)


def test_functions_by_name() -> None:
    assert find_function(name_of_function(train_job)) is train_job
    with pytest.raises(UsageError, match=r"workers on other hosts only run functions of paceline, not .*:put"):
        name_of_function(put)


def test_a_failure_cannot_drive_the_terminal(ends: tuple[MessagePackChannel, int]) -> None:
    channel, peer = ends
    put(peer, messages.encode(Failed("raised", "\x1b]0;owned\x07gone", "a\nb\x1b[2J")))
    assert channel.receive() == Failed("raised", " ]0;owned gone", "a\nb [2J")


def test_what_has_no_plain_form_is_refused() -> None:
    with pytest.raises(TypeError, match="a object cannot be sent to another host"):
        messages.encode({"result": object()})


def test_a_forked_process_may_be_sent_objects() -> None:
    ours, theirs = os.pipe()
    outward: Connection[Any, Any] = Connection(theirs, readable=False)
    inward: Connection[Any, Any] = Connection(ours, writable=False)
    PickleChannel(outward).send(Done((1, {2, 3})))
    assert PickleChannel(inward).receive() == Done((1, {2, 3}))
    outward.close()
    inward.close()


class Store(dict[str, bytes]):
    """A store in this process."""

    def set(self, key: str, value: str | bytes) -> None:
        self[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]


def test_results_pass_through_a_store_in_pieces() -> None:
    store, value = Store(), {0: {"loss": [0.5] * 10}, 1: "x" * (CHUNK_BYTES + 1)}
    publish(store, "result", value)
    assert int(store["result"]) == 2
    assert collect(store, "result") == value


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"r": b"many"}, "r in the rendezvous store is not a message of a worker: b'many'"),
        ({"r": b"99999999"}, "is not a message of a worker"),
        ({"r": b"1", "r/0": pickle.dumps(print)}, "r in the rendezvous store is a message that cannot be decoded"),
        ({"r": b"1", "r/0": b"\x00" * (CHUNK_BYTES + 1)}, "has a chunk of more than 4 MiB"),
    ],
)
def test_a_store_with_something_else_in_it(values: dict[str, bytes], sentence: str) -> None:
    with pytest.raises(RunError, match=sentence):
        collect(Store(values), "r")
