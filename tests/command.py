"""Run the `paceline` command inside the test process, which saves importing torch again."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from paceline.cli import main


class Said(NamedTuple):
    code: int
    out: str
    err: str


def run_command(*arguments: str, width: int = 100, answer: str | None = None) -> Said:
    """Run `paceline ARGUMENTS`; return its exit code and output. `answer` simulates a terminal and the user's input."""
    out, err = io.StringIO(), io.StringIO()
    stdin = io.StringIO(answer or "")
    stdin.isatty = lambda: answer is not None  # type: ignore[method-assign]
    code = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"COLUMNS": str(width)}))
        stack.enter_context(mock.patch.object(sys, "argv", ["paceline", *arguments]))
        stack.enter_context(mock.patch.object(sys, "stdin", stdin))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Said(code, out.getvalue(), err.getvalue())


def run_in(folder: Path, *arguments: str, width: int = 100, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `paceline ARGUMENTS` in a folder, in this process; return the result as a CompletedProcess.

    Workers are still separate processes. Standard input is not a terminal.
    """
    with contextlib.chdir(folder), mock.patch.dict(os.environ, environment):
        said = run_command(*arguments, width=width)
    return subprocess.CompletedProcess(["paceline", *arguments], said.code, said.out, said.err)
