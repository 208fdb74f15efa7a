"""The page in a real browser: drawn, alive under the pointer, in both themes, on a phone, and without a request."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from made_up import made_up_bench
from paceline.report import write_report
from paceline.report.bench import write_bench_page
from report_samples import usual_study, write_study

CHROMIUM = os.environ.get("PACELINE_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if CHROMIUM is None:
    pytest.skip("no chromium: install one, or name it in PACELINE_CHROMIUM", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

# A browser that starts nothing of its own accord, so that every request seen is the page's.
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
QUIET += ["--disable-sync", "--no-first-run"]
CHARTS = ["iteration-time", "loss-steps", "loss-seconds", "accuracy-steps", "time-steps", "accuracy-workers"]
CHARTS += ["bytes-workers"]


@dataclass
class Opened:
    """A page, and what it said and asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write_report([write_study(folder / "study", usual_study())], folder / "report.html")


READY = f"#{CHARTS[-1]} .barlayer .point"


@contextmanager
def opened(report: Path, *, width: int = 1200, theme: str = "light", ready: str = READY) -> Iterator[Opened]:
    """A page from its file; nothing may have gone wrong when the block is left."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        try:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
            seen = Opened(page)
            page.on("console", lambda message: seen.complaints.append(message.text))
            page.on("pageerror", lambda error: seen.complaints.append(str(error)))
            page.on("dialog", lambda dialog: (seen.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
            page.on("request", lambda request: seen.requests.append(request.url))
            page.goto(report.as_uri())
            page.wait_for_selector(ready, state="attached")
            yield seen
            assert seen.complaints == []
            assert seen.requests == [report.as_uri()]
        finally:
            browser.close()


def test_every_chart_is_drawn(report: Path) -> None:
    with opened(report) as seen:
        for name in CHARTS:
            traces = seen.page.locator(f"#{name} svg.main-svg").locator(".trace.bars, .trace.scatter")
            assert traces.count() >= 4, f"{name} has {traces.count()} traces"
        assert seen.page.locator(".chart").count() == len(CHARTS)


def test_hovering_shows_the_figure(report: Path) -> None:
    with opened(report) as seen:
        _point_at(seen.page, seen.page.locator("#iteration-time .barlayer .point path").nth(2))
        seen.page.wait_for_selector("#iteration-time .hoverlayer .hovertext")
        text = seen.page.locator("#iteration-time .hoverlayer").text_content()
        assert "ring" in text
        assert "95 % interval" in text
        _point_at(seen.page, seen.page.locator("#loss-steps .nsewdrag"))
        seen.page.wait_for_selector("#loss-steps .hoverlayer .legend")
        assert "alert(1)" in seen.page.locator("#loss-steps .hoverlayer").text_content()


def test_the_legend_hides_a_strategy_everywhere(report: Path) -> None:
    with opened(report) as seen:
        before = seen.page.locator("#bytes-workers .trace.bars").count()
        button = seen.page.locator(".legend button", has_text="ring")
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert seen.page.locator("#bytes-workers .trace.bars").count() == before - 2
        button.click()
        assert seen.page.locator("#bytes-workers .trace.bars").count() == before


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes(report: Path, theme: str) -> None:
    """Page and charts follow the system, and the button turns both around."""
    with opened(report, theme=theme) as seen:
        assert _is_dark(seen.page) == (theme == "dark", theme == "dark")
        seen.page.locator("#theme").click()
        assert _is_dark(seen.page) == (theme == "light", theme == "light")


def test_a_phone_scrolls_down_only(report: Path) -> None:
    with opened(report, width=390) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 390
        for details in seen.page.locator("details > summary").all():
            details.click()
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 390
        assert seen.page.evaluate("(box => box.scrollWidth > box.clientWidth)(document.querySelector('.scroll'))")


def test_the_page_of_a_bench(tmp_path: Path) -> None:
    page = write_bench_page(made_up_bench(), tmp_path / "bench.html")
    chart = "#busbw-all_reduce"
    with opened(page, width=390, ready=f"{chart} .scatterlayer .trace") as seen:
        lines = seen.page.locator(f"{chart} .scatterlayer .trace")
        assert lines.count() == 3  # two comms and the copy
        assert seen.page.evaluate(f"document.querySelector('{chart}')._fullLayout.xaxis.type") == "log"
        assert seen.page.evaluate(f"document.querySelector('{chart}')._fullLayout.yaxis.type") == "log"
        seen.page.locator(".legend button", has_text="Fast").click()
        assert lines.count() == 2
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 390


def _point_at(page: Any, target: Any) -> None:
    """Move the pointer there: plotly listens on a layer above its bars, which a plain hover takes for an obstacle."""
    target.evaluate("element => element.scrollIntoView({block: 'center'})")
    box = target.bounding_box()
    for offset in (-2, 0):  # moved, not just placed
        page.mouse.move(box["x"] + box["width"] / 2 + offset, box["y"] + box["height"] / 2)


def _is_dark(page: Any) -> tuple[bool, bool]:
    """Whether the page is dark, and whether the ink of a chart is meant for a dark page."""
    light = """(colour => colour.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) > 384)"""
    paper = page.evaluate(f"{light}(getComputedStyle(document.body).backgroundColor)")
    ink = page.evaluate(f"{light}(document.querySelector('#loss-steps')._fullLayout.font.color)")
    return not paper, ink
