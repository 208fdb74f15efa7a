"""Golden files: outputs of a released version, and their comparison with the outputs of this one.

`tests/golden/make.py` writes the files, `tests/integration/test_golden.py` reads them. Both use the command line
alone, so that neither depends on where the code of a feature lives.

- `golden/stored`: run and study folders that a released version wrote.
- `golden/json`: what `--json` writes. Measured results as the type of every path (`results[].final.loss: float`),
  deterministic results with their values.
- `golden/tables`: columns, row names and figures of terminal and Markdown tables. Borders, spacing and sentences
  are not part of them.
"""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from command import run_command

GOLDEN = Path(__file__).parent / "golden"
STORED = GOLDEN / "stored"
JSON_FOLDER = GOLDEN / "json"
TABLES_FOLDER = GOLDEN / "tables"
WIDE = 160  # columns of the terminal; no table leaves a column out at this width
NARROW = (100, 120)

_TINY = ("--workers", "2", "--train-samples", "100", "--test-samples", "50", "--batch-size", "20")
_SHORT = (*_TINY, "--epochs", "1")
_QUIET = "--no-report"


class Recorded(NamedTuple):
    """A command that measures, and the folder with its result; `stored` is empty if it stores nothing."""

    arguments: tuple[str, ...]
    stored: str = ""
    code: int = 0
    json_name: str = ""  # the shape of its JSON; empty where another command has the same
    interrupt: bool = False  # send Ctrl-C once the first steps (of a sweep: the first point) are stored

    def words(self, json_file: str = "") -> list[str]:
        """Return the arguments, with `--json` if the shape of the JSON is compared."""
        return [*self.arguments, "--json", json_file] if json_file and self.json_name else list(self.arguments)


_SLOW_STEPS = "slow:rank=0,ms=300"
RECORDED = (
    Recorded(("run", *_TINY, "--epochs", "2", "--strategy", "ring", "--sample-hz", "20"), "run-ring", 0, "run"),
    Recorded(
        (
            "run", *_TINY, "--epochs", "11", "--strategy", "overlap", "--sample-hz", "1",
            "--inject", "slow:rank=1,ms=20,phase=backward",
        ),
        "run-straggler",
        0,
        "run-straggler",
    ),
    Recorded(
        ("run", *_SHORT, "--strategy", "parameter-server:mode=async"), "run-parameter-server", 0, "run-parameter-server"
    ),
    Recorded(
        ("run", *_TINY, "--epochs", "10", "--strategy", "overlap", "--target-accuracy", "0.12", "--eval-every", "1"),
        "run-target",
        0,
        "run-target",
    ),
    Recorded(("run", *_SHORT, "--strategy", "ring", "--inject", "kill:rank=1,step=2"), "run-failed", 1),
    Recorded(
        ("run", *_TINY, "--epochs", "40", "--strategy", "ring", "--inject", _SLOW_STEPS),
        "run-interrupted",
        1,
        interrupt=True,
    ),
    Recorded(
        ("compare", *_SHORT, _QUIET, "--repeats", "2", "--strategies", "one-worker,none,ring,overlap,local-sgd"),
        "study-compare",
        0,
        "compare",
    ),
    Recorded(
        (
            "scale", "--train-samples", "100", "--test-samples", "50", "--batch-size", "20", "--epochs", "1", _QUIET,
            "--workers", "1,2", "--mode", "both", "--strategies", "ring,overlap",
        ),
        "study-scale",
        0,
        "scale",
    ),
    Recorded(
        ("sweep", *_TINY, "--epochs", "1", _QUIET, "--vary", "batch-size=20,50", "--remedy", "lars:lr=5"),
        "study-sweep",
        0,
        "sweep",
    ),
    Recorded(
        ("sweep", *_SHORT, _QUIET, "--vary", "measure.inject=kill:rank=1,step=2;none"),
        "study-sweep-failed",
        1,
        "sweep-failed",
    ),
    Recorded(
        (
            "sweep", "--model", "wide.py:model", "--data", "wide.py:data", "--workers", "1", "--iterations", "2",
            "--strategy", "none", _QUIET, "--vary", "batch-size=4,200000",
        ),
        "study-sweep-refused",
        0,
        "sweep-refused",
    ),
    Recorded(
        (
            "sweep", "--workers", "1", "--train-samples", "100", "--test-samples", "50", "--batch-size", "20",
            "--epochs", "2", _QUIET, "--vary", f"measure.inject=none;{_SLOW_STEPS}",
        ),
        "study-sweep-interrupted",
        1,
        interrupt=True,
    ),
    Recorded(
        (
            "tune", *_TINY, _QUIET, "--iterations", "8", "--eta", "2", "--repeats", "1",
            "--strategies", "overlap,local-sgd", "--codecs", "fp32,bf16", "--periods", "2", "--buckets", "1",
        ),
        "study-tune",
        0,
        "tune",
    ),
    Recorded(
        ("reproduce", "lenet5-two-reduces", "--repeats", "1", _QUIET), "study-reproduce", 0, "reproduce"
    ),
    Recorded(
        (
            "quantize", "run-ring", "--samples", "32", "--test-samples", "50", "--calibration", "minmax",
            "--finetune", "3", "--no-onnx", _QUIET,
        ),
        "study-quantize",
        0,
        "quantize",
    ),
    Recorded(
        (
            "verify", "--strategies", "ring,local-sgd,none,parameter-server:mode=async", "--workers", "1,2",
            "--models", "lenet5",
        ),
        "",
        0,
        "verify",
    ),
    Recorded(
        (
            "bench", "--workers", "2", "--comm", "torch,shm", "--op", "all_reduce,ring", "--bytes", "4K,64K",
            "--iterations", "3", "--warmup", "1",
        ),
        "",
        0,
        "bench",
    ),
)  # fmt: skip

# A wide layer on many samples needs terabytes: the sweep refuses the large batch before it allocates anything.
WIDE_MODEL = """import torch


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1000000, 1))
        self.last = torch.nn.Linear(1000, 10)

    def forward(self, x):
        wide = torch.tanh(x.flatten(1).mean(1) * self.scale).T
        return self.last(wide.reshape(len(x), 1000, 1000).mean(1))


def model():
    return Wide()


def data(seed):
    inputs, targets = torch.zeros(200000, 4), torch.zeros(200000, dtype=torch.int64)
    return (inputs, targets), (inputs[:8], targets[:8])
"""

# Commands whose JSON is the same on every machine: frozen with its values. They also print tables.
COUNTED = {
    "strategies": ("strategies", "--workers", "4"),
    "strategies-three-workers": ("strategies", "--workers", "3"),
    "dataflow-conv": ("dataflow", "conv", "--input", "1 2 3; 4 5 6; 7 8 9", "--kernel", "1 0; 0 1"),
    "dataflow-conv-channels": (
        "dataflow", "conv", "--input", "random:2x5x5", "--kernel", "random:2x2x3x3", "--model", "pipelined",
        "--stride", "2", "--padding", "1",
    ),
    "dataflow-network-alexnet": ("dataflow", "network", "alexnet"),
    "dataflow-network-lenet5": (
        "dataflow", "network", "lenet5", "--input-shape", "1x28x28", "--linear", "--batch", "1",
        "--objective", "energy",
    ),
    "dataflow-network-run": ("dataflow", "network", str(STORED / "run-ring"), "--no-others"),
    "dataflow-network-quantized": ("dataflow", "network", str(STORED / "study-quantize"), "--no-others"),
    "runs-diff-runs": ("runs", "diff", str(STORED / "run-ring"), str(STORED / "run-target")),
    "runs-diff-run-and-study": ("runs", "diff", str(STORED / "run-ring"), str(STORED / "study-compare")),
    "runs-diff-studies": ("runs", "diff", str(STORED / "study-compare"), str(STORED / "study-compare-old")),
    "runs-diff-gate": (
        "runs", "diff", str(STORED / "study-sweep"), str(STORED / "study-sweep"), "--fail-if-slower", "5%",
    ),
    "runs-diff-scales": ("runs", "diff", str(STORED / "study-scale"), str(STORED / "study-scale")),
}  # fmt: skip

TRACED = ("run-ring", "run-straggler", "run-parameter-server")

# Lists for people, without JSON.
LISTED = {
    "models": ("models",),
    "data": ("data",),
    "recipes": ("recipes",),
    "reproduce": ("reproduce",),
}

# Every command with its subcommands, for the options that it documents.
COMMANDS = (
    "compare", "run", "scale", "quantize", "sweep", "tune", "verify", "bench", "reproduce", "export", "report", "trace",
    "strategies", "models", "runs", "runs list", "runs show", "runs diff", "runs delete", "cluster", "cluster up",
    "cluster list", "cluster exec", "cluster down", "cluster prune", "cluster check", "data", "data fetch", "dataflow",
    "dataflow conv", "dataflow network", "dataflow chip", "recipes", "recipes show",
)  # fmt: skip


def prepare(folder: Path) -> None:
    """Write the files that recorded commands read: a module with a model, and a stored run with its weights."""
    (folder / "wide.py").write_text(WIDE_MODEL, encoding="utf-8")
    if (STORED / "run-ring").is_dir():
        shutil.copytree(STORED / "run-ring", folder / "runs" / "run-ring")


def stored_names() -> list[str]:
    return sorted(folder.name for folder in STORED.iterdir() if folder.is_dir())


# JSON


def portable(text: str) -> str:
    """Replace the path of this checkout in a text."""
    return text.replace(str(STORED), "STORED")


def types_of(value: Any) -> dict[str, str]:
    """Return every path of a JSON value with its types, as `{"results[].workers": "int"}`."""
    found: dict[str, set[str]] = {}
    _collect(value, "", found)
    return {path or ".": "|".join(sorted(types)) for path, types in sorted(found.items())}


def _collect(value: Any, path: str, found: dict[str, set[str]]) -> None:
    found.setdefault(path, set()).add(_type_name(value))
    if isinstance(value, Mapping):
        for key, item in value.items():
            name = "N" if str(key).isdigit() else str(key)  # keys of a histogram differ between runs
            _collect(item, f"{path}.{name}" if path else name, found)
    elif isinstance(value, list):
        for item in value:
            _collect(item, f"{path}[]", found)


def _type_name(value: Any) -> str:
    names = {type(None): "null", bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "object"}
    return names[type(value)]


def type_differences(golden: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """List paths that are missing or have another type. New paths are allowed, and integers in place of floats."""
    differences = []
    for path, types in golden.items():
        if path not in now:
            if not path.endswith(".cpu_percent[]"):
                differences.append(f"{path}: gone, was {types}")
            continue
        allowed = set(types.split("|"))
        if "float" in allowed:
            allowed.add("int")
        if path.endswith(".cpu_percent"):
            allowed.add("null")  # a short run has no samples
        if other := set(now[path].split("|")) - allowed:
            differences.append(f"{path}: {'|'.join(sorted(other))}, was {types}")
    return differences


def value_differences(golden: Any, now: Any, path: str = "") -> list[str]:
    """List paths that are missing or have another value; new keys are allowed."""
    if isinstance(golden, dict):
        if not isinstance(now, dict):
            return [f"{path}: {now!r}, was an object"]
        gone = [f"{path}.{key}: gone" for key in golden if key not in now]
        kept = [key for key in golden if key in now]
        return gone + [line for key in kept for line in value_differences(golden[key], now[key], f"{path}.{key}")]
    if isinstance(golden, list):
        if not isinstance(now, list) or len(now) != len(golden):
            return [f"{path}: {str(now)[:60]}, was a list of {len(golden)}"]
        pairs = enumerate(zip(golden, now, strict=True))
        return [line for index, (a, b) in pairs for line in value_differences(a, b, f"{path}[{index}]")]
    if _is_number(golden) and _is_number(now):
        return [] if math.isclose(golden, now, rel_tol=1e-9) else [f"{path}: {now!r}, was {golden!r}"]
    return [] if golden == now and type(golden) is type(now) else [f"{path}: {now!r}, was {golden!r}"]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Tables

_BORDER = re.compile(r"[\s│┃|║]+")
_RULE = re.compile(r"[\s│┃|║]*[─━═┄\-+┼╇╪╂:|\s]*[─━═┄\-]{3}[─━═┄\-+┼╇╪╂:|\s]*")


class Table(NamedTuple):
    columns: list[str]
    rows: list[list[str]]

    @property
    def names(self) -> list[str]:
        return [row[0] for row in self.rows]


def tables_in(text: str) -> list[Table]:
    """Parse the tables of terminal or Markdown output; empty cells are omitted."""
    lines, tables = text.splitlines(), []
    for number, line in enumerate(lines):
        if number == 0 or not _RULE.fullmatch(line):
            continue
        columns = _cells(lines[number - 1])
        if len(columns) < 2:
            continue
        rows = []
        for following in lines[number + 1 :]:
            is_markdown = following.startswith("|")
            if not is_markdown and len(following) != len(line):
                break
            # A line whose first cell is empty goes on with the row above.
            if following.strip() and (is_markdown or following[1:2].strip()):
                rows.append(_cells(following))
        tables.append(Table(columns, rows))
    return tables


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"\s{2,}|\s*[│┃|║]\s*", line.strip()) if cell.strip()]


def table_differences(golden: Iterable[Table], text: str) -> list[str]:
    """List columns, row names and figures that are missing or in another order; additions are allowed."""
    lines = [f" {_BORDER.sub(' ', line).strip()} " for line in text.splitlines()]
    differences, start = [], 0
    for columns, rows in golden:
        for kind, cells in [("columns", columns), *(("row", row) for row in rows)]:
            at = next((number for number in range(start, len(lines)) if _has_cells(lines[number], cells)), None)
            if at is None:
                differences.append(f"no line with the {kind} {cells}")
            else:
                start = at + 1
    return differences


def _has_cells(line: str, cells: list[str]) -> bool:
    position = 0
    for cell in cells:
        words = f" {_BORDER.sub(' ', cell).strip()} "
        position = line.find(words, position)
        if position < 0:
            return False
        position += len(words) - 1
    return True


def narrow_differences(golden: list[Table], text: str) -> list[str]:
    """List faults of a table in a narrow terminal: broken row names, cut figures, columns that the wide one lacks."""
    known = {column for table in golden for column in table.columns}
    words = _BORDER.sub(" ", text)
    parts = {part: name for table in golden for name in table.names for part in re.split(r"[\s:]+", name)}
    differences = [f"row {name!r}: {part!r} is not printed whole" for part, name in parts.items() if part not in words]
    differences += [f"cut: {cut}" for cut in re.findall(r"\S*[\d.]…", text)]
    new = {column for table in tables_in(text) for column in table.columns} - known
    return differences + [f"column {column!r} is not one of the wide table" for column in sorted(new)]


# Files


def write_golden(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tables(name: str, tables: list[Table]) -> None:
    """Write tables as JSON with one row per line, readable in a diff."""
    parts = []
    for table in tables:
        rows = ",\n".join(f"   {json.dumps(row, ensure_ascii=False)}" for row in table.rows)
        columns = json.dumps(table.columns, ensure_ascii=False)
        parts.append(f' {{\n  "columns": {columns},\n  "rows": [\n{rows}\n  ]\n }}')
    file = TABLES_FOLDER / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[\n" + ",\n".join(parts) + "\n]\n", encoding="utf-8")


def golden_tables(name: str) -> list[Table]:
    found = json.loads((TABLES_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return [Table(table["columns"], table["rows"]) for table in found]


def golden_json(name: str) -> Any:
    return json.loads((JSON_FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def printed(*arguments: str, width: int = WIDE) -> str:
    """Return the standard output of a command, which must succeed."""
    said = run_command(*arguments, width=width)
    assert said.code == 0, f"paceline {' '.join(arguments)}: {said.err}"
    return portable(said.out)


def printed_json(*arguments: str, file: Path, width: int = WIDE) -> tuple[str, Any]:
    """Return the standard output of a command and the JSON that it writes."""
    text = printed(*arguments, "--json", str(file), width=width)
    return text, json.loads(portable(file.read_text(encoding="utf-8")))


def report_markdown(name: str, folder: Path) -> str:
    """Return the Markdown of `report` for a stored folder; empty if there is nothing to report."""
    page, markdown = folder / f"{name}.html", folder / f"{name}.md"
    said = run_command("report", str(STORED / name), "-o", str(page), "--markdown", str(markdown))
    if said.code == 2:
        assert "nothing to report" in " ".join(said.err.split()), said.err
        return ""
    assert said.code == 0, said.err
    assert page.stat().st_size > 50_000
    return markdown.read_text(encoding="utf-8")


def exported(name: str, folder: Path) -> dict[str, Any] | None:
    """Return columns and row count of every file of `export --to csv`; None if nothing can be exported."""
    target = folder / f"csv-{name}"
    said = run_command("export", str(STORED / name), "--to", "csv", "-o", str(target))
    if said.code == 2:
        return None
    assert said.code == 0, said.err
    found = {}
    for file in sorted(target.glob("*.csv")):
        with file.open(encoding="utf-8", newline="") as lines:
            columns, *rows = csv.reader(lines)
        found[file.stem] = {"columns": columns, "rows": len(rows)}
    return found


def traced(name: str, folder: Path) -> dict[str, Any]:
    """Return the number and keys of each kind of event in the trace of a stored run."""
    file = folder / f"{name}.json"
    printed("trace", str(STORED / name), "-o", str(file))
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    kinds = sorted({event["ph"] for event in events})
    chosen = {kind: [event for event in events if event["ph"] == kind] for kind in kinds}
    return {kind: {"events": len(found), "keys": sorted(set().union(*found))} for kind, found in chosen.items()}


def documented_options(command: str) -> list[str]:
    """Return the options listed in the help of a command."""
    starts = re.findall(r"(?m)^[\s│*]*((?:--?[a-zA-Z][\w-]*[,\s]+)+)", printed(*command.split(), "--help", width=200))
    return sorted({option for start in starts for option in re.findall(r"--?[a-zA-Z][\w-]*", start)})
