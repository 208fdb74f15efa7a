"""The page in a real browser: drawn, alive under the pointer, in both themes, on a phone, and without a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from browser import opened, playwright
from command import run_command
from made_up import made_up_bench
from measured_samples import KINDS, measured, measured_study
from paceline.present import collect, page_of
from paceline.present.chart_images import write_figures
from paceline.present.html import write_page
from paceline.present.studies.bench import bench_page
from paceline.quantize.onnx_model import missing_packages
from report_samples import result, usual_study, write_report, write_run, write_study
from scale_samples import scale_study
from trained_samples import trained_run

pytestmark = pytest.mark.slow

CHARTS = ["iteration-time", "time-steps", "train-time", "split", "timeline", "loss", "accuracy", "accuracy-workers"]
CHARTS += ["target", "trade-off", "links", "bytes-workers", "resources-time", "measuring-cost"]
ATTACK = "</script><script>alert(1)</script>"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that can be measured, under more strategies than there are colours; one label is an attack."""
    folder = tmp_path_factory.mktemp("report")
    more = {f"ring:chunk={number}": KINDS["ring"] for number in range(3)}
    study = measured_study(kinds={**KINDS, **more, ATTACK: KINDS["ring"]})
    return write_report([write_study(folder / "study", study)], folder / "report.html")


@pytest.fixture(scope="module")
def old_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study from before anything but times was measured."""
    folder = tmp_path_factory.mktemp("old")
    return write_report([write_study(folder / "study", usual_study())], folder / "report.html")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_chart_is_drawn(report: Path, width: int, theme: str) -> None:
    """In both themes and on a phone, with something in it, and as wide as its place."""
    with opened(report, width=width, theme=theme) as seen:
        assert [chart.get_attribute("id") for chart in seen.page.locator(".chart").all()] == CHARTS
        for name in CHARTS:
            marks = seen.page.locator(f"#{name} svg.main-svg .trace").locator("path, text")
            assert marks.count() >= 4, f"{name} has {marks.count()} marks"
            box = seen.page.locator(f"#{name} svg.main-svg").first.bounding_box()
            assert 250 < box["width"] <= width, name
        assert seen.page.evaluate("document.documentElement.scrollWidth") == width


def test_a_page_of_an_old_study(old_report: Path) -> None:
    with opened(old_report) as seen:
        shown = [chart.get_attribute("id") for chart in seen.page.locator(".chart").all()]
        missing = {"split", "timeline", "target", "links", "resources-time", "measuring-cost"}
        assert shown == [name for name in CHARTS if name not in missing]
        assert seen.page.locator(".missing").count() == 5


def test_several_runs_some_of_which_failed(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "even", measured("ddp", KINDS["ddp"], has_slow=False))]
    folders.append(write_run(tmp_path / "old", result("ring", 0.02)))
    folders.append(write_run(tmp_path / "lost", None, status="interrupted"))
    with opened(write_report(folders, tmp_path / "report.html")) as seen:
        assert seen.page.get_by_text("lost is left out: it was interrupted before anything was measured.").is_visible()
        assert seen.page.get_by_text("Not shown, because spans were not recorded: ring.").is_visible()


def test_hovering_shows_the_figure(report: Path) -> None:
    with opened(report) as seen:
        _point_at(seen.page, seen.page.locator("#iteration-time .barlayer .point path").nth(3))
        seen.page.wait_for_selector("#iteration-time .hoverlayer .hovertext")
        text = seen.page.locator("#iteration-time .hoverlayer").text_content()
        assert "ring" in text
        assert "95 % interval" in text
        _point_at(seen.page, seen.page.locator("#loss .nsewdrag"))
        seen.page.wait_for_selector("#loss .hoverlayer .legend")
        assert "alert(1)" in seen.page.locator("#loss .hoverlayer").text_content()
        _point_at(seen.page, seen.page.locator("#timeline .barlayer .trace").nth(1).locator(".point path").first)
        seen.page.wait_for_selector("#timeline .hoverlayer .hovertext")
        assert "forward" in seen.page.locator("#timeline .hoverlayer").text_content()


def test_the_legend_hides_a_strategy_everywhere(report: Path) -> None:
    with opened(report) as seen:
        before = seen.page.locator("#accuracy-workers .trace.bars").count()
        button = seen.page.locator(".key button", has_text="gather-scatter")
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert seen.page.locator("#accuracy-workers .trace.bars").count() == before - 2
        button.click()
        assert seen.page.locator("#accuracy-workers .trace.bars").count() == before


def test_a_choice_is_made_in_all_charts_that_offer_it(report: Path) -> None:
    with opened(report) as seen:
        page = seen.page
        page.locator("figure[data-chart=loss] button", has_text="seconds").click()
        for chart in ("loss", "accuracy"):
            assert _axis(page, chart) == "seconds of training"
            pressed = page.locator(f"figure[data-chart={chart}] [aria-pressed=true]")
            assert pressed.all_text_contents() == ["seconds"]
        page.locator("figure[data-chart=accuracy] button", has_text="bytes").click()
        assert "sent by all workers together" in _axis(page, "loss")
        page.locator("figure[data-chart=timeline] select").select_option("ring")
        assert page.locator("figure[data-chart=resources-time] select").input_value() == "ring"
        page.locator("figure[data-chart=resources-time] button", has_text="disk written").click()
        assert _axis(page, "resources-time", "y") == "disk written, MB"
        assert page.locator("figure[data-chart=resources-time] select").input_value() == "ring"
        page.locator("figure[data-chart=split] button", has_text="each worker").click()
        assert page.evaluate("document.querySelector('#split')._fullLayout.yaxis.tickvals.length") > len(KINDS) + 5


def test_all_of_it_can_be_reached_with_the_keyboard(report: Path) -> None:
    with opened(report) as seen:
        page = seen.page
        reached = set()
        for _ in range(130):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id || document.activeElement.dataset.choice"))
        assert {"theme", *CHARTS, "over", "strategy", "quantity"} <= reached
        page.locator("#iteration-time").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        playwright.expect(page.locator("#iteration-time .hoverlayer")).to_contain_text("none")
        playwright.expect(page.locator("#said")).to_contain_text("mean 13.")
        page.locator("#loss").focus()
        page.keyboard.press("End")
        playwright.expect(page.locator("#loss .hoverlayer")).to_contain_text("gather-scatter")
        twin = page.locator("figure[data-chart=split] summary")
        twin.focus()
        page.keyboard.press("Enter")
        assert page.locator("figure[data-chart=split] table").is_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes(report: Path, theme: str) -> None:
    """Page and charts follow the system, and the button turns both around."""
    with opened(report, theme=theme) as seen:
        assert _is_dark(seen.page) == (theme == "dark", theme == "dark")
        seen.page.locator("#theme").click()
        assert _is_dark(seen.page) == (theme == "light", theme == "light")


def test_on_paper(report: Path) -> None:
    """Light whatever the screen is, charts as wide as a sheet, what a pointer needs left out; and back again after."""
    with opened(report, theme="dark") as seen:
        page = seen.page
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print", color_scheme="dark")
        assert _is_dark(page) == (False, False)
        for name in CHARTS:
            assert page.locator(f"#{name} svg.main-svg").first.bounding_box()["width"] <= 700
        assert not page.locator(".key").is_visible()
        assert page.locator("pre").is_visible()
        assert "gather-scatter" in page.locator("#loss g.legend").text_content()
        page.emulate_media(media="screen", color_scheme="dark")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert _is_dark(page) == (True, True)
        assert not page.locator("pre").is_visible()
        playwright.expect(page.locator("#split svg.main-svg").first).not_to_have_attribute("width", "660")
        assert page.locator("#split svg.main-svg").first.bounding_box()["width"] > 900
        assert page.pdf(format="A4", print_background=True).startswith(b"%PDF")


def test_a_phone_scrolls_down_only(report: Path) -> None:
    with opened(report, width=390) as seen:
        seen.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 390
        assert seen.page.evaluate("(box => box.scrollWidth > box.clientWidth)(document.querySelector('.scroll'))")


def test_figures(tmp_path: Path) -> None:
    """Pictures of every view, as the page shows them, with a title and the names of strategies."""
    kinds = {name: KINDS[name] for name in ("ring", "overlap")}
    study = write_study(tmp_path / "study", measured_study(kinds=kinds))
    written = write_figures(page_of(collect([study])), tmp_path / "figures")
    names = {file.name for file in written}
    some = ("iteration-time", "loss-bytes", "links-ring", "split-each-worker-percent-of-the-step")
    assert {f"{name}.{kind}" for name in some for kind in ("png", "svg")} <= names
    assert all(any(name.startswith(chart) for name in names) for chart in CHARTS)
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in written if file.suffix == ".png")
    drawing = (tmp_path / "figures" / "loss-bytes.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(drawing).tag == "{http://www.w3.org/2000/svg}svg"
    for words in ("Loss over bytes", "overlap", "ring"):
        assert words in drawing


def test_the_page_of_a_bench(tmp_path: Path) -> None:
    page = write_page(bench_page(made_up_bench()), tmp_path / "bench.html")
    chart = "#busbw-all_reduce"
    with opened(page, width=390, ready=f"{chart} .scatterlayer .trace") as seen:
        lines = seen.page.locator(f"{chart} .scatterlayer .trace")
        assert lines.count() == 3  # two comms and the copy
        assert seen.page.evaluate(f"document.querySelector('{chart}')._fullLayout.xaxis.type") == "log"
        assert seen.page.evaluate(f"document.querySelector('{chart}')._fullLayout.yaxis.type") == "log"
        seen.page.locator(".key button", has_text="Fast").click()
        assert lines.count() == 2
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 390


def test_the_page_of_a_scaling_study(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", scale_study("strong", "weak"))
    with opened(write_report([study], tmp_path / "scale.html"), width=390) as seen:
        lines = seen.page.locator("#time-workers .scatterlayer .trace")
        assert lines.count() == 4  # three strategies and perfect scaling
        seen.page.locator(".key button", has_text="all-reduce").click()
        assert lines.count() == 3
        ends = "document.querySelector('#time-workers').data[0].y.at(-1)"
        assert seen.page.evaluate(ends) == pytest.approx(10.0)
        seen.page.locator('figure[data-chart="time-workers"] button', has_text="weak scaling").click()
        assert seen.page.evaluate(ends) == pytest.approx(40.0)
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantized")
    words = ["--samples", "64", "--test-samples", "100", "--calibration", "minmax,mse", "--out", str(folder / "out")]
    said = run_command("quantize", str(trained_run(folder / "run")), *words)
    assert said.code == 0, said.err
    (page,) = folder.glob("out/*/report.html")
    return page


@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (1280, "light")])
def test_the_page_of_a_quantization(quantized: Path, width: int, theme: str) -> None:
    charts = ["stages", "weights", "activations", "noise", "confusion"]
    charts += [] if missing_packages() else ["latency"]
    with opened(quantized, width=width, theme=theme) as seen:
        drawn = [chart.get_attribute("id") for chart in seen.page.locator(".chart").all()]
        assert drawn == [f"quantize-{name}" for name in charts]
        for name in drawn:
            assert seen.page.locator(f"#{name} svg.main-svg .trace, #{name} svg.main-svg .hm").count() >= 1, name
        first = "document.querySelector('#quantize-weights').data[0].y.reduce((sum, count) => sum + count, 0)"
        assert seen.page.evaluate(first) == 150  # of the first convolution: 6 channels of 5 x 5
        assert seen.page.evaluate("document.documentElement.scrollWidth") == width


def _point_at(page: Any, target: Any) -> None:
    """Move the pointer there: plotly listens on a layer above its bars, which a plain hover takes for an obstacle."""
    target.evaluate("element => element.scrollIntoView({block: 'center'})")
    box = target.bounding_box()
    for offset in (-2, 0):  # moved, not just placed
        page.mouse.move(box["x"] + box["width"] / 2 + offset, box["y"] + box["height"] / 2)


def _axis(page: Any, chart: str, axis: str = "x") -> str:
    return str(page.evaluate(f"document.querySelector('#{chart}')._fullLayout.{axis}axis.title.text"))


def _is_dark(page: Any) -> tuple[bool, bool]:
    """Whether the page is dark, and whether the ink of a chart is meant for a dark page."""
    light = """(colour => colour.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) > 384)"""
    paper = page.evaluate(f"{light}(getComputedStyle(document.body).backgroundColor)")
    ink = page.evaluate(f"{light}(document.querySelector('#loss')._fullLayout.font.color)")
    return not paper, ink


def test_on_a_phone_no_legend_lies_on_a_chart(report: Path) -> None:
    with opened(report, width=390) as seen:
        assert seen.page.locator("#timeline .legend").count() == 0
        entries = seen.page.locator("figure[data-chart=timeline] ul.legend li").all_inner_texts()
        assert {"forward", "backward", "blocked", "all_reduce"} <= set(entries)


def test_on_a_wide_screen_the_chart_has_its_legend(report: Path) -> None:
    with opened(report, width=1280) as seen:
        assert seen.page.locator("#timeline .legend").count() == 1
        assert seen.page.locator("ul.legend").count() == 0
        table = seen.page.locator("[aria-label='Table: Strategies']")
        assert table.evaluate("element => element.scrollWidth <= element.clientWidth")
