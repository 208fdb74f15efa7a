"""Size of a report, and the time to write and open it, for runs of 1,000 and 100,000 steps.

    python benchmarks/report_size.py [--steps 1000,100000] [--opens 5]

The runs are invented, with one strategy and all kinds of measurements, and stored like real runs. A page is open when
every chart is drawn in a headless browser; the median of several openings is printed. Needs the extra `figures` and a
chromium.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the tests' invented measurements

from measured_samples import KINDS, measured, timeline
from paceline.present.chart_images import ARGUMENTS, find_browser
from report_samples import write_report, write_run

RING = KINDS["ring"]
WORKERS = 4
KEPT_WHOLE = 1000  # steps below this have all spans; later steps are recorded more and more sparsely


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="1000,100000", help="lengths of runs, separated by commas")
    parser.add_argument("--opens", type=int, default=5, help="times that each page is opened")
    given = parser.parse_args()
    print(f"{'steps':>9} {'run, MB':>9} {'write, s':>9} {'page, MB':>9} {'open, s':>9}")
    with tempfile.TemporaryDirectory() as scratch:
        write_report([make_run(Path(scratch), 10)], Path(scratch) / "first.html")  # warm-up
        for steps in map(int, given.steps.split(",")):
            run = make_run(Path(scratch), steps)
            size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
            page = Path(scratch) / f"{steps}.html"
            begin = time.perf_counter()
            write_report([run], page)
            write_s = time.perf_counter() - begin
            open_s = statistics.median(opening(page) for _ in range(given.opens))
            figures = f"{size / 1e6:9.1f} {write_s:9.2f} {page.stat().st_size / 1e6:9.2f} {open_s:9.2f}"
            print(f"{steps:9,} {figures}", flush=True)


def make_run(out: Path, steps: int) -> Path:
    """Write an invented run with this many steps; return its folder."""
    result = measured("ring", RING, steps=steps)
    folder = write_run(out / f"run-{steps}", result)
    (folder / "workers").mkdir()
    for rank in range(WORKERS):
        with (folder / "workers" / f"{rank}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines_of(rank, steps, result.iteration_s.mean))
    return folder


def lines_of(rank: int, steps: int, step_s: float) -> Iterator[dict[str, object]]:
    """Yield the lines of a worker: every step, and spans of the steps that keep them."""
    yield {
        "kind": "head",
        "schema": 1,
        "rank": rank,
        "host": "h",
        "pid": 1,
        "clock_offset_s": 0.0,
        "clock_error_s": 0.0,
    }
    spans = timeline(RING, step_s, WORKERS).lanes[rank].spans
    of_a_step = spans[: len(spans) // 3]
    for step in range(steps):
        begin = step * step_s
        sizes = {"num_right": 3, "num_answers": 8, "num_samples": 8, "sent_bytes": 370_236 * (step + 1)}
        yield {
            "kind": "step",
            "step": step,
            "begin_s": begin,
            "iteration_s": step_s,
            "data_s": 1e-4,
            "loss": 1.0,
            **sizes,
        }
        if step < KEPT_WHOLE or step % 2 ** (step // KEPT_WHOLE).bit_length() == 0:
            for span in of_a_step:
                place = {"begin_s": begin + span.begin_s - 1, "end_s": begin + span.end_s - 1}
                yield {"kind": span.kind, "step": step, "name": span.name, **place}
    yield {"kind": "end", "dropped": 0}


def opening(page_file: Path) -> float:
    """Return the seconds from opening the page until its last chart is drawn, in a new browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=[*ARGUMENTS, "--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            begin = time.perf_counter()
            page.goto(page_file.as_uri())
            page.wait_for_selector("html[data-drawn]", timeout=120_000)
            return time.perf_counter() - begin
        finally:
            browser.close()


if __name__ == "__main__":
    main()
