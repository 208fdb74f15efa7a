"""Presentation of results: columns, findings and charts, declared once per study for all renderers.

`collect` reads stored results. `page_of` and `page_in_memory` make a page of results, which present/terminal.py,
html.py and text_renderers.py render. The three functions are imported on first use, because commands such as `dataflow`
show tables without needing torch.
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
