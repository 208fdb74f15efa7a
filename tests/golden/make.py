"""Write the golden files again.

    python tests/golden/make.py                  # stored folders, JSON types and tables (minutes)
    python tests/golden/make.py study-tune       # one stored folder, then all tables
    python tests/golden/make.py --expectations   # only what commands print for the folders that are stored (seconds)

Stored folders hold what a released version wrote: write them again only to add a kind of result, never to make a
failing test pass. Review the difference with git before you commit it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from golden_files import (
    COMMANDS,
    COUNTED,
    JSON_FOLDER,
    LISTED,
    RECORDED,
    STORED,
    TRACED,
    WIDE,
    Recorded,
    Table,
    documented_options,
    exported,
    prepare,
    printed,
    printed_json,
    report_markdown,
    stored_names,
    tables_in,
    traced,
    types_of,
    write_golden,
    write_tables,
)

PATIENCE_S = 240.0
KEEPS_WEIGHTS = "run-ring"  # quantize and dataflow read them
LONG, LONGEST_LINES = "study-reproduce", 60  # of its runs one is kept, with so many lines of each worker


def record(command: Recorded) -> None:
    """Run a command in a folder of its own, and keep what it stored and the types of its JSON."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder)
        given = set((folder / "runs").iterdir()) if (folder / "runs").is_dir() else set()
        words = [sys.executable, "-m", "paceline", *command.words("result.json")]
        print("paceline", *command.words("result.json"), flush=True)
        code = _interrupted(words, folder) if command.interrupt else _ended(words, folder)
        if code != command.code:
            raise SystemExit(f"exit code {code}, expected {command.code}")
        if command.json_name:
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            write_golden(JSON_FOLDER / f"{command.json_name}.json", types_of(result))
        if not command.stored:  # its table cannot be shown again: the columns are kept, the figures differ
            tables = tables_in((folder / "printed.txt").read_text(encoding="utf-8"))
            write_tables(f"live/{command.json_name}", [Table(table.columns, []) for table in tables])
        if command.stored:
            [made] = set((folder / "runs").iterdir()) - given
            _keep(made, command.stored)


def _ended(words: list[str], folder: Path) -> int:
    """Wait until the command ends; its output goes to a file."""
    with (folder / "printed.txt").open("w", encoding="utf-8") as out:
        environment = {**os.environ, "COLUMNS": str(WIDE)}
        done = subprocess.run(
            words, cwd=folder, env=environment, timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL, stdout=out
        )
    return done.returncode


def _interrupted(words: list[str], folder: Path) -> int:
    """Send Ctrl-C once a point of a sweep is stored, or once a worker has begun to record."""
    running = subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not _has_begun(folder / "runs", is_sweep="sweep" in words):
            if running.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("it ended before it could be interrupted")
            time.sleep(0.1)
        time.sleep(0.0 if "sweep" in words else 2.0)  # some steps of a run
        running.send_signal(signal.SIGINT)
        return running.wait(PATIENCE_S)
    finally:
        running.kill()
        running.wait()


def _has_begun(runs: Path, *, is_sweep: bool) -> bool:
    if is_sweep:
        files = runs.glob("*/runs/*/summary.json")
        return any(json.loads(file.read_text(encoding="utf-8"))["status"] == "done" for file in files)
    return any(runs.glob("*/workers/0.jsonl"))


def _keep(made: Path, name: str) -> None:
    """Move a folder to the golden folders, without weights, long traces and the name of this machine."""
    for checkpoints in [*made.rglob("checkpoints"), *made.glob("*.onnx"), *made.glob("fine-tuned.safetensors")]:
        if name != KEEPS_WEIGHTS:
            shutil.rmtree(checkpoints) if checkpoints.is_dir() else checkpoints.unlink()
    for file in made.rglob("*.jsonl"):
        lines = (
            file.read_text(encoding="utf-8").replace(f'"host":"{socket.gethostname()}"', '"host":"host"').splitlines()
        )
        if name == LONG:
            lines = lines[:LONGEST_LINES]
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for file in made.rglob("*.json"):
        value = json.loads(file.read_text(encoding="utf-8"))
        _rename_machine(value)
        _write_compact(file, value)
    shutil.rmtree(STORED / name, ignore_errors=True)
    STORED.mkdir(parents=True, exist_ok=True)
    shutil.copytree(made, STORED / name)


def _rename_machine(value: Any) -> None:
    """Remove the name of this machine from stored files."""
    if isinstance(value, dict):
        if "system" in value and "processor" in value:
            value.update(system="Linux 6.1", processor="processor")
        for item in value.values():
            _rename_machine(item)
    elif isinstance(value, list):
        for item in value:
            _rename_machine(item)


def _write_compact(file: Path, value: Any) -> None:
    """Write one line per key of the outermost object: half the size of an indented file."""
    lines = (f" {json.dumps(key)}: {json.dumps(item, separators=(',', ':'))}" for key, item in value.items())
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


# Keys that earlier versions did not write, and that readers of stored folders must not need. (A run without `servers`
# could be reported but not shown, so only the study lacks it.)
LATER_KEYS = {
    "run-ring": {"p90", "iteration_p90_s"},
    "study-compare": {"p90", "iteration_p90_s", "slowest_mean_s_repeats", "servers"},
}


def make_old() -> None:
    """Write copies as an earlier version would have written them."""
    for name, later in LATER_KEYS.items():
        old = STORED / f"{name}-old"
        shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(STORED / name, old, ignore=shutil.ignore_patterns("checkpoints", "runs"))
        for file in old.rglob("*.json"):
            _write_compact(file, _without(json.loads(file.read_text(encoding="utf-8")), later))
        for file in old.rglob("*.jsonl"):
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            steps = [line for line in lines if line["kind"] == "step"]
            kept = [{key: value for key, value in step.items() if key not in ("kind", "begin_s")} for step in steps]
            file.write_text("".join(json.dumps(step) + "\n" for step in kept), encoding="utf-8")


def _without(value: Any, keys: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, keys) for key, item in value.items() if key not in keys}
    return [_without(item, keys) for item in value] if isinstance(value, list) else value


def make_expectations() -> None:
    """Write the expected output of commands for the stored folders."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "result.json"
        for name, arguments in COUNTED.items():
            text, value = printed_json(*arguments, file=file)
            write_golden(JSON_FOLDER / f"{name}.json", value)
            write_tables(name, tables_in(text))
        for name in stored_names():
            write_tables(f"show/{name}", tables_in(printed("runs", "show", str(STORED / name))))
            if markdown := report_markdown(name, Path(place)):
                write_tables(f"markdown/{name}", tables_in(markdown))
        write_golden(JSON_FOLDER / "export.json", {name: exported(name, Path(place)) for name in stored_names()})
        write_golden(JSON_FOLDER / "cluster-list.json", types_of(printed_json("cluster", "list", file=file)[1]))
        write_golden(JSON_FOLDER / "trace.json", {name: traced(name, Path(place)) for name in TRACED})
    for name, arguments in LISTED.items():
        write_tables(name, tables_in(printed(*arguments)))
    write_tables("runs", tables_in(printed("runs", "--out", str(STORED))))
    write_golden(JSON_FOLDER / "options.json", {command: documented_options(command) for command in COMMANDS})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="stored folders or JSON files to write again; all unless given")
    parser.add_argument("--expectations", action="store_true", help="leave stored folders as they are")
    chosen = parser.parse_args()
    if chosen.expectations and chosen.names:
        parser.error("--expectations writes none of the stored folders: leave out their names")
    if not chosen.expectations:
        for command in RECORDED:
            if not chosen.names or command.stored in chosen.names or command.json_name in chosen.names:
                record(command)
        make_old()
    make_expectations()


if __name__ == "__main__":
    main()
