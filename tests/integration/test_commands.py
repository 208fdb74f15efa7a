"""Every command in a process of its own: what tests in this process cannot see is how it starts and ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer.main

from paceline.cli import make_app


def names_of(command: click.Command) -> Iterator[tuple[str, ...]]:
    """Every command and group of the command line, as words."""
    if not hasattr(command, "list_commands"):
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        yield (name,)
        yield from ((name, *rest) for rest in names_of(command.get_command(context, name)))


COMMANDS = list(names_of(typer.main.get_command(make_app())))
assert COMMANDS, "the command line has commands"
# Commands that need neither workers nor stored runs are run for real, the others show their help.
REAL = {
    ("strategies",): [],
    ("models",): [],
    ("recipes",): [],
    ("recipes", "show"): ["lenet5-mnist"],
    ("data",): [],
    ("runs",): [],
    ("dataflow", "conv"): ["--input", "1 3 9; 4 5 6; 7 4 9", "--kernel", "-1 2; 2 -1"],
    ("dataflow", "chip"): ["eyeriss"],
}


# Subcommands of a group start as the group does.
SLOW = [words for words in COMMANDS if len(words) > 1 and words not in REAL]


@pytest.mark.parametrize(
    "words", [pytest.param(w, marks=[pytest.mark.slow] * (w in SLOW), id=" ".join(w)) for w in COMMANDS]
)
def test_a_command_in_a_process_of_its_own(words: tuple[str, ...], tmp_path: Path) -> None:
    arguments = REAL.get(words, ["--help"])
    done = subprocess.run(
        [sys.executable, "-m", "paceline", *words, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    if arguments == ["--help"]:
        assert f"paceline {' '.join(words)}" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_command_ends_with_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "comprae"], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 2
    assert "compare" in done.stderr
