"""The two files that one worker or server writes of a checkpoint: `rank-R.safetensors`, then `rank-R.json`.

The first file holds all tensors. The second file holds everything else, and the size and SHA-256 of the first. It is
written last, so if it exists, the first file is complete too. Both are written by `durable_files`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from paceline.checkpoint.state_tree import Tree, join
from paceline.durable_files import durable_file, write_durably
from paceline.errors import PacelineError, UsageError

SCHEMA = 1
MOST_JSON_BYTES = 1 << 28  # far above the plain values of any worker

# Names of data types in the format safetensors.
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Damaged(PacelineError):
    """Raised if a file of a checkpoint is missing, incomplete or damaged. The message names the file and the reason."""


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts about one worker's or server's part of a checkpoint.

    If the checkpoint is whole, the headers of all its parts are equal, except for `rank` and `run_s`.
    """

    step: int  # number of completed steps
    epoch: int
    rank: int
    workers: int
    servers: int
    strategy: str
    recipe: str  # digest of the settings that the result depends on
    run_s: float = 0.0  # duration of the run until the checkpoint; differs between ranks
    attempt: int  # how often the run was started before; files of two attempts are never one checkpoint
    schema: int = SCHEMA

    @property
    def num_ranks(self) -> int:
        return self.workers + self.servers

    def of_rank(self, rank: int) -> Header:
        return msgspec.structs.replace(self, rank=rank)


@dataclass(frozen=True)
class RankState:
    """The content of one worker's or server's part of a checkpoint."""

    header: Header
    state: Tree


def tensor_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.safetensors"


def header_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def write_rank(folder: Path, header: Header, plain: Any, tensors: dict[str, Tensor]) -> None:
    """Write the files of one rank into the folder of a checkpoint.

    `plain` and `tensors` are the result of `state_tree.split`; the tensors are on the CPU.
    """
    digest = hashlib.sha256()
    size = 0
    target = tensor_file(folder, header.rank)
    with durable_file(target) as file:
        for piece in _pieces(tensors):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
    content = {
        "header": msgspec.to_builtins(header),
        "tensors": {"bytes": size, "sha256": digest.hexdigest()},
        "state": plain,
    }
    text = json.dumps({"sha256": _digest(content), **content}, allow_nan=False).encode()
    write_durably(header_file(folder, header.rank), text)


def read_header(folder: Path, rank: int) -> Header:
    """Read the header of one rank. Raises Damaged if the file is missing or damaged."""
    return _read_content(folder, rank)[0]


def verify_rank(folder: Path, rank: int) -> Header:
    """Check both files of one rank against their checksums, and return the header. Raises Damaged."""
    header, content = _read_content(folder, rank)
    file = tensor_file(folder, rank)
    try:
        with file.open("rb") as stream:
            _check_tensors(file, content, hashlib.file_digest(stream, "sha256").hexdigest(), file.stat().st_size)
    except OSError as error:
        raise Damaged(f"{file.name} cannot be read: {error.strerror}") from None
    return header


def read_rank(folder: Path, rank: int) -> RankState:
    """Read one rank's part of a checkpoint. Raises Damaged if one of its files is missing or damaged."""
    header, content = _read_content(folder, rank)
    file = tensor_file(folder, rank)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise Damaged(f"{file.name} cannot be read: {error.strerror}") from None
    _check_tensors(file, content, hashlib.sha256(data).hexdigest(), len(data))
    try:
        return RankState(header, join(content["state"], load(data)))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise Damaged(f"{file.name} is damaged: {error}") from None


def _read_content(folder: Path, rank: int) -> tuple[Header, dict[str, Any]]:
    file = header_file(folder, rank)
    try:
        if file.stat().st_size > MOST_JSON_BYTES:
            raise Damaged(f"{file.name} is damaged: it is larger than any file of a checkpoint")
        content = json.loads(file.read_bytes())
        if not isinstance(content, dict) or _digest({**content}) != content.get("sha256"):
            raise Damaged(f"{file.name} does not match its checksum")
        schema = content["header"]["schema"]
        if schema != SCHEMA:
            raise Damaged(f"{file.name} has schema {schema}, and this version of paceline reads schema {SCHEMA}")
        header = msgspec.convert(content["header"], Header)
    except FileNotFoundError:
        raise Damaged(f"{file.name} is missing") from None
    except OSError as error:
        raise Damaged(f"{file.name} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise Damaged(f"{file.name} is damaged: {error}") from None
    if header.rank != rank:
        raise Damaged(f"{file.name} is the file of rank {header.rank}")
    return header, content


def _check_tensors(file: Path, content: dict[str, Any], digest: str, size: int) -> None:
    expected = content["tensors"]
    if size != expected["bytes"]:
        raise Damaged(f"{file.name} has {size} bytes instead of {expected['bytes']}")
    if digest != expected["sha256"]:
        raise Damaged(f"{file.name} does not match its checksum")


def _digest(content: dict[str, Any]) -> str:
    content.pop("sha256", None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _pieces(tensors: dict[str, Tensor]) -> list[Any]:
    """Return the content of a file in the format safetensors, as byte strings and views of the tensors' memory.

    The package safetensors would first copy all tensors into one byte string, which doubles the memory of a checkpoint.
    """
    entries: dict[str, Any] = {}
    views, end = [], 0
    # Wide types first: then every tensor begins at a multiple of its element's size.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        if tensor.dtype not in _TYPES:
            raise UsageError(f"a checkpoint cannot hold {name!r}, a tensor of data type {tensor.dtype}")
        view = tensor.reshape(-1).view(torch.uint8).numpy().data
        begin, end = end, end + len(view)
        entries[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        views.append(view)
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    return [len(header).to_bytes(8, "little"), header, *views]
