"""Show results as tables, findings and charts in a terminal, HTML, Markdown or a notebook.

Every type of study declares its content once, as a `Page`, and terminal.py, html.py and text_renderers.py render it.
`collect` reads stored results, `page_of` makes the page of stored results, and `page_in_memory` makes the page of a
result in memory. These three functions need torch, so they are imported on first use. Commands that only print a table
start without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.present.pages import collect, page_in_memory, page_of

__all__ = ["collect", "page_in_memory", "page_of"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from paceline.present import pages

    return getattr(pages, name)
