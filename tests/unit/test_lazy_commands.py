"""The list of commands is read from their sources; a command is imported when it is used."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer

from command import run_command
from paceline.cli import make_app
from paceline.cli.lazy_commands import LazyGroup, read_summary

NAMES = LazyGroup().list_commands(None)


def test_commands_come_first_and_then_groups() -> None:
    assert NAMES[:2] == ["compare", "run"]
    assert set(NAMES) >= {"scale", "sweep", "tune", "reproduce", "bench", "report", "export", "trace", "quantize"}
    groups = {"runs", "cluster", "dataflow", "data", "recipes"}
    assert set(NAMES[-len(groups) :]) == groups


@pytest.mark.parametrize("name", NAMES)
def test_a_summary_is_the_help_of_the_command_itself(name: str) -> None:
    group = LazyGroup()
    loaded: Any = group.get_command(None, name)
    assert loaded.name == name
    assert group.summaries[name].help.split("\n\n")[0].split() == (loaded.help or "").split("\n\n")[0].split()


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_its_own_help(name: str) -> None:
    said = run_command(name, "--help")
    assert said.code == 0
    assert f"paceline {name}" in said.out


def test_help_imports_no_command() -> None:
    code = "import sys\nfrom paceline.cli import main\ntry: main()\nexcept SystemExit: print(*sorted(sys.modules))"
    command = [sys.executable, "-c", code, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "paceline.cli.lazy_commands" in loaded
    assert not loaded & {"paceline.cli.compare", "paceline.cli.options", "paceline.runs", "psutil", "numpy"}


def test_modules_that_are_no_commands_are_passed_over() -> None:
    assert read_summary("helper", "HELP = 'x'\n") is None
    summary = read_summary("mine", 'ORDER = 3\n\ndef mine() -> None:\n    """Do it.\n\n    At once.\n    """\n')
    assert summary is not None
    assert (summary.order, summary.help) == ((False, 3), "Do it.\n\nAt once.")


def test_an_unknown_command_is_answered_with_the_nearest() -> None:
    said = run_command("comparr")
    assert said.code == 2
    assert "compare" in said.err


def test_errors_about_options_show_no_controls() -> None:
    for words in (
        ("run", "lenet5-mnist", "x\x1b[31m\x07"),
        ("run", "--\x1b[31mno"),
        ("\x1b[31mno",),
    ):
        said = run_command(*words)
        assert said.code == 2
        assert "\x1b" not in said.err
        assert "\x07" not in said.err


def completed(group: Any, *words: str) -> list[str]:
    """What a shell is offered for the last of the words."""
    context = group.make_context("paceline", [], resilient_parsing=True)
    for word in words[:-1]:
        _, group, _ = group.resolve_command(context, [word])
        context = group.make_context(word, [], parent=context, resilient_parsing=True)
    return [item.value for item in group.shell_complete(context, words[-1])]


def test_shell_completion() -> None:
    group = typer.main.get_command(make_app())
    assert completed(group, "comp") == ["compare"]
    assert "--strategies" in completed(group, "compare", "--strat")
    assert completed(group, "runs", "sh") == ["show"]


def test_the_app_is_a_typer_app() -> None:
    assert isinstance(make_app(), typer.Typer)
