"""Take a picture of a report's upper part: python scripts/screenshot.py runs/.../report.html docs/report.png"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main(report: Path, picture: Path, height: int = 2150) -> None:
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        page = browser.new_page(viewport={"width": 1200, "height": height}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.wait_for_timeout(1500)
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
