"""Console output: wrapped lines without control characters, and the closing lines of a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from paceline import present  # its functions are imported at their first use, and torch with them
from paceline.present.terminal import say, show
from paceline.results import RunResult, StudyResult
from paceline.text import plain_text, wrapped


class PlainConsole(Console):
    """A console for text that comes from users, stored runs and workers, in strings, tables and live displays alike."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=quiet, soft_wrap=soft_wrap, highlight=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        if len(objects) == 1 and isinstance(objects[0], str) and not options.get("soft_wrap", self.soft_wrap):
            objects = (unbroken(objects[0], self.width),)
        super().print(*objects, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        # After the layout: what goes has no width, so columns stay aligned, and no markup can arise from the rest.
        for segment in super().render(renderable, options):
            if segment.control:  # a cursor movement of the live display
                yield segment
            else:
                yield segment._replace(text=plain_text(segment.text, keep_lines=True))


def unbroken(text: str, width: int) -> str:
    """Text on lines of at most that width; short text stays as it is, with its own line breaks."""
    return "\n".join(wrapped(text, width)) if len(text) > width else text


def show_outcome(console: Console, result: StudyResult, folder: Path, *, with_page: bool) -> None:
    """Show a study that was just measured, and write its HTML page into its folder where that is wanted."""
    page = present.page_in_memory(result, folder)
    show(console, page)
    say(console, f"study   {folder}", is_unbroken=True)
    if with_page and page.tables:
        from paceline.present.html import write_page

        say(console, f"report  {write_page(page, folder / 'report.html')}", is_unbroken=True)


def show_run_outcome(console: Console, result: RunResult, folder: Path) -> None:
    """Show a run that was just measured."""
    show(console, present.page_in_memory(result, folder))
    say(console, f"run             {folder}", is_unbroken=True)
