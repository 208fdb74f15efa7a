"""Value change dumps (IEEE 1364): for every PE its operation, operands and result, one time unit per cycle."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import TextIO

from paceline.dataflow.events import Event

# Idle is 0; a PE with a multiplier and an adder shows each on its own signals.
OPERATIONS = {"multiply": 1, "add": 2, "sum": 3, "send": 4}
UNITS = {"multiply": "multiplier", "add": "adder", "sum": "adder", "send": "sender"}
SIGNALS = ("operation", "left", "right", "result")

Key = tuple[int, int, str]  # row, column, unit


def write_vcd(found: Iterable[Event], file: TextIO, *, array: tuple[int, int], cycles: int) -> int:
    """Events must come by cycle. Time t is the beginning of cycle t + 1; an idle unit keeps its last operands."""
    names = {
        (row, column, unit): [_identifier(number) for number in range(base, base + len(SIGNALS))]
        for base, (row, column, unit) in zip(
            itertools.count(1, len(SIGNALS)),
            itertools.product(range(array[0]), range(array[1]), ("multiplier", "adder", "sender")),
            strict=False,
        )
    }
    file.writelines(_header(names, array))
    changes = _Changes(file, names)
    count = 0
    for event in found:
        changes.start(event)
        count += 1
    changes.finish(cycles)
    return count


def _header(names: dict[Key, list[str]], array: tuple[int, int]) -> Iterator[str]:
    yield "$comment a row-stationary array, one time unit per cycle; operation: "
    yield ", ".join(f"{code} {name}" for name, code in OPERATIONS.items()) + " $end\n"
    yield "$timescale 1 ns $end\n$scope module array $end\n"
    yield f"$var integer 32 {_identifier(0)} cycle $end\n"
    for row, column in itertools.product(range(array[0]), range(array[1])):
        yield f"$scope module pe_{row}_{column} $end\n"
        for unit in ("multiplier", "adder", "sender"):
            yield f"$scope module {unit} $end\n"
            for signal, identifier in zip(SIGNALS, names[row, column, unit], strict=True):
                kind = "wire 3" if signal == "operation" else "real 64"
                yield f"$var {kind} {identifier} {signal} $end\n"
            yield "$upscope $end\n"
        yield "$upscope $end\n"
    yield "$upscope $end\n$enddefinitions $end\n$dumpvars\n"
    yield f"b0 {_identifier(0)}\n"
    for operation, *values in names.values():
        yield f"b0 {operation}\n"
        yield from (f"r0 {identifier}\n" for identifier in values)
    yield "$end\n"


class _Changes:
    """Writes changes in order of time, each signal at most once per time; what ends is remembered until then."""

    def __init__(self, file: TextIO, names: dict[Key, list[str]]) -> None:
        self._file = file
        self._names = names
        self._ends: list[tuple[int, Key]] = []
        self._until: dict[Key, int] = {}
        self._time = 0
        self._pending: dict[str, str] = {}

    def start(self, event: Event) -> None:
        key = (*event.place, UNITS[event.operation])
        self._advance(event.cycle - 1)
        operation, *operands = self._names[key]
        self._pending[operation] = f"b{OPERATIONS[event.operation]:b} {operation}\n"
        for identifier, value in zip(operands, (event.left, event.right, event.result), strict=True):
            if value is not None:
                self._pending[identifier] = f"r{value:.17g} {identifier}\n"
        self._until[key] = max(event.last_cycle, event.cycle)
        heapq.heappush(self._ends, (self._until[key], key))

    def finish(self, cycles: int) -> None:
        self._advance(cycles)
        self._flush()

    def _advance(self, time: int) -> None:
        """To that time, past the ends of operations on the way."""
        while self._ends and self._ends[0][0] <= time:
            end, key = heapq.heappop(self._ends)
            if self._until.get(key) == end:
                self._move(end)
                operation = self._names[key][0]
                self._pending[operation] = f"b0 {operation}\n"
                del self._until[key]
        self._move(time)

    def _move(self, time: int) -> None:
        if time > self._time:
            self._flush()
            self._time = time

    def _flush(self) -> None:
        self._file.write(f"#{self._time}\nb{self._time:b} {_identifier(0)}\n")
        self._file.writelines(self._pending.values())
        self._pending.clear()


def _identifier(number: int) -> str:
    """A short name from the printable characters that the format allows."""
    text = ""
    while True:
        number, digit = divmod(number, 94)
        text += chr(33 + digit)
        if not number:
            return text
