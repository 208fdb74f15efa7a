"""Events and trace files: every value follows from those before it, and no PE does two things at once."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from dataflow_reference import arrays, convolutions, timings
from paceline.dataflow.matrices import make_operands, read_matrix
from paceline.dataflow.pe_events import OPERATIONS, count_events, events
from paceline.dataflow.simulation_results import conv_accesses
from paceline.dataflow.simulator import Simulation
from paceline.dataflow.timing import MODELS, Timing
from paceline.dataflow.trace_export import write_trace
from paceline.errors import UsageError
from properties import examples


def simulated(model: str = "single-alu", array: tuple[int, int] | None = None, **timing: int) -> Simulation:
    image, kernel = read_matrix("1 3 9; 4 5 6; 7 4 9", "--input"), read_matrix("-1 2; 2 -1", "--kernel")
    return Simulation.of(make_operands(image, kernel), Timing(model=model, **timing), array)


@examples(150)
@given(convolutions(), arrays(), timings())
def test_events_tell_the_whole_story(case: tuple[Any, Any, Any], array: tuple[int, int] | None, timing: Timing) -> None:
    """Played back by somebody who knows nothing but addition and multiplication, they give the output."""
    simulation = Simulation.of(case[2], timing, array)
    complete: dict[tuple[int, ...], Any] = {}
    sums: dict[Any, Any] = {}
    waiting: dict[Any, list[Any]] = defaultdict(list)  # products that are made and not added yet
    count, last = 0, 0
    for event in events(simulation):
        count += 1
        last = max(last, event.last_cycle)
        here = (event.number, event.place, event.output)
        if event.operation == "multiply":
            assert event.result == event.left * event.right
            if here in sums:
                waiting[here].append(event.result)
            sums.setdefault(here, event.result)
        elif event.operation == "add":
            assert (event.left, event.right) == (sums[here], waiting[here].pop(0))
            sums[here] = event.left + event.right
            assert event.result == sums[here]
        elif event.operation == "send":
            assert event.result == sums[here]
        else:
            is_kept = event.source == event.place  # from the fold before
            theirs = sums[event.number - is_kept, event.source, event.output]
            assert (event.left, event.right) == (sums[here], theirs)
            sums[here] = event.left + event.right
            assert event.result == sums[here]
        if event.is_complete:
            assert event.output not in complete
            complete[event.output] = event.result
    assert not any(waiting.values())
    assert count == count_events(simulation)
    assert last == simulation.cycles
    output = np.zeros_like(simulation.output)
    for index, value in complete.items():
        output[index] = value
    assert len(complete) == output.size
    assert (output == simulation.output).all()


@examples(100)
@given(convolutions(), arrays(), timings())
def test_a_unit_does_one_thing_at_a_time(
    case: tuple[Any, Any, Any], array: tuple[int, int] | None, timing: Timing
) -> None:
    simulation = Simulation.of(case[2], timing, array)
    busy: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for event in events(simulation):
        assert 0 <= event.place[0] < simulation.plan.array[0]
        assert 0 <= event.place[1] < simulation.plan.array[1]
        is_free = event.operation == "send" or (timing.model == "mac" and event.operation != "multiply")
        if not is_free:
            unit = event.operation == "multiply" if timing.model == "pipelined" else None
            busy[event.place, unit].append((event.cycle, event.last_cycle))
    for spans in busy.values():
        for (_, end), (start, _) in zip(sorted(spans), sorted(spans)[1:], strict=False):
            assert start > end


@examples(150)
@given(convolutions(), arrays(), timings())
def test_accesses_are_those_of_the_events(
    case: tuple[Any, Any, Any], array: tuple[int, int] | None, timing: Timing
) -> None:
    simulation = Simulation.of(case[2], timing, array)
    counted: Counter[str] = Counter()
    for event in events(simulation):
        counted.update(f"{kind} received" for kind in event.loads)
        counted[event.operation] += 1
        counted["started"] += event.operation == "multiply" and event.tap == 0
        counted["kept"] += event.source == event.place
        counted["complete"] += event.is_complete
    moved = conv_accesses(simulation)
    assert moved.neighbour == {
        "filter": counted["weight received"],
        "input": counted["input received"],
        "partial_sum": counted["send"],
    }
    additions = counted["add"] + counted["sum"]
    passed_on = counted["send"] + counted["kept"] + counted["complete"]
    assert moved.register_file == {
        "filter": counted["multiply"] + counted["weight received"],
        "input": counted["multiply"] + counted["input received"],
        "partial_sum": counted["started"] + 2 * additions + passed_on,
    }


def test_the_cycles_of_the_worked_example() -> None:
    found = [event for event in events(simulated()) if event.place == (0, 0)]
    said = [(event.cycle, event.operation, event.left, event.right, event.result) for event in found]
    assert said == [
        (1, "multiply", -1, 1, -1),
        (2, "multiply", 2, 3, 6),
        (3, "add", -1, 6, 5),
        (4, "multiply", -1, 3, -3),
        (5, "multiply", 2, 9, 18),
        (6, "add", -3, 18, 15),
        (7, "sum", 5, 3, 8),
        (8, "sum", 15, 4, 19),
    ]
    assert [event.loads for event in found[:5]] == [("weight", "input"), ("weight", "input"), (), (), ("input",)]
    assert [event.source for event in found[-2:]] == [(1, 0), (1, 0)]


def test_csv_and_json_hold_the_same(tmp_path: Path) -> None:
    simulation = simulated("pipelined", (1, 2), add_cycles=2)
    assert write_trace(simulation, str(tmp_path / "a.csv")) == count_events(simulation)
    write_trace(simulation, str(tmp_path / "a.json"))
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    whole = json.loads((tmp_path / "a.json").read_text())
    assert whole["cycles"] == simulation.cycles
    assert whole["array"] == [1, 2]
    assert [{key: "" if value is None else str(value) for key, value in row.items()} for row in whole["events"]] == rows
    complete = {
        (row["output_row"], row["output_column"]): row["result"] for row in whole["events"] if row["is_complete"]
    }
    assert complete == {(0, 0): 8, (0, 1): 19, (1, 0): 16, (1, 1): 6}
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["a.csv", "a.json"]


UNITS = {"multiply": "multiplier", "add": "adder", "send": "sender", "sum": "column"}
WAVES = {
    "the worked example": ("1 3 9; 4 5 6; 7 4 9", "-1 2; 2 -1"),
    "broken numbers": ("1.5 3 9; 4 5 0.1; 7 4 9; 1 2 3", "-1 2; 2 -1; 1 0.25"),
    "large whole numbers": (f"{2**53 + 1} -3; -1 {2**55 + 3}", "1 -1"),
}


@pytest.mark.parametrize("given", WAVES)
@pytest.mark.parametrize("model", MODELS)
def test_waves(tmp_path: Path, model: str, given: str) -> None:
    """A reader of the format sees, in each cycle, exactly what the events say; of several at once, the last."""
    image, kernel = (read_matrix(text, "--input") for text in WAVES[given])
    simulation = Simulation.of(make_operands(image, kernel), Timing(model=model, multiply_cycles=2), (3, 4))
    write_trace(simulation, str(tmp_path / "a.vcd"))
    signals, states = read_vcd((tmp_path / "a.vcd").read_text())
    found = list(events(simulation))
    pes = {f"array.pe_{row}_{column}" for row, column in {event.place for event in found}}
    units = {f"{pe}.{unit}" for pe in pes for unit in UNITS.values()}
    parts = ("operation", "left", "right", "result")
    assert set(signals.values()) == {"array.cycle"} | {f"{unit}.{part}" for unit in units for part in parts}
    assert sorted(states) == list(range(simulation.cycles + 1))
    shown = dict.fromkeys(set(signals.values()) - {"array.cycle"}, 0)
    for cycle in range(1, simulation.cycles + 1):
        shown |= {f"{unit}.operation": 0 for unit in units}
        for event in found:
            if event.cycle <= cycle <= max(event.last_cycle, event.cycle):
                unit = f"array.pe_{event.place[0]}_{event.place[1]}.{UNITS[event.operation]}"
                shown[f"{unit}.operation"] = 1 + OPERATIONS.index(event.operation)
                values = {"left": event.left, "right": event.right, "result": event.result}
                shown |= {f"{unit}.{part}": value for part, value in values.items() if value is not None}
        assert states[cycle - 1] == {**shown, "array.cycle": cycle}, cycle
    assert all(states[simulation.cycles][f"{unit}.operation"] == 0 for unit in units)


@pytest.mark.skipif(shutil.which("vcd2fst") is None, reason="GTKWave's converter is not installed")
def test_gtkwave_reads_the_same(tmp_path: Path) -> None:
    write_trace(simulated("mac", (1, 2)), str(tmp_path / "a.vcd"))
    subprocess.run(["vcd2fst", "a.vcd", "a.fst"], cwd=tmp_path, check=True, capture_output=True)
    back = subprocess.run(["fst2vcd", "a.fst"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert read_vcd(back) == read_vcd((tmp_path / "a.vcd").read_text())


def read_vcd(text: str) -> tuple[dict[str, str], dict[int, dict[str, float]]]:
    """Signals by identifier, and the values of all of them after each time: a reader of the format's grammar."""
    head, _, body = text.partition("$enddefinitions $end")
    signals: dict[str, str] = {}
    is_signed: set[str] = set()
    scope: list[str] = []
    words = iter(head.split())
    for word in words:
        if word == "$scope":
            _, name = next(words), next(words)
            scope.append(name)
        elif word == "$upscope":
            scope.pop()
        elif word == "$var":
            kind, _, identifier, name = (next(words) for _ in range(4))
            assert identifier not in signals
            signals[identifier] = ".".join([*scope, name])
            is_signed |= {identifier} if kind == "integer" else set()
    assert scope == []
    values: dict[str, float] = {}
    states: dict[int, dict[str, float]] = {}
    time, changed = -1, set[str]()
    tokens = iter(body.split())
    for token in tokens:
        if token.startswith("#"):
            assert int(token[1:]) > time
            time, changed = int(token[1:]), set()
        elif token not in ("$dumpvars", "$end"):
            identifier = next(tokens)
            assert identifier not in changed, f"{signals[identifier]} changes twice at {time}"
            changed.add(identifier)
            assert token[0] in "br"
            value = int(token[1:], 2) if token[0] == "b" else float(token[1:])
            is_negative = identifier in is_signed and value >= 2**63
            values[signals[identifier]] = value - 2**64 if is_negative else value
        states[time] = dict(values)
    assert set(values) == set(signals.values())
    return signals, states


def test_traces_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in \.csv, \.json, \.vcd"):
        write_trace(simulated(), str(tmp_path / "a.txt"))
    large = make_operands(np.zeros((64, 64, 64), dtype=int), np.zeros((64, 64, 3, 3), dtype=int))
    with pytest.raises(UsageError, match="events, but the limit is 20,000,000"):
        write_trace(Simulation.of(large, Timing()), str(tmp_path / "a.csv"))
    with pytest.raises(UsageError, match="4,000,000,004 cycles, but the limit is 20,000,000"):
        write_trace(simulated(multiply_cycles=1_000_000_000), str(tmp_path / "a.vcd"))
    assert list(tmp_path.iterdir()) == []
