"""Traces as files: CSV and JSON with every event, VCD for waveform viewers such as GTKWave."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from paceline.dataflow.events import Event, count_events, events
from paceline.dataflow.simulate import Simulation
from paceline.dataflow.vcd import write_vcd
from paceline.errors import RunError, UsageError
from paceline.files import whole_file
from paceline.results.value import Json

SCHEMA = 1
MAX_EVENTS = 20_000_000  # some gigabytes; and as many cycles, each of which has a line in a .vcd
COLUMNS: tuple[str, ...] = (
    "cycle",
    "last_cycle",
    "pass",
    "row",
    "column",
    "operation",
    "left",
    "right",
    "result",
    "image",
    "filter",
)
COLUMNS += ("output_row", "output_column", "loads", "from_row", "from_column", "to_row", "to_column", "is_complete")


def check_trace_file(target: str) -> None:
    """Said before anything is simulated."""
    if Path(target).suffix.lower() not in _WRITERS:
        raise UsageError(f"--trace {target!r}: name a file that ends in {', '.join(_WRITERS)}")


def check_trace(simulation: Simulation, target: str) -> None:
    """Whether there is too much to write; nothing is calculated for it."""
    sizes = {"events": count_events(simulation)}
    if Path(target).suffix.lower() == ".vcd":
        sizes["cycles"] = simulation.cycles
    for what, count in sizes.items():
        if count > MAX_EVENTS:
            raise UsageError(
                f"this trace would have {count:,} {what}, and {MAX_EVENTS:,} are the most that is written; "
                "trace a part of the input, fewer filters, or shorter operations"
            )


def write_trace(simulation: Simulation, target: str) -> int:
    """Write every event, a pass at a time, so that a long trace fits into memory; returns how many there were."""
    check_trace_file(target)
    check_trace(simulation, target)
    try:
        with whole_file(target) as file:
            return _WRITERS[Path(target).suffix.lower()](simulation, file)
    except OSError as error:
        raise RunError(f"{target!r} cannot be written: {error.strerror}") from None


def event_row(event: Event) -> Json:
    """An event as plain values, by column."""
    source, target = event.source or (None, None), event.target or (None, None)
    values: tuple[Any, ...] = (event.cycle, event.last_cycle, event.number, *event.place, event.operation)
    values += (event.left, event.right, event.result, *event.output, "+".join(event.loads))
    return dict(zip(COLUMNS, (*values, *source, *target, event.is_complete), strict=True))


def _write_csv(simulation: Simulation, file: TextIO) -> int:
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    return _each(events(simulation), lambda event: writer.writerow(event_row(event)))


def _write_json(simulation: Simulation, file: TextIO) -> int:
    """One object per line within the list, so that a long one can be read with line tools as well."""
    plan = simulation.plan
    head = {"schema": SCHEMA, "model": plan.timing.model, "cycles": simulation.cycles, "array": list(plan.array)}
    file.write(json.dumps(head)[:-1] + ', "events": [')
    separators = _separators()
    count = _each(events(simulation), lambda event: file.write(next(separators) + json.dumps(event_row(event))))
    file.write("\n]}\n")
    return count


def _write_waves(simulation: Simulation, file: TextIO) -> int:
    return write_vcd(
        events(simulation),
        file,
        places=simulation.plan.places,
        cycles=simulation.cycles,
        is_whole=simulation.operands.images.dtype.kind == "i",
    )


def _each(found: Iterable[Event], write: Callable[[Event], object]) -> int:
    count = 0
    for event in found:
        write(event)
        count += 1
    return count


def _separators() -> Iterator[str]:
    yield "\n"
    while True:
        yield ",\n"


_WRITERS: dict[str, Callable[[Simulation, TextIO], int]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".vcd": _write_waves,
}
