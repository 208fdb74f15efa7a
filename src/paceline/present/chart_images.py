"""Write PNG and SVG images of all charts of a page. A browser draws them from the HTML page."""

from __future__ import annotations

import base64
import os
import re
import shutil
import tempfile
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.durable_files import write_durably
from paceline.errors import RunError, UsageError
from paceline.present.chart import Chart, plotly_text
from paceline.present.html import write_page
from paceline.present.page_parts import Page
from paceline.runs.store import disk_errors

WIDTH = 900  # pixels; a PNG has twice as many
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Options that stop network requests of the browser itself. The page's content security policy forbids other requests.
ARGUMENTS = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
LIMIT_MS = 120_000


def write_figures(page: Page, folder: Path) -> list[Path]:
    """Write every figure of a page's charts to `folder` as PNG and SVG, in light colours. Return the paths.

    Each image has a title and a legend.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is a file; --figures names a folder")
    driver = _driver()
    views = list(_with_file_names([chart for section in page.make_sections() for chart in section.charts]))
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        return _draw(driver, write_page(page, Path(scratch) / "report.html"), views, folder)


def find_browser() -> str | None:
    """Return the path of a browser: the value of the environment variable PACELINE_CHROMIUM, if it is set.

    Otherwise, return the path of the first browser of `BROWSERS` that is installed, or None if none is.
    """
    return os.environ.get("PACELINE_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


def _driver() -> Any:
    try:
        from playwright import sync_api
    except ImportError:
        raise UsageError(
            "--figures draws charts in a browser, which needs the extra `figures`: pip install 'paceline[figures]'"
        ) from None
    return sync_api


def _draw(driver: Any, page_file: Path, views: Sequence[tuple[str, Chart, int, str]], folder: Path) -> list[Path]:
    written = []
    with driver.sync_playwright() as playwright:
        try:
            # The browser's sandbox does not work for root, which is the usual user in containers.
            sandbox = [] if os.name != "posix" or os.geteuid() else ["--no-sandbox"]
            browser = playwright.chromium.launch(executable_path=find_browser(), args=[*ARGUMENTS, *sandbox])
        except driver.Error as error:
            raise UsageError(
                "--figures found no browser that starts: install chromium, run `playwright install chromium`, or name "
                f"one in PACELINE_CHROMIUM ({error.message.splitlines()[0]})"
            ) from None
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
            page.goto(page_file.as_uri())
            page.wait_for_selector("html[data-drawn]", timeout=LIMIT_MS)
            for name, chart, number, title in views:
                for kind in ("svg", "png"):
                    call = "([id, number, title, kind, width]) => paceline.picture(id, number, title, kind, width)"
                    address = page.evaluate(call, [chart.id, number, title, kind, WIDTH])
                    target = folder / f"{name}.{kind}"
                    with disk_errors(target):
                        write_durably(target, _content(address))
                    written.append(target)
        except driver.Error as error:
            raise RunError(f"the browser could not draw the charts: {error.message.splitlines()[0]}") from error
        finally:
            browser.close()
    return written


def _content(address: str) -> bytes:
    """Return the decoded content of a `data:` URL."""
    head, _, body = address.partition(",")
    return base64.b64decode(body) if head.endswith(";base64") else urllib.parse.unquote_to_bytes(body)


def _with_file_names(charts: Sequence[Chart]) -> Iterator[tuple[str, Chart, int, str]]:
    """Yield (file name without extension, chart, index of the figure in the chart, title) for every figure.

    If a chart has choices between its figures, the file name and the title include the options that the figure shows.
    """
    used: set[str] = set()
    for chart in charts:
        for number in range(len(chart.views)):
            chosen = chart.options_of(number)
            base = name = "-".join([chart.id, *filter(None, map(_file_name, chosen))])
            repeat = 2
            while name in used:
                name, repeat = f"{base}-{repeat}", repeat + 1
            used.add(name)
            yield name, chart, number, plotly_text(chart.title_of(number))


def _file_name(text: str) -> str:
    """Return a label as at most 50 characters that are safe in a file name.

    User text therefore cannot name a folder or a device.
    """
    return re.sub(r"[^a-z0-9.=]+", "-", text.lower().replace("%", "percent")).strip("-.")[:50]
