"""Strict reader of the trace event format: reports errors that viewers ignore."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]

NAMING = {
    "process_name": "name",
    "thread_name": "name",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}


class FormatError(Exception):
    pass


def need(condition: bool, text: str, event: Any = None) -> None:
    if not condition:
        raise FormatError(f"{text}: {event}")


def read_strictly(path: Path) -> list[Event]:
    """Return the events of a trace file after checking them."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    trace = json.loads(data, parse_constant=lambda word: need(False, f"{word} is not JSON"))
    need(isinstance(trace, dict) and isinstance(trace.get("traceEvents"), list), "no traceEvents")
    need(trace.get("displayTimeUnit") in ("ms", "ns"), "displayTimeUnit")
    check_events(trace["traceEvents"])
    return list(trace["traceEvents"])


def check_events(events: list[Event]) -> None:
    for event in events:
        check_event(event)
    check_names(events)
    check_slices(events)
    check_arrows(events)


def check_event(event: Event) -> None:
    need(event.get("ph") in ("X", "M", "C", "s", "f"), "unknown phase", event)
    need(isinstance(event.get("name"), str) and bool(event["name"]), "no name", event)
    for key in ("pid", "tid"):
        need(type(event.get(key)) is int and event[key] > 0, f"{key} is not a positive whole number", event)
    if event["ph"] == "M":
        need(event["name"] in NAMING, "unknown metadata", event)
        value = event["args"][NAMING[event["name"]]]
        need(isinstance(value, str if event["name"].endswith("_name") else int), "metadata of a wrong type", event)
        return
    need(type(event.get("ts")) in (int, float) and event["ts"] >= 0, "no time", event)
    if event["ph"] == "X":
        need(isinstance(event.get("cat"), str), "no category", event)
        need(type(event.get("dur")) in (int, float) and event["dur"] > 0, "no length", event)
        need(isinstance(event.get("args"), dict), "no args", event)
    if event["ph"] == "C":
        values = event.get("args")
        need(isinstance(values, dict) and bool(values), "a counter without values", event)
        need(all(type(value) in (int, float) for value in values.values()), "a counter is no number", event)
    if event["ph"] in "sf":
        need(type(event.get("id")) is int and isinstance(event.get("cat"), str), "an arrow without id", event)
        need((event.get("bp") == "e") == (event["ph"] == "f"), "bp belongs to the end of an arrow", event)


def check_names(events: list[Event]) -> None:
    """Check that every process and thread is named once and that a thread's number belongs to one process."""
    processes = [event["pid"] for event in events if event["name"] == "process_name"]
    threads = [(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"]
    need(len(processes) == len(set(processes)), "a process has two names", processes)
    need(len(threads) == len({tid for _, tid in threads}), "a thread's number is used twice", threads)
    for event in events:
        need(event["pid"] in processes, "a process without a name", event)
        need(event["ph"] not in "Xsf" or (event["pid"], event["tid"]) in threads, "a thread without a name", event)


def nanoseconds(microseconds: float) -> int:
    """Convert microseconds to nanoseconds; a finer time is an error."""
    value = round(microseconds * 1000)
    need(value / 1000 == microseconds, f"{microseconds} is finer than a nanosecond")
    return value


def check_slices(events: list[Event]) -> None:
    """Check that slices of a track are nested or disjoint."""
    for slices in slices_by_track(events).values():
        around: list[int] = []
        for begin, end in sorted(slices, key=lambda pair: (pair[0], -pair[1])):
            while around and around[-1] <= begin:
                around.pop()
            need(not around or end <= around[-1], f"slices cross at {begin} ns")
            around.append(end)


def slices_by_track(events: list[Event]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin = nanoseconds(event["ts"])
            found[event["pid"], event["tid"]].append((begin, begin + nanoseconds(event["dur"])))
    return found


def check_arrows(events: list[Event]) -> None:
    """Check that every arrow has one start and a later end, each inside an open slice of its track."""
    slices = slices_by_track(events)
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    need(len(starts) + len(ends) == sum(event["ph"] in "sf" for event in events), "an arrow's id is used twice")
    need(starts.keys() == ends.keys(), "an arrow with one end", starts.keys() ^ ends.keys())
    for number, start in starts.items():
        end = ends[number]
        need((start["name"], start["cat"]) == (end["name"], end["cat"]), "ends of an arrow differ", end)
        need(start["ts"] <= end["ts"], "an arrow points back in time", (start, end))
        for event in (start, end):
            moment = nanoseconds(event["ts"])
            track = slices[event["pid"], event["tid"]]
            need(any(begin <= moment < stop for begin, stop in track), "an arrow that binds to nothing", event)


def tracks(events: list[Event]) -> dict[str, list[str]]:
    """Return the names of threads with slices by process name, both in a viewer's order."""
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}

    def value(event: Event, name: str) -> Any:
        places = [other for other in events if other["name"] == name and other["pid"] == event["pid"]]
        same = [other for other in places if name.startswith("process") or other["tid"] == event["tid"]]
        return same[0]["args"]["sort_index"]

    processes = sorted((e for e in events if e["name"] == "process_name"), key=lambda e: value(e, "process_sort_index"))
    threads = sorted((e for e in events if e["name"] == "thread_name"), key=lambda e: value(e, "thread_sort_index"))
    return {
        process["args"]["name"]: [
            thread["args"]["name"]
            for thread in threads
            if thread["pid"] == process["pid"] and (thread["pid"], thread["tid"]) in used
        ]
        for process in processes
    }
