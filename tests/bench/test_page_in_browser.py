"""The page of ``bench --html`` in headless Chromium, on a narrow and on a wide screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshkit.bench.page import draw_run
from meshkit.bench.results import BenchmarkRun, Beside
from tests.bench.example_runs import REPORT
from tests.bench.test_page import run_with_slow_groups
from tests.browser import CHROMIUM, Browser, open_browser

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium; Debian's chromium-headless-shell has one"
)
BESIDE = tuple(Beside(row.case, 1.2345, 123.45, 99.9) for row in REPORT.measurements[::3])
RUNS = {
    "beside a product": replace(REPORT, beside=BESIDE),
    "wrong elements": REPORT,
    "slow groups": run_with_slow_groups(7),
    "long hosts": run_with_slow_groups(4, host="a-host-with-a-long-name" * 8),
    "long axes": run_with_slow_groups(4, axis="an_axis_with_a_long_name" * 8),
}
OUTSIDE = """
[...document.querySelectorAll('h1, h2, p, td, th, li, svg')]
  .filter(part => part.getBoundingClientRect().right > document.documentElement.clientWidth)
  .map(part => part.outerHTML)
"""
TOO_WIDE = """
[...document.querySelectorAll('td, th')].filter(cell => cell.scrollWidth > cell.clientWidth + 1)
  .map(cell => cell.outerHTML)
"""
CUT = """
[...document.querySelectorAll('svg text, svg circle')].filter(part => {
  const [own, all] = [part, part.ownerSVGElement].map(e => e.getBoundingClientRect());
  return own.left < all.left || own.right > all.right || own.top < all.top
    || own.bottom > all.bottom;
}).map(part => part.outerHTML)
"""
OVERLAPPING = """
[...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text:not(.slow)')].map(e => e.getBoundingClientRect());
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => a.left < b.right
    && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom));
}).length
"""
LETTER = "parseFloat(getComputedStyle(document.querySelector('svg text')).fontSize)"
SCALE = "document.querySelector('svg').getBoundingClientRect().width / 360"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("width", [390, 1280])
def test_all_is_inside_the_window_and_labels_can_be_read(
    browser: Browser, tmp_path: Path, width: int, run: BenchmarkRun
) -> None:
    page = tmp_path / "bench.html"
    page.write_text(draw_run(run), encoding="utf-8")
    browser.open(page, width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(OUTSIDE) == []
    assert browser.run(TOO_WIDE) == []
    assert browser.run(CUT) == []
    assert browser.run(OVERLAPPING) == 0
    assert 10 <= browser.run(LETTER) * browser.run(SCALE) <= 17  # pixels on the screen


def test_the_legend_is_beside_its_pictures_or_below(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bench.html"
    page.write_text(draw_run(RUNS["slow groups"]), encoding="utf-8")
    look = "[...document.querySelectorAll('svg, ul')].map(part => part.getBoundingClientRect().y)"
    browser.open(page, width=1280)
    first, second, legend = browser.run(look)
    assert first == second
    assert abs(legend - first) < 40
    browser.open(page, width=390)
    first, second, legend = browser.run(look)
    assert first < second < legend


def test_dark_light_and_paper(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bench.html"
    page.write_text(draw_run(REPORT), encoding="utf-8")
    look = (
        "[getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('polyline.all')).stroke]"
    )
    browser.open(page, width=390)
    assert browser.run(look) == ["rgb(255, 255, 255)", "rgb(0, 102, 179)"]
    browser.open(page, width=390, dark=True)
    assert browser.run(look) == ["rgb(20, 23, 27)", "rgb(88, 176, 240)"]
    assert len(browser.call("Page.printToPDF")["data"]) > 1000
