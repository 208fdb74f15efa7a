"""Console output: wrapped lines without control characters, and the closing lines of a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from paceline.present.terminal import say, show
from paceline.text import plain_text, wrapped

if TYPE_CHECKING:
    from paceline.results import RunResult, StudyResult


class PlainConsole(Console):
    """A console that removes control characters from strings, tables and live displays."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=quiet, soft_wrap=soft_wrap, highlight=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        if len(objects) == 1 and isinstance(objects[0], str) and not options.get("soft_wrap", self.soft_wrap):
            objects = (unbroken(objects[0], self.width),)
        super().print(*objects, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        # After the layout, so that columns stay aligned and the remaining text is not parsed as markup.
        for segment in super().render(renderable, options):
            if segment.control:  # a cursor movement of the live display
                yield segment
            else:
                yield segment._replace(text=plain_text(segment.text, keep_lines=True))


def unbroken(text: str, width: int) -> str:
    """Wrap text that is longer than the width."""
    return "\n".join(wrapped(text, width)) if len(text) > width else text


def show_outcome(console: Console, result: StudyResult, folder: Path, *, with_page: bool) -> None:
    """Show a study that was just measured, and write its HTML page into its folder if `with_page`."""
    from paceline.present import page_in_memory  # needs torch, which --help does without

    page = page_in_memory(result, folder)
    show(console, page)
    say(console, f"study   {folder}", is_unbroken=True)
    if with_page and page.tables:
        from paceline.present.html import write_page

        say(console, f"report  {write_page(page, folder / 'report.html')}", is_unbroken=True)


def show_run_outcome(console: Console, result: RunResult, folder: Path) -> None:
    """Show a run that was just measured."""
    from paceline.present import page_in_memory

    show(console, page_in_memory(result, folder))
    say(console, f"run             {folder}", is_unbroken=True)
