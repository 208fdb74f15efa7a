"""The accelerator's pages in a real browser: played, paused, stepped with slider and keys, in both themes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import browser
from browser import playwright
from paceline.dataflow.chips import load_chip
from paceline.dataflow.layers import alexnet
from paceline.dataflow.matrices import make_operands, read_matrix
from paceline.dataflow.network_cost import analyse
from paceline.dataflow.simulator import Simulation
from paceline.dataflow.timing import Timing
from paceline.present.animation import write_animation
from paceline.present.html import write_page
from paceline.present.studies.dataflow import conv_page, network_page

pytestmark = pytest.mark.slow


def simulated(model: str = "single-alu", array: tuple[int, int] | None = None) -> Simulation:
    image, kernel = read_matrix("1 3 9; 4 5 6; 7 4 9", "--input"), read_matrix("-1 2; 2 -1", "--kernel")
    return Simulation.of(make_operands(image, kernel), Timing(model=model), array)


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_animation(simulated(), tmp_path_factory.mktemp("page") / "worked.html")


@contextmanager
def opened(file: Path, **given: Any) -> Iterator[Any]:
    """The page alone."""
    with browser.opened(file, **given) as seen:
        yield seen.page


def works(page: Any) -> list[str]:
    """What every PE calculates in the cycle that is shown."""
    return [text.strip() for text in page.locator(".pe .work").all_text_contents()]


def outputs(page: Any) -> list[str]:
    return list(page.locator("#outputs td").all_text_contents())


def test_keys_step_through_the_cycles(worked: Path) -> None:
    with opened(worked) as page:
        assert works(page) == ["", "", "", ""]
        page.keyboard.press("ArrowRight")
        products = ["-1 x 1 = -1", "-1 x 4 = -4", "2 x 4 = 8", "2 x 7 = 14"]
        assert works(page) == [product.replace("x", "\N{MULTIPLICATION SIGN}") for product in products]
        assert page.locator(".pe.multiply").count() == 4
        assert page.locator(".row .new").all_text_contents() == ["-1", "1", "-1", "4", "2", "4", "2", "7"]
        for _ in range(6):
            page.keyboard.press("ArrowRight")
        assert works(page) == ["5 + 3 = 8", "6 + 10 = 16", "sends 3", "sends 10"]
        assert outputs(page) == ["8", "·", "16", "·"]
        playwright.expect(page.locator("#said")).to_contain_text("Cycle 7: 2 PEs work. Complete: output [0, 0] = 8")
        page.keyboard.press("ArrowLeft")
        assert works(page)[0] == "-3 + 18 = 15"
        page.keyboard.press("End")
        assert outputs(page) == ["8", "19", "16", "6"]
        assert page.locator("#now").text_content() == "8 / 8"
        page.keyboard.press("ArrowRight")
        assert page.locator("#now").text_content() == "8 / 8"
        page.keyboard.press("Home")
        assert outputs(page) == ["·"] * 4


def test_partial_sums_travel(worked: Path) -> None:
    with opened(worked) as page:
        page.locator("#cycle").fill("7")
        assert page.locator(".token").all_text_contents() == ["3", "10"]
        page.evaluate("Promise.all(document.getAnimations().map((one) => one.finished)).then(() => null)")
        token = page.locator(".token").first.bounding_box()
        target = page.locator(".pe[data-place='0,0']").bounding_box()
        assert target["x"] < token["x"] < target["x"] + target["width"]
        assert token["y"] < target["y"] < token["y"] + token["height"]  # on its edge, where it covers no value


def test_it_plays_pauses_and_ends(worked: Path) -> None:
    with opened(worked) as page:
        page.locator("#speed").select_option("fast")
        play = page.locator("#play")
        play.click()
        assert play.get_attribute("aria-pressed") == "true"
        playwright.expect(page.locator("#now")).to_have_text(re.compile("[2-7] / 8"))
        play.click()
        assert play.text_content() == "Play"
        stopped = page.locator("#now").text_content()
        page.wait_for_timeout(600)
        assert page.locator("#now").text_content() == stopped
        page.locator("h1").click()
        page.keyboard.press(" ")
        playwright.expect(page.locator("#now")).to_have_text("8 / 8")
        playwright.expect(play).to_have_text("Play")
        assert outputs(page) == ["8", "19", "16", "6"]


def test_buttons_and_slider(worked: Path) -> None:
    with opened(worked, width=390) as page:
        page.locator("#forward").click()
        page.locator("#forward").click()
        page.locator("#back").click()
        assert page.locator("#now").text_content() == "1 / 8"
        page.locator("#last").click()
        assert page.locator("#now").text_content() == "8 / 8"
        page.locator("#first").click()
        assert page.locator("#now").text_content() == "0 / 8"
        page.locator("#cycle").focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("#now").text_content() == "1 / 8"
        assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("model", ["serial", "pipelined", "mac"])
def test_other_models_and_folds_end_with_the_same_output(model: str, tmp_path: Path) -> None:
    with opened(write_animation(simulated(model, (1, 3)), tmp_path / "a.html"), theme="dark") as page:
        assert page.locator(".pe").count() == 3
        page.keyboard.press("End")
        assert outputs(page) == ["8", "19", "16", "6"]
        page.locator("#theme").click()
        assert page.locator("#theme").text_content() == "Dark theme"


def test_several_images_filters_and_channels(tmp_path: Path) -> None:
    images, kernel = read_matrix("random:2x2x5x5", "--input"), read_matrix("random:2x2x3x3:1", "--kernel")
    simulation = Simulation.of(make_operands(images, kernel), Timing(), (3, 4))
    with opened(write_animation(simulation, tmp_path / "a.html")) as page:
        assert page.locator("#outputs table").count() == 4
        page.keyboard.press("End")
        assert outputs(page) == [str(value) for value in simulation.output.ravel().tolist()]
        playwright.expect(page.locator("#said")).to_contain_text("output [1, 1, 2, 2] =")


def test_large_whole_numbers_are_not_rounded(tmp_path: Path) -> None:
    operands = make_operands(read_matrix(f"{2**53 + 1} -3; 2 1", "--input"), read_matrix("1", "--kernel"))
    with opened(write_animation(Simulation.of(operands, Timing()), tmp_path / "a.html")) as page:
        page.keyboard.press("ArrowRight")
        assert works(page)[0] == f"1 \N{MULTIPLICATION SIGN} {2**53 + 1} = {2**53 + 1}"
        page.keyboard.press("End")
        assert outputs(page) == [str(2**53 + 1), "-3", "2", "1"]


def test_charts_of_a_convolution(tmp_path: Path) -> None:
    with opened(write_page(conv_page(simulated()), tmp_path / "c.html")) as page:
        assert [chart.get_attribute("id") for chart in page.locator(".chart").all()] == ["utilisation", "energy"]
        shares = page.evaluate("Array.from(document.querySelector('#utilisation').data[0].y)")
        assert shares == [100] * 6 + [50] * 2
        assert page.locator("#energy .barlayer .point").count() == 5


def test_rows_stay_while_their_product_is_added(tmp_path: Path) -> None:
    """Of two channels, the second is in the PE while the product of its weight is added."""
    image, kernel = read_matrix("[[[1, 2]], [[3, 4]]]", "--input"), read_matrix("[[[5]], [[6]]]", "--kernel")
    simulation = Simulation.of(make_operands(image, kernel), Timing(), (2, 2))
    with opened(write_animation(simulation, tmp_path / "a.html")) as page:
        rows = []
        for _ in range(3):
            page.keyboard.press("ArrowRight")
            marked = page.locator(".pe .used").all_text_contents()
            rows.append([*page.locator(".pe .row").all_text_contents(), "".join(marked)])
        first, second = (["w channel 0: 5", "x channel 0: 12"], ["w channel 1: 6", "x channel 1: 34"])
        assert rows == [[*first, "51"], [*second, "63"], [*second, ""]]
        assert works(page) == ["5 + 18 = 23"]
        assert page.locator(".pe.unused").count() == 3
        assert page.locator("#said").text_content() == "Cycle 3: 1 PE works. Complete: output [0, 0] = 23."


def test_sums_of_an_earlier_fold_are_said_and_filters_named(tmp_path: Path) -> None:
    image, kernel = read_matrix("1 2; 3 4", "--input"), read_matrix("[[[[5], [6]]], [[[7], [8]]]]", "--kernel")
    simulation = Simulation.of(make_operands(image, kernel), Timing(), (1, 1))
    with opened(write_animation(simulation, tmp_path / "a.html")) as page:
        said = []
        for _ in range(simulation.cycles):
            page.keyboard.press("ArrowRight")
            said.append([page.locator(".pe h3").text_content(), *works(page)])
        assert said[4] == ["PE(0,0): filter 0, filter row 1, input row 1", "18 + 5 = 23 (5 kept)"]
        assert said[6][0] == "PE(0,0): filter 1, filter row 0, input row 0"


def test_layers_with_numbers_for_names_are_all_drawn(tmp_path: Path) -> None:
    layers = [replace(layer, name=name) for layer, name in zip(alexnet(1), ("0", "2.a", "2.b", "5", "10"), strict=True)]
    result = analyse(layers, load_chip("eyeriss"), network="mine", with_baselines=False)
    with opened(write_page(network_page(result), tmp_path / "n.html")) as page:
        for chart in ("layer-utilisation", "layer-times", "energy"):
            ticks = page.locator(f"#{chart} .xtick text").all_text_contents()
            assert ticks == ["0", "2.a", "2.b", "5", "10"], chart


def test_charts_of_a_network(tmp_path: Path) -> None:
    result = analyse(alexnet(4), load_chip("eyeriss"), network="alexnet", batch=4)
    with opened(write_page(network_page(result), tmp_path / "n.html"), width=390) as page:
        charts = ["layer-utilisation", "layer-times", "energy", "dataflows"]
        assert [chart.get_attribute("id") for chart in page.locator(".chart").all()] == charts
        height = "document.querySelector('#energy').data[1].y[0]"
        before = page.evaluate(height)
        page.locator("figure[data-chart=energy] button", has_text="no-local-reuse").click()
        assert before == pytest.approx(4.04, abs=0.01)
        assert page.evaluate(height) == 0
        lines = page.locator("figure[data-chart=energy] table tbody tr").all_text_contents()
        assert len(lines) == 25
        assert sum("no-local-reuse" in line for line in lines) == 5
        assert page.evaluate("document.documentElement.scrollWidth") == 390
