"""Open HTML pages in a real browser; tests that need one are skipped, with the reason, where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("PACELINE_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if CHROMIUM is None:
    pytest.skip("no chromium: install one, or name it in PACELINE_CHROMIUM", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

# Options that stop the browser's own requests, so that every request seen is the page's.
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
QUIET += ["--disable-sync", "--no-first-run"]
READY = "html[data-drawn]"


@dataclass
class Opened:
    """An open page with its console messages, errors and network requests."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def opened(file: Path, *, width: int = 1200, theme: str = "light", ready: str = READY) -> Iterator[Opened]:
    """Open a page from its file; fail at the end of the block if the page reported an error."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        try:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
            seen = Opened(page)
            page.on("console", lambda message: seen.complaints.append(message.text))
            page.on("pageerror", lambda error: seen.complaints.append(str(error)))
            page.on("dialog", lambda dialog: (seen.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
            page.on("request", lambda request: seen.requests.append(request.url))
            page.goto(file.as_uri())
            page.wait_for_selector(ready, state="attached")
            yield seen
            assert seen.complaints == []
            assert seen.requests == [file.as_uri()]
        finally:
            browser.close()
