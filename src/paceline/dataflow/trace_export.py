"""Write the operations of a simulated convolution to a trace file.

CSV and JSON files have one row per event, which is an operation of a processing element (PE). VCD files (IEEE 1364) are
for waveform viewers such as GTKWave.
"""

from __future__ import annotations

import csv
import heapq
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from paceline.dataflow.pe_events import OPERATIONS, Event, Number, Place, count_events, events
from paceline.dataflow.simulator import Simulation
from paceline.errors import RunError, UsageError
from paceline.output_files import atomic_file
from paceline.results.value import Json

SCHEMA = 1
MAX_EVENTS = 20_000_000  # a few gigabytes; also the limit on cycles, because a .vcd file lists every cycle
COLUMNS = (
    *("cycle", "last_cycle", "pass", "row", "column", "operation", "left", "right", "result", "image", "filter"),
    *("output_row", "output_column", "loads", "from_row", "from_column", "to_row", "to_column", "is_complete"),
)


def check_trace_file(target: str) -> None:
    """Raise UsageError if the file name has no supported ending."""
    if Path(target).suffix.lower() not in _WRITERS:
        raise UsageError(f"--trace {target!r}: name a file that ends in {', '.join(_WRITERS)}")


def check_trace(simulation: Simulation, target: str) -> None:
    """Raise UsageError if the trace would be too large. The simulation is not run."""
    sizes = {"events": count_events(simulation)}
    if Path(target).suffix.lower() == ".vcd":
        sizes["cycles"] = simulation.cycles
    for what, count in sizes.items():
        if count > MAX_EVENTS:
            raise UsageError(
                f"this trace would have {count:,} {what}, but the limit is {MAX_EVENTS:,}; "
                "trace a part of the input, fewer filters, or shorter operations"
            )


def write_trace(simulation: Simulation, target: str) -> int:
    """Write every event to the file `target`, and return the number of events.

    The ending of the file name selects the format. Only the events of one pass at a time are held in memory.
    """
    check_trace_file(target)
    check_trace(simulation, target)
    try:
        with atomic_file(target) as file:
            return _WRITERS[Path(target).suffix.lower()](simulation, file)
    except OSError as error:
        raise RunError(f"{target!r} cannot be written: {error.strerror}") from None


def event_row(event: Event) -> Json:
    """Return an event as a dictionary of plain values, by column name of the trace file."""
    source, target = event.source or (None, None), event.target or (None, None)
    values: tuple[Any, ...] = (event.cycle, event.last_cycle, event.number, *event.place, event.operation)
    values += (event.left, event.right, event.result, *event.output, "+".join(event.loads))
    return dict(zip(COLUMNS, (*values, *source, *target, event.is_complete), strict=True))


def _write_csv(simulation: Simulation, file: TextIO) -> int:
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    return _for_each(events(simulation), lambda event: writer.writerow(event_row(event)))


def _write_json(simulation: Simulation, file: TextIO) -> int:
    """Write a JSON file with one event per line, for line-based tools, and return the number of events."""
    plan = simulation.plan
    head = {"schema": SCHEMA, "model": plan.timing.model, "cycles": simulation.cycles, "array": list(plan.array)}
    file.write(json.dumps(head)[:-1] + ', "events": [')
    separators = itertools.chain(["\n"], itertools.repeat(",\n"))
    count = _for_each(events(simulation), lambda event: file.write(next(separators) + json.dumps(event_row(event))))
    file.write("\n]}\n")
    return count


def _write_waves(simulation: Simulation, file: TextIO) -> int:
    return write_vcd(
        events(simulation),
        file,
        places=simulation.plan.places,
        cycles=simulation.cycles,
        has_integers=simulation.operands.images.dtype.kind == "i",
    )


def _for_each(found: Iterable[Event], write: Callable[[Event], object]) -> int:
    """Call `write` with every event and return the number of events."""
    count = 0
    for event in found:
        write(event)
        count += 1
    return count


_WRITERS: dict[str, Callable[[Simulation, TextIO], int]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".vcd": _write_waves,
}


# Each unit of a PE has its own signals, because under some execution models the units work in parallel.
UNITS = {"multiply": "multiplier", "add": "adder", "send": "sender", "sum": "column"}
CODES = {operation: number for number, operation in enumerate(OPERATIONS, start=1)}  # 0 is idle
SIGNALS = ("operation", "left", "right", "result")

Key = tuple[int, int, str]  # row, column, unit


def write_vcd(found: Iterable[Event], file: TextIO, *, places: Sequence[Place], cycles: int, has_integers: bool) -> int:
    """Write the events `found` as a value change dump (VCD), and return the number of events.

    The events must be ordered by cycle. `places` has the row and column of each PE (processing element). Time t is the
    start of cycle t + 1. An idle unit of a PE, such as its adder, keeps its last operands. Integers are written as
    64-bit vectors, because reals could round them. Other numbers are written as reals. If a unit has several events in
    one cycle (additions of 0 cycles), only the last event is written.
    """
    keys = [(*place, unit) for place in places for unit in UNITS.values()]
    names = {
        key: [_identifier(number) for number in range(base, base + len(SIGNALS))]
        for base, key in zip(itertools.count(1, len(SIGNALS)), keys, strict=False)
    }
    file.writelines(_header(names, places, has_integers=has_integers))
    changes = _ChangeWriter(file, names, has_integers=has_integers)
    count = _for_each(found, changes.start)
    changes.finish(cycles)
    return count


def _header(names: dict[Key, list[str]], places: Sequence[Place], *, has_integers: bool) -> Iterator[str]:
    yield "$comment a row-stationary array, one time unit per cycle; operation: 0 idle, "
    yield ", ".join(f"{code} {name}" for name, code in CODES.items()) + " $end\n"
    yield "$timescale 1 ns $end\n$scope module array $end\n"
    yield f"$var integer 64 {_identifier(0)} cycle $end\n"
    value = "integer 64" if has_integers else "real 64"
    for row, column in places:
        yield f"$scope module pe_{row}_{column} $end\n"
        for unit in UNITS.values():
            yield f"$scope module {unit} $end\n"
            for signal, identifier in zip(SIGNALS, names[row, column, unit], strict=True):
                yield f"$var {'wire 3' if signal == 'operation' else value} {identifier} {signal} $end\n"
            yield "$upscope $end\n"
        yield "$upscope $end\n"
    yield "$upscope $end\n$enddefinitions $end\n"


def _change(value: Number, identifier: str, *, has_integers: bool) -> str:
    """Format a signal's new value as a line of a VCD file, with integers in two's complement."""
    return f"b{int(value) % 2**64:b} {identifier}\n" if has_integers else f"r{value:.17g} {identifier}\n"


class _ChangeWriter:
    """A writer of signals' changes to a VCD file, in order of time, with at most one change per signal and time.

    The ends of operations are queued until the writer reaches their time.
    """

    def __init__(self, file: TextIO, names: dict[Key, list[str]], *, has_integers: bool) -> None:
        self._file = file
        self._names = names
        self._is_whole = has_integers
        self._ends: list[tuple[int, Key]] = []
        self._until: dict[Key, int] = {}
        self._time = 0
        self._pending: dict[str, str] = {}
        for operation, *operands in names.values():
            self._pending[operation] = f"b0 {operation}\n"
            self._pending |= {one: _change(0, one, has_integers=has_integers) for one in operands}

    def start(self, event: Event) -> None:
        key = (*event.place, UNITS[event.operation])
        self._advance(event.cycle - 1)
        operation, *operands = self._names[key]
        self._pending[operation] = f"b{CODES[event.operation]:b} {operation}\n"
        for identifier, value in zip(operands, (event.left, event.right, event.result), strict=True):
            if value is not None:
                self._pending[identifier] = _change(value, identifier, has_integers=self._is_whole)
        self._until[key] = max(event.last_cycle, event.cycle)
        heapq.heappush(self._ends, (self._until[key], key))

    def finish(self, cycles: int) -> None:
        """Write the remaining changes up to the end of the last cycle, when all units are idle."""
        self._advance(cycles)
        self._file.write(f"#{cycles}\n")
        self._file.writelines(self._pending.values())

    def _advance(self, time: int) -> None:
        """Advance to `time`. For every operation that ends by then, write that its unit becomes idle at its end."""
        while self._ends and self._ends[0][0] <= time:
            end, key = heapq.heappop(self._ends)
            if self._until.get(key) == end:
                self._move(end)
                operation = self._names[key][0]
                self._pending[operation] = f"b0 {operation}\n"
                del self._until[key]
        self._move(time)

    def _move(self, time: int) -> None:
        """Advance to `time`: write the changes pending at the current time, and the cycle number at each step."""
        while self._time < time:
            self._file.write(f"#{self._time}\nb{self._time + 1:b} {_identifier(0)}\n")
            self._file.writelines(self._pending.values())
            self._pending.clear()
            self._time += 1


def _identifier(number: int) -> str:
    """Return the short name of signal `number`, made of the printable characters that VCD allows."""
    text = ""
    while True:
        number, digit = divmod(number, 94)
        text += chr(33 + digit)
        if not number:
            return text
