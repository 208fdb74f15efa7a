"""Load the description of an accelerator chip: a built-in chip by name, or a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from paceline.errors import UsageError, unknown
from paceline.parsing import read_toml

T = TypeVar("T")

MAX_RUN_BITS = 32
MAX_VALUE = 10**15
MAX_WHOLE = 10**9  # the product of two such numbers fits into 64 bits


@dataclass(frozen=True, kw_only=True)
class ScratchPads:
    """Capacity of each scratch pad (local memory) of a PE (processing element), in words."""

    filter: int
    input: int
    partial_sum: int


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """The global buffer. Each of its banks holds either inputs or partial sums.

    A separate part of `filter_bytes` bytes holds the filters that the PEs will load next.
    """

    banks: int
    bank_bytes: int
    filter_bytes: int


@dataclass(frozen=True, kw_only=True)
class OnChipNetwork:
    """Number of words per cycle that the network can move between the buffer and the PEs, for each type of data."""

    filter: int
    input: int
    partial_sum: int


@dataclass(frozen=True, kw_only=True)
class Dram:
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Compression:
    """Parameters of the run-length encoding of zeros in DRAM traffic.

    The encoding stores pairs of a value and the number of zeros before the value. This number has `run_bits` bits.
    """

    run_bits: int
    pairs_per_word: int
    compressed_word_bits: int


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Energy of a multiply-accumulate and of moving one word at each memory level, all in the same unit."""

    mac: float
    register_file: float
    neighbour: float
    buffer: float
    dram: float


SECTIONS: dict[str, type] = {
    "scratch_pads": ScratchPads,
    "buffer": Buffer,
    "network": OnChipNetwork,
    "dram": Dram,
    "compression": Compression,
    "energy": Energy,
}
PLAIN = {"name": str, "description": str, "rows": int, "columns": int, "clock_hz": float, "word_bits": int}


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A chip: an array of PEs (processing elements), its memories and its on-chip network."""

    name: str
    description: str
    rows: int
    columns: int
    clock_hz: float
    word_bits: int
    scratch_pads: ScratchPads
    buffer: Buffer
    network: OnChipNetwork
    dram: Dram
    compression: Compression
    energy: Energy

    def __post_init__(self) -> None:
        coding = self.compression
        if coding.run_bits > MAX_RUN_BITS:
            raise UsageError(
                f"chip {self.name!r} counts zeros in {coding.run_bits} bits (compression.run_bits); "
                f"use at most {MAX_RUN_BITS}"
            )
        needed = coding.pairs_per_word * (coding.run_bits + self.word_bits)
        if needed > coding.compressed_word_bits:
            raise UsageError(
                f"chip {self.name!r} needs {needed} bits per compressed word ({coding.pairs_per_word} pairs of "
                f"{coding.run_bits} + {self.word_bits} bits), but a word has {coding.compressed_word_bits}; give fewer "
                "compression.pairs_per_word or a larger compression.compressed_word_bits"
            )

    @property
    def about(self) -> str:
        """Text with the chip's description, number of PEs, clock rate, buffer size and word size."""
        buffer = self.buffer.banks * self.buffer.bank_bytes + self.buffer.filter_bytes
        return (
            f"{self.description}: {self.rows} x {self.columns} PEs at {self.clock_hz / 1e6:g} MHz, "
            f"{buffer / 1024:g} KB global buffer, {self.word_bits} bits"
        )

    @property
    def num_pes(self) -> int:
        return self.rows * self.columns

    @property
    def word_bytes(self) -> float:
        return self.word_bits / 8


def load_chip(name: str) -> Chip:
    """Return the built-in chip `name`, or a user's chip if `name` is the path of a TOML file."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise UsageError(f"chip file {name!r} does not exist")
        try:
            return _parse(path.read_text(encoding="utf-8"), name)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"chip file {name!r} cannot be read: {error}") from None
    return _parse(chip_text(name), name)


def chip_text(name: str) -> str:
    """Return the text of a built-in chip's TOML file, with comments, as a template for a user's file."""
    if name not in chip_names():
        raise unknown("chip", name, chip_names())
    return (resources.files(__name__) / f"{name}.toml").read_text(encoding="utf-8")


def chip_names() -> list[str]:
    files = (entry.name for entry in resources.files(__name__).iterdir())
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def _parse(text: str, where: str) -> Chip:
    values = read_toml(text, f"chip {where!r}")
    _check_keys(values, {*PLAIN, *SECTIONS}, f"chip {where!r}")
    sections: dict[str, Any] = {name: _section(cls, values[name], f"{where}: {name}") for name, cls in SECTIONS.items()}
    plain = {name: _value(kind, values[name], f"{where}: {name}") for name, kind in PLAIN.items()}
    return Chip(**plain, **sections)


def _section(cls: type[T], given: Any, where: str) -> T:
    kinds: dict[str, type] = {field.name: {"int": int, "float": float}[str(field.type)] for field in fields(cls)}  # type: ignore[arg-type]
    if not isinstance(given, dict):
        raise UsageError(f"{where} is not a section")
    _check_keys(given, set(kinds), where)
    return cls(**{name: _value(kind, given[name], f"{where}.{name}") for name, kind in kinds.items()})


def _check_keys(given: Mapping[str, object], known: set[str], where: str) -> None:
    for name in given:
        if name not in known:
            raise unknown(f"key of {where}", name, known)
    if missing := sorted(known - set(given)):
        raise UsageError(f"{where} lacks {', '.join(missing)}")


def _is_number(kind: type, given: Any) -> bool:
    return isinstance(given, (int, float) if kind is float else int) and not isinstance(given, bool)


def _value(kind: type, given: Any, where: str) -> Any:
    if kind is str:
        if isinstance(given, str):
            return given
    elif _is_number(kind, given) and 0 < given <= (MAX_VALUE if kind is float else MAX_WHOLE):
        return kind(given)
    wanted = {str: "text", int: "a whole number", float: "a number"}[kind]
    more = "" if kind is str else f" above 0, at most {MAX_VALUE if kind is float else MAX_WHOLE:.0e}"
    raise UsageError(f"{where} must be {wanted}{more}, not {given!r}")
