"""What users of a released version rely on still holds: stored folders, `--json` keys, columns, options.

Everything goes through the command line. `tests/golden/make.py` writes the golden files.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from command import run_command
from golden_files import (
    COMMANDS,
    COUNTED,
    LISTED,
    NARROW,
    RECORDED,
    STORED,
    TRACED,
    WIDE,
    Recorded,
    documented_options,
    exported,
    golden_json,
    golden_tables,
    narrow_differences,
    prepare,
    printed,
    printed_json,
    report_markdown,
    stored_names,
    table_differences,
    traced,
    type_differences,
    types_of,
    value_differences,
)

LIVE = [command for command in RECORDED if command.json_name]
REPORTED = [name for name in stored_names() if name not in ("run-failed", "run-interrupted")]


def stored_json(name: str) -> dict[str, object]:
    """The file of a stored run or study, as it was written."""
    files = [STORED / name / file for file in ("study.json", "summary.json")]
    found: dict[str, object] = json.loads(next(file for file in files if file.is_file()).read_text(encoding="utf-8"))
    return found


def test_a_lost_column_row_figure_or_key_is_noticed() -> None:
    text = printed("runs", "show", str(STORED / "study-compare"))
    golden = golden_tables("show/study-compare")
    for lost in ("speed-up", "local-sgd", golden[0].rows[0][1]):
        assert table_differences(golden, text.replace(lost, "")) != []
    assert type_differences({"a[].b": "int|null"}, types_of({"a": [{"b": 1}, {"b": "x"}]})) == [
        "a[].b: str, was int|null"
    ]
    assert type_differences({"a[].b": "float"}, types_of({"a": [{"b": 1, "new": None}]})) == []
    assert value_differences({"a": [1.0, {"b": None}]}, {"a": [1.0, {}]}) == [".a[1].b: gone"]


def test_stored_folders_are_listed(tmp_path: Path) -> None:
    text, listed = printed_json("runs", "--out", str(STORED), file=tmp_path / "runs.json")
    assert table_differences(golden_tables("runs"), text) == []
    assert listed["schema"] == 1
    items = {Path(item["folder"]).name: item for item in listed["runs"]}
    assert sorted(items) == stored_names()
    for name, item in items.items():
        assert value_differences(stored_json(name), item) == [], name


@pytest.mark.parametrize("name", stored_names())
def test_a_stored_folder_is_shown(name: str, tmp_path: Path) -> None:
    golden = golden_tables(f"show/{name}")
    text, shown = printed_json("runs", "show", str(STORED / name), file=tmp_path / "shown.json")
    assert table_differences(golden, text) == []
    assert value_differences(stored_json(name), shown) == []
    assert shown["folder"] == f"STORED/{name}"


@pytest.mark.parametrize("width", NARROW)
@pytest.mark.parametrize("name", stored_names())
def test_a_narrow_terminal_keeps_row_names_and_figures(name: str, width: int) -> None:
    text = printed("runs", "show", str(STORED / name), width=width)
    assert narrow_differences(golden_tables(f"show/{name}"), text) == []


@pytest.mark.parametrize("name", REPORTED)
def test_a_stored_folder_is_reported(name: str, tmp_path: Path) -> None:
    markdown = report_markdown(name, tmp_path)
    golden = golden_tables(f"markdown/{name}")
    assert golden
    assert table_differences(golden, markdown) == []


def test_several_stored_folders_make_one_page(tmp_path: Path) -> None:
    names = [str(STORED / name) for name in ("run-ring", "run-ring-old", "study-compare", "study-compare-old")]
    printed("report", *names, "-o", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for label in ("one-worker", "none", "ring", "overlap", "local-sgd"):
        assert label in page


def test_what_has_no_result_is_not_reported(tmp_path: Path) -> None:
    for name in ("run-failed", "run-interrupted"):
        assert report_markdown(name, tmp_path) == ""
        assert not (tmp_path / f"{name}.html").exists()


def test_stored_folders_are_exported(tmp_path: Path) -> None:
    for name, golden in golden_json("export").items():
        found = exported(name, tmp_path)
        if golden is None:
            assert found is None, name
        else:
            assert found is not None, name
            for table, expected in golden.items():
                assert found[table]["rows"] == expected["rows"], (name, table)
                assert [column for column in found[table]["columns"] if column in expected["columns"]] == expected[
                    "columns"
                ], (name, table)


@pytest.mark.parametrize("name", TRACED)
def test_a_stored_run_is_traced(name: str, tmp_path: Path) -> None:
    assert value_differences(golden_json("trace")[name], traced(name, tmp_path)) == []


def test_the_beginning_of_a_name_is_enough() -> None:
    assert run_command("runs", "show", "study-comp", "--out", str(STORED)).code == 2  # two begin so
    assert "study-tune" in printed("runs", "show", "study-t", "--out", str(STORED))


@pytest.mark.parametrize("name", COUNTED)
def test_what_does_not_depend_on_the_machine(name: str, tmp_path: Path) -> None:
    text, value = printed_json(*COUNTED[name], file=tmp_path / "result.json")
    assert value_differences(golden_json(name), value) == []
    assert table_differences(golden_tables(name), text) == []


@pytest.mark.parametrize("name", LISTED)
def test_lists(name: str) -> None:
    assert table_differences(golden_tables(name), printed(*LISTED[name])) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_options_stay(command: str) -> None:
    assert set(golden_json("options")[command]) - set(documented_options(command)) == set()


def test_clusters_are_listed(tmp_path: Path) -> None:
    _, value = printed_json("cluster", "list", file=tmp_path / "clusters.json")
    assert type_differences(golden_json("cluster-list"), types_of(value)) == []


def test_json_of_a_run_keeps_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_keeps_its_keys(LIVE[0], tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("command", LIVE[1:], ids=lambda command: command.json_name)
def test_json_keeps_its_keys(command: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_keeps_its_keys(command, tmp_path, monkeypatch)


def assert_keeps_its_keys(command: Recorded, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the command as it was run for the golden file: every path is there and holds the same type."""
    prepare(folder)
    monkeypatch.chdir(folder)
    said = run_command(*command.words("result.json"), width=WIDE)
    assert said.code == command.code, said.err
    if not command.stored:
        assert table_differences(golden_tables(f"live/{command.json_name}"), said.out) == []
    now = types_of(json.loads((folder / "result.json").read_text(encoding="utf-8")))
    assert type_differences(golden_json(command.json_name), now) == []


@pytest.mark.slow
def test_a_stored_sweep_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(STORED / "study-sweep-interrupted", tmp_path / "runs" / "begun")
    monkeypatch.chdir(tmp_path)
    [done] = (tmp_path / "runs" / "begun" / "runs").glob("*none*/summary.json")
    written = done.stat().st_mtime_ns
    said = run_command("sweep", "--resume", "runs/begun", "--no-report", "--json", "result.json")
    assert said.code == 0, said.err
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert result["status"] == "done"
    assert len(result["results"]) == 2
    assert done.stat().st_mtime_ns == written
