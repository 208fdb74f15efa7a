"""The command in this process: quick, where starting workers is not the point."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import NamedTuple
from unittest import mock

from paceline.cli import main


class Said(NamedTuple):
    code: int
    out: str
    err: str


def run_command(*arguments: str, width: int = 100, answer: str | None = None) -> Said:
    """What `paceline ARGUMENTS` says. With an answer there is a terminal, and somebody who types it."""
    out, err = io.StringIO(), io.StringIO()
    stdin = io.StringIO(answer or "")
    stdin.isatty = lambda: answer is not None  # type: ignore[method-assign]
    code = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"COLUMNS": str(width)}))
        stack.enter_context(mock.patch("signal.signal"))
        stack.enter_context(mock.patch.object(sys, "argv", ["paceline", *arguments]))
        stack.enter_context(mock.patch.object(sys, "stdin", stdin))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Said(code, out.getvalue(), err.getvalue())
