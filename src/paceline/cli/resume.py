"""The command `resume`: continue an unfinished run or study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import Out
from paceline.errors import UsageError

ORDER = 3


def resume(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Folder or name of the run or study, or last.", metavar="RUN")],
    out: Out = Path("runs"),
) -> None:
    """Continue an unfinished run from its last checkpoint, or an unfinished study.

    It also takes those options of the original command that leave the result unchanged: --hosts, --json, --timeout and
    others.
    """
    from paceline.cli.lazy_commands import load_command
    from paceline.results import STUDY_FILE
    from paceline.runs import folder_of
    from paceline.study.study_folder import read_study

    folder = folder_of(name, out)
    command_name = read_study(folder).study if (folder / STUDY_FILE).is_file() else "run"
    command = load_command(command_name)
    if not any("--resume" in parameter.opts for parameter in command.params):
        raise UsageError(f"{name!r} is a {command_name}, which cannot be resumed; start it again")
    words = [*context.args, "--resume", str(folder), "--out", str(out)]
    command.main(args=words, prog_name=f"paceline {command_name}", standalone_mode=False)


def register(app: typer.Typer) -> None:
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(resume)
