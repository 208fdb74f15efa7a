"""Stored folders with one thing wrong: a value of another type, a key that is missing, a file cut short.

`python tests/damaged_folders.py 5000` tries 5000 such folders and prints a summary; the tests try fewer.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command import run_command
from golden_files import STORED

# Values, each of a wrong type for most fields.
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 1e308, -0.5, "", "text", "\x1b[31mred", "\u202e", "x" * 5000, [], [None], [[1, 2], 3],
    {}, {"a": {"b": None}}, [{"rank": "one"}], "²", "\ud800",
)  # fmt: skip
ODD_BYTES = (b"", b"{", b"null", b"[1]", b"\xff\xfe", b'{"schema": 1}', b"[" * 100_000, b"9" * 5000, b"\x00" * 64)
COMMANDS = ("show", "diff", "report")


def damage(folder: Path, generator: random.Random) -> str:
    """Change one thing in a folder; return a description of the change."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".json", ".jsonl", ".toml")]
    # The file of the run or study itself has most of the fields.
    main = [path for path in files if path.parent == folder and path.suffix == ".json"]
    file = generator.choice(main if generator.random() < 0.8 and main else files)
    if generator.random() < 0.1:
        return _damage_bytes(file, generator)
    if file.suffix == ".json":
        values = json.loads(file.read_text(encoding="utf-8"))
        change = damage_value(values, generator)
        file.write_text(json.dumps(values), encoding="utf-8")
        return f"{file.name}: {change}"
    lines = file.read_text(encoding="utf-8").splitlines() or [""]
    number = generator.randrange(len(lines))
    if file.suffix == ".jsonl":
        values = json.loads(lines[number])
        change = damage_value(values, generator)
        lines[number] = json.dumps(values)
    else:
        key = lines[number].partition("=")[0]
        change = f"{key}= {(odd := generator.choice(ODD))!r}"
        lines[number] = f"{key}= {json.dumps(odd)}"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    return f"{file.name}, line {number + 1}: {change}"


def _damage_bytes(file: Path, generator: random.Random) -> str:
    data = file.read_bytes()
    if generator.random() < 0.5:
        data = data[: generator.randrange(len(data) + 1)]
        file.write_bytes(data)
        return f"{file.name}: cut after {len(data)} bytes"
    odd = generator.choice(ODD_BYTES)
    file.write_bytes(odd)
    return f"{file.name}: replaced by {odd[:20]!r}"


def damage_value(values: Any, generator: random.Random) -> str:
    """Change or delete one value, at any depth."""
    place, key, path = values, None, ""
    holder: Any = None
    while isinstance(place, dict | list) and place and (holder is None or generator.random() < 0.85):
        holder = place
        key = generator.choice(list(place)) if isinstance(place, dict) else generator.randrange(len(place))
        path += f".{key}" if isinstance(place, dict) else f"[{key}]"
        place = place[key]
    if generator.random() < 0.2:
        del holder[key]
        return f"{path} deleted"
    odd = copy.deepcopy(generator.choice(ODD))
    holder[key] = odd
    return f"{path} = {str(odd)[:40]!r}"


def damaged_folders(out: Path, count: int, seed: int) -> Iterator[tuple[Path, str]]:
    """Yield `count` copies of stored folders below `out`, each with one change and its description."""
    generator = random.Random(seed)
    names = sorted(path.name for path in STORED.iterdir())
    for number in range(count):
        folder = out / f"{number:05}"
        shutil.copytree(STORED / generator.choice(names), folder)
        yield folder, damage(folder, generator)


def fault_of(folder: Path, command: str) -> str:
    """Describe a forbidden failure of a command on a folder, such as a traceback; empty if there is none."""
    page = folder.parent / "page.html"
    words = {
        "list": ("runs", "--out", str(folder.parent)),
        "show": ("runs", "show", str(folder)),
        "diff": ("runs", "diff", str(folder), str(STORED / "study-compare")),
        "report": ("report", str(folder), "-o", str(page)),
    }[command]
    try:
        said = run_command(*words)
    except BaseException as error:  # any exception is a fault
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {str(error)[:100]}"
    finally:
        page.unlink(missing_ok=True)
    if said.code not in (0, 1, 2):
        return f"exit code {said.code}"
    if said.code and not said.err.strip():
        return "failed without a sentence"
    if "Traceback" in said.err or "\x1b[31mred" in said.out + said.err:
        return "printed a traceback or a control sequence"
    return "the list failed" if command == "list" and said.code else ""


def main(count: int) -> None:
    faults: Counter[str] = Counter()
    examples: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as place:
        out = Path(place)
        for folder, change in damaged_folders(out, count, seed=count):
            for command in ("list", *COMMANDS):
                fault = fault_of(folder, command)
                if fault:
                    faults[f"{command}: {fault}"] += 1
                    examples.setdefault(f"{command}: {fault}", change)
            shutil.rmtree(folder)
    print(f"{count} folders, {sum(faults.values())} faults")
    for fault, times in faults.most_common():
        print(f"{times:5}  {fault}   ({examples[fault]})")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main(int(sys.argv[1]))
