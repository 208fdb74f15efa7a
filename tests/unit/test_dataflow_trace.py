"""Events and trace files: every value follows from those before it, and no PE does two things at once."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from dataflow_reference import arrays, convolutions, timings
from paceline.dataflow.counting import conv_accesses
from paceline.dataflow.events import count_events, events
from paceline.dataflow.matrices import read_matrix
from paceline.dataflow.operands import make_operands
from paceline.dataflow.simulate import Simulation
from paceline.dataflow.timing import Timing
from paceline.dataflow.trace import write_trace
from paceline.errors import UsageError


def simulated(model: str = "single-alu", array: tuple[int, int] | None = None, **timing: int) -> Simulation:
    image, kernel = read_matrix("1 3 9; 4 5 6; 7 4 9", "--input"), read_matrix("-1 2; 2 -1", "--kernel")
    return Simulation.of(make_operands(image, kernel), Timing(model=model, **timing), array)


@settings(max_examples=150, deadline=None)
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


@settings(max_examples=100, deadline=None)
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


@settings(max_examples=150, deadline=None)
@given(convolutions(), arrays(), timings())
def test_accesses_are_those_of_the_events(
    case: tuple[Any, Any, Any], array: tuple[int, int] | None, timing: Timing
) -> None:
    simulation = Simulation.of(case[2], timing, array)
    counted: Counter[str] = Counter()
    for event in events(simulation):
        counted.update(f"{kind} received" for kind in event.loads)
        counted[event.operation] += 1
        counted["kept"] += event.source == event.place
    moved = conv_accesses(simulation)
    assert moved.neighbour == {
        "filter": counted["weight received"],
        "input": counted["input received"],
        "partial_sum": counted["send"],
    }
    assert moved.register_file["filter"] == counted["multiply"] + counted["weight received"]
    assert moved.buffer["partial_sum"] == 2 * counted["kept"] + simulation.plan.shape.num_outputs
    assert moved.buffer["filter"] <= moved.neighbour["filter"] + moved.dram["filter"]
    assert moved.buffer["input"] <= moved.neighbour["input"] + moved.dram["input"]


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


@pytest.mark.parametrize("model", ["serial", "single-alu", "pipelined", "mac"])
def test_waves(tmp_path: Path, model: str) -> None:
    """A reader of the format sees, in each cycle, exactly what the events say."""
    simulation = simulated(model, (2, 3), multiply_cycles=2)
    write_trace(simulation, str(tmp_path / "a.vcd"))
    signals, states = read_vcd((tmp_path / "a.vcd").read_text())
    assert len(signals) == 1 + 2 * 3 * 3 * 4
    assert max(states) == simulation.cycles
    codes = {"multiply": 1, "add": 2, "sum": 3, "send": 4}
    units = {"multiply": "multiplier", "add": "adder", "sum": "adder", "send": "sender"}
    expected: dict[tuple[int, str], tuple[int, Any]] = {}
    for event in events(simulation):
        for cycle in range(event.cycle, max(event.last_cycle, event.cycle) + 1):
            name = f"array.pe_{event.place[0]}_{event.place[1]}.{units[event.operation]}"
            expected[cycle, name] = (codes[event.operation], event.result)
    for cycle in range(1, simulation.cycles + 1):
        state = states[max(time for time in states if time <= cycle - 1)]
        assert state["array.cycle"] <= cycle - 1
        for name in {name.rpartition(".")[0] for name in signals.values() if name != "array.cycle"}:
            operation, value = expected.get((cycle, name), (0, None))
            assert state[f"{name}.operation"] == operation, (cycle, name)
            assert value is None or state[f"{name}.result"] == value
    assert all(states[simulation.cycles][name] == 0 for name in signals.values() if name.endswith(".operation"))


def read_vcd(text: str) -> tuple[dict[str, str], dict[int, dict[str, float]]]:
    """Signals by identifier, and the values of all of them after each time: a reader of the format's grammar."""
    head, _, body = text.partition("$enddefinitions $end")
    signals: dict[str, str] = {}
    scope: list[str] = []
    words = iter(head.split())
    for word in words:
        if word == "$scope":
            _, name = next(words), next(words)
            scope.append(name)
        elif word == "$upscope":
            scope.pop()
        elif word == "$var":
            _, _, identifier, name = (next(words) for _ in range(4))
            assert identifier not in signals
            signals[identifier] = ".".join([*scope, name])
    assert scope == []
    values: dict[str, float] = {}
    states: dict[int, dict[str, float]] = {}
    time, changed = -1, set[str]()
    tokens = iter(body.split())
    for token in tokens:
        if token in ("$dumpvars", "$end"):
            changed = set()
        elif token.startswith("#"):
            assert int(token[1:]) > time
            time, changed = int(token[1:]), set()
        else:
            identifier = next(tokens)
            assert identifier not in changed, f"{signals[identifier]} changes twice at {time}"
            changed.add(identifier)
            values[signals[identifier]] = float(int(token[1:], 2)) if token[0] == "b" else float(token[1:])
            assert token[0] in "br"
        states[time] = dict(values)
    assert set(values) == set(signals.values())
    return signals, states


def test_traces_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in \.csv, \.json, \.vcd"):
        write_trace(simulated(), str(tmp_path / "a.txt"))
    large = make_operands(np.zeros((64, 64, 64), dtype=int), np.zeros((64, 64, 3, 3), dtype=int))
    with pytest.raises(UsageError, match="events, and 20,000,000 are the most"):
        write_trace(Simulation.of(large, Timing()), str(tmp_path / "a.csv"))
    assert list(tmp_path.iterdir()) == []
