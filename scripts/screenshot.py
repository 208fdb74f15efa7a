"""Take a picture of the main parts of a report: python scripts/screenshot.py REPORT.html PICTURE.png

The picture has the findings, the split of a step and the learning curves, in light colours and 1,200 pixels wide.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from paceline.present.chart_images import ARGUMENTS, find_browser

PARTS = ("header", "section.verdict", "section[aria-labelledby=time]", "section[aria-labelledby=learning]")
GAP = 24
HEIGHT = 2730  # pixels; the picture is cut there


def main(report: Path, picture: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=[*ARGUMENTS, "--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 1000}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("html[data-drawn]")
        page.evaluate("document.querySelector('.key').style.position = 'static'")
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        shots = [Image.open(io.BytesIO(page.locator(part).screenshot())).convert("RGB") for part in PARTS]
        browser.close()
    left = 28  # the page's own margin
    whole = Image.new("RGB", (1200, sum(shot.height + GAP for shot in shots) + GAP), paper)
    top = GAP
    for shot in shots:
        whole.paste(shot, (left, top))
        top += shot.height + GAP
    picture.parent.mkdir(parents=True, exist_ok=True)
    # Few colours are used, so 128 lose nothing and keep the file small.
    whole.crop((0, 0, 1200, min(top, HEIGHT))).quantize(128, dither=Image.Dither.NONE).save(picture, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
