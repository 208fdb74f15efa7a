"""Changed inputs and the readers of commands that they go through, by kind; `benchmarks/fuzz.py` runs them.

Every input is a valid one with some changes: flipped bits, cut, repeated or removed parts, and values of other types,
odd numbers, deep nesting and control characters in place of values.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import struct
import tomllib
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tomli_w

from damaged_folders import COMMANDS, ODD_BYTES, damage, damage_value, fault_of
from golden_files import STORED
from paceline.cli.progress import StrategyProgress, _status
from paceline.data import cifar10, mnist
from paceline.dataflow.chips import chip_text, load_chip
from paceline.export.tables import ExportSource, rows, scalars
from paceline.launch import messages
from paceline.measure import spool
from paceline.measure.analysis import analyse_folder
from paceline.measure.trace_file import write_merged
from paceline.recipe import DataConfig, builtin_recipes, load_recipe
from paceline.results import convert_reports
from paceline.results.worker_report import WorkerReport
from paceline.study.quantize import find_source, load_source
from paceline.worker_files import worker_lines

ODD_INTEGERS = (b"\x00" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00" * 8, b"\xff" * 8)


class Contradiction(Exception):
    """Raised if a reader returns a result that it should have refused."""


@dataclass(frozen=True)
class Reader:
    """A kind of input. `make` returns a changed input, `read` gives it to the reader, in an empty folder."""

    make: Callable[[random.Random], bytes]
    read: Callable[[bytes, Path, random.Random], None]


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return the data after one to three changes."""
    if chance.random() < 0.02:
        return chance.choice(ODD_BYTES)
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        first = chance.randrange(len(changed) + 1)
        last = min(len(changed), first + chance.choice((1, 2, 4, 8, 64, 1000)))
        match chance.randrange(7):
            case 0:
                for place in range(first, min(last, first + 8)):
                    changed[place] ^= 1 << chance.randrange(8)
            case 1:
                del changed[first:]
            case 2:
                del changed[first:last]
            case 3:
                changed[first:first] = changed[first:last]
            case 4:
                changed[first : first + 4] = chance.choice(ODD_INTEGERS)
            case 5:
                changed[first:last] = chance.choice(ODD_BYTES)[:5000]
            case 6:
                changed[first:first] = chance.randbytes(last - first)
    return bytes(changed)


def changed_values(values: Any, chance: random.Random, encode: Callable[[Any], bytes]) -> bytes:
    """Return encoded values after one to three changes of single values; if they cannot be encoded, change bytes."""
    original = encode(values)
    for _ in range(chance.randint(1, 3)):
        damage_value(values, chance)
        if not values:
            break
    try:
        return encode(values)
    except (TypeError, ValueError, OverflowError, RecursionError):  # values that this encoding does not have
        return changed_bytes(original, chance)


def _either(text: str, chance: random.Random) -> bytes:
    if chance.random() < 0.5:
        return changed_bytes(text.encode(), chance)
    return changed_values(tomllib.loads(text), chance, lambda values: tomli_w.dumps(values).encode())


# Recipes and chips.


def make_recipe(chance: random.Random) -> bytes:
    return _either(chance.choice(list(builtin_recipes().values())).to_toml(), chance)


def read_recipe(data: bytes, folder: Path, _: random.Random) -> None:
    (folder / "mine.toml").write_bytes(data)
    recipe = load_recipe(str(folder / "mine.toml"))
    if type(recipe).from_toml(recipe.to_toml()) != recipe:
        raise Contradiction("the recipe does not survive being stored")


def make_chip(chance: random.Random) -> bytes:
    return _either(chip_text("eyeriss"), chance)


def read_chip(data: bytes, folder: Path, _: random.Random) -> None:
    (folder / "chip.toml").write_bytes(data)
    load_chip(str(folder / "chip.toml"))


# Data files.


def _idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def _mnist() -> dict[str, bytes]:
    values = np.arange(20 * 28 * 28, dtype=np.uint8).reshape(20, 28, 28)
    images, labels = _idx(values), _idx(np.arange(20, dtype=np.uint8) % 10)
    return dict(zip((*mnist.TRAIN, *mnist.TEST), (images, labels) * 2, strict=True))


def make_idx(chance: random.Random) -> bytes:
    data = chance.choice(list(_mnist().values())[:2])
    match chance.randrange(4):
        case 0:
            return changed_bytes(gzip.compress(data), chance)
        case 1:
            return gzip.compress(changed_bytes(data, chance))
        case 2:
            return bytes((0, 0, 8, 3)) + struct.pack(
                ">3I", *(chance.choice((0, 1, 28, 65535, 2**32 - 1)) for _ in range(3))
            )
    return changed_bytes(data, chance)


def read_idx(data: bytes, _: Path, chance: random.Random) -> None:
    files = {name: (name, content) for name, content in _mnist().items()}
    files[chance.choice(mnist.TRAIN)] = ("changed", data)
    _check_data(mnist._data(files, DataConfig(name="mnist"), 0).train)


def make_cifar(chance: random.Random) -> bytes:
    records = np.tile(np.arange(cifar10.RECORD_BYTES, dtype=np.uint8), (3, 1))
    records[:, 0] = (0, 5, 9)
    if chance.random() < 0.3:  # whole records, or their labels would never be read
        records[chance.randrange(3), chance.randrange(4)] = chance.randrange(256)
        return records.tobytes()
    return changed_bytes(records.tobytes(), chance)


def read_cifar(data: bytes, folder: Path, _: random.Random) -> None:
    (folder / "data_batch_1.bin").write_bytes(data)
    _check_data(cifar10._images([folder / "data_batch_1.bin"], DataConfig(name="cifar10"), None, 0))


def _check_data(samples: Any) -> None:
    if len(samples._images) != len(samples._labels):
        raise Contradiction("images and labels differ in number")
    if len(samples._labels) and int(samples._labels.max()) > 9:
        raise Contradiction("a label is not one of ten classes")


# Weights.


def make_weights(chance: random.Random) -> bytes:
    data = (STORED / "run-ring" / "checkpoints" / "final.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    if chance.random() < 0.3:
        return changed_bytes(data, chance)
    if chance.random() < 0.3:
        return changed_bytes(data[: 8 + length], chance) + data[8 + length :]
    header = changed_values(json.loads(data[8 : 8 + length]), chance, msgspec.json.encode)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def read_weights(data: bytes, folder: Path, chance: random.Random) -> None:
    (folder / "weights.safetensors").write_bytes(data)
    changes = {"data.name": "synthetic:1x28x28x10", "data.train_samples": 2, "data.test_samples": 2}
    if chance.random() < 0.5:
        changes["model.name"] = "lenet5"
    model = load_source(find_source(str(folder / "weights.safetensors"), folder, changes)).model
    if not all(bool(value.isfinite().all()) for value in model.state_dict().values()):
        raise Contradiction("a weight is not finite")


# Files of runs.


def make_lines(chance: random.Random) -> bytes:
    lines = (STORED / "run-straggler" / "workers" / "0.jsonl").read_bytes().splitlines(keepends=True)[:60]
    number = chance.randrange(len(lines))
    if chance.random() < 0.7:
        lines[number] = changed_values(json.loads(lines[number]), chance, json_line)
        return b"".join(lines)
    return changed_bytes(b"".join(lines), chance)


def json_line(values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"


def _no_factors(*_: Any) -> tuple[float, float]:
    return 1.0, 1.0


def read_lines(data: bytes, folder: Path, chance: random.Random) -> None:
    run = folder / "run"
    (run / "workers").mkdir(parents=True)
    shutil.copy(STORED / "run-straggler" / "workers" / "1.jsonl", run / "workers")
    file = run / "workers" / "0.jsonl"
    file.write_bytes(data)
    match chance.randrange(4):
        case 0:
            write_merged(run, folder / "trace.json.gz")
        case 1:
            analyse_folder(run, first=0, last=100, factors=_no_factors)
        case 2:
            list(scalars(worker_lines(file)))
        case 3:
            list(rows([ExportSource("run", "ring", run, 0.0, {})]))


def make_spool(chance: random.Random) -> bytes:
    rows = [
        [0.5],
        [spool.STEP, 0, 1.0, 0.5, 0.1, 2.5, 3, 4, 4, 1000],
        [spool.SPAN, 0, 1, 1.0, 1.5],
        [spool.OP, 0, 1, 0, 1000, spool.NO_PEER, 0, 0, 1.1, 1.2],
        [spool.BLOCKED, 0, 1, 0, 1, 0, 1, 1.1, 1.2],
    ]
    if chance.random() < 0.5:
        row = chance.choice(rows)
        row[chance.randrange(len(row))] = chance.choice((-1, 99, 1e300, float("nan"), float("inf"), 0.5, 2**53))
        return array("d", [number for row in rows for number in row]).tobytes()
    return changed_bytes(array("d", [number for row in rows for number in row]).tobytes(), chance)


def read_spool(data: bytes, folder: Path, _: random.Random) -> None:
    (folder / f"0{spool.SUFFIX}").write_bytes(data)
    spool.recover(folder)
    lines = list(worker_lines(folder / "0.jsonl"))
    if lines[-1] != {"kind": "end", "dropped": 0, "complete": False}:
        raise Contradiction("the recovered file does not say that it is not complete")


def read_folder(_: bytes, folder: Path, chance: random.Random) -> None:
    run = folder / "runs" / "run"
    shutil.copytree(chance.choice(sorted(STORED.iterdir())), run)
    change = damage(run, chance)
    fault = fault_of(run, chance.choice(("list", *COMMANDS)))
    if fault:
        raise Contradiction(f"{fault} ({change})")


# Messages of workers on other hosts.

STEP = {"kind": "progress", "rank": 0, "step": 3, "total_steps": 9, "epoch": 1, "iteration": 3, "loss": 0.5}
STEP |= {"accuracy": None, "samples_per_s": 10.5, "in_comm_percent": 3.0}
REPLIES = (
    messages.Ready(),
    messages.StoreOpened(29400),
    messages.Emitted(STEP),
    messages.Emitted({"kind": "warning", "text": "the disk is full"}),
    messages.FilePiece("workers/0.jsonl", b"data", is_first=True),
    messages.Failed("comm", "worker 1 is gone", "Traceback"),
    messages.Enter("/tmp", ["/tmp"]),
    messages.OpenStore("10.0.0.1", 29400, 60.0, bytes(32)),
)


def _report() -> dict[str, Any]:
    totals = json.loads((STORED / "run-ring" / "summary.json").read_text(encoding="utf-8"))["result"]["per_worker"][0]
    history = {name: [1.0, 0.5] for name in ("iteration_s", "data_s", "loss")}
    history |= {name: [3, 4] for name in ("num_right", "num_answers", "num_samples")}
    facts = {"steps_per_epoch": 2, "evaluations": [], "train_s": 1.0, "evaluation_s": 0.5, "replica_drift": 0.0}
    return {**totals, **history, **facts, "strategy_metrics": {}, "num_parameters": 10}


def make_message(chance: random.Random) -> bytes:
    reply = chance.choice((*REPLIES, messages.Done(_report())))
    if chance.random() < 0.4:
        return changed_bytes(messages.encode(reply), chance)
    return changed_values(messages.decode(messages.encode(reply)), chance, messages.encode)


class _Screen(StrategyProgress):
    def say(self, text: str, style: str = "") -> None:  # noqa: ARG002
        if any(not letter.isprintable() for letter in text.replace("\n", "")):
            raise Contradiction(f"control characters reach the terminal: {text[:50]!r}")

    def progress(self, entry: Any, event: Any) -> None:
        _status(entry.label, [event])


def read_message(data: bytes, folder: Path, chance: random.Random) -> None:
    # A framed message arrives from a file as it does from a pipe.
    file = folder / "pipe"
    file.write_bytes(struct.pack("!i", len(data)) + data)
    inward: Connection[Any, Any] = Connection(os.open(file, os.O_RDONLY), writable=False)
    outward: Connection[Any, Any] = Connection(os.open(os.devnull, os.O_WRONLY), readable=False)
    channel = messages.MessagePackChannel(inward, outward)
    try:
        if chance.random() < 0.3:
            channel.receive_order()
            return
        reply = channel.receive()
    finally:
        channel.close()
    if isinstance(reply, messages.Done):
        convert_reports([reply.result], WorkerReport)
    if isinstance(reply, messages.Emitted) and reply.event["kind"] in ("warning", "log", "progress"):
        entry: Any = type("Entry", (), {"label": "ring"})
        if "rounds" not in reply.event:
            _Screen().event(entry, reply.event)


READERS = {
    "recipe": Reader(make_recipe, read_recipe),
    "chip": Reader(make_chip, read_chip),
    "idx": Reader(make_idx, read_idx),
    "cifar": Reader(make_cifar, read_cifar),
    "weights": Reader(make_weights, read_weights),
    "lines": Reader(make_lines, read_lines),
    "spool": Reader(make_spool, read_spool),
    "message": Reader(make_message, read_message),
    "folder": Reader(lambda _: b"", read_folder),
}
