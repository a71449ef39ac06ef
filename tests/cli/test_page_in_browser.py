"""The page of ``plan --html`` in headless Chromium: what it says, draws, and needs."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshkit import BatchPlan, Layout
from meshkit.cli.main import main
from tests.browser import CHROMIUM, Browser, open_browser

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium; Debian's chromium-headless-shell has one"
)
SMALL = "dp=4 ep=2 tp=2 --hosts {hosts} --global-batch 64 --micro-batch 2"
BATCH = "--global-batch 16 --micro-batch 1"
LARGE = "pp=16 dp=128 tp=8 --nodes 2048 --global-batch 2048 --micro-batch 1"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A page of 16 ranks, dealt over 4 nodes in 2 racks, and placed."""
    hosts = tmp_path / "hosts"
    hosts.write_text("a r0\nb r0\nc r1\nd r1\n" * 4)
    return write_page(tmp_path, SMALL.format(hosts=hosts) + " --place")


def write_page(folder: Path, words: str) -> Path:
    page = folder / "plan.html"
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["plan", *words.split(), "--html", str(page)]) == 0
    return page


def placed() -> Layout:
    """The layout of the small page: ranks of one node, r and r + 4, are neighbors along tp."""
    order = [node + 4 * i for node in range(4) for i in range(4)]
    return Layout(dp=4, ep=2, tp=2, ranks=order)


def test_the_page_says_what_the_layout_says(browser: Browser, small: Path) -> None:
    browser.open(small, width=1280)
    layout, batch = placed(), BatchPlan.solve(dp=8, global_batch=64, micro_batch=2)
    for position, rank in enumerate(layout.grid.ravel().tolist()):
        browser.run(f"choose({position})")
        title, where, *lines = browser.run("$('facts').innerText.split('\\n')")
        coordinate = " ".join(f"{a}={i}" for a, i in layout.coordinate(rank).items())
        assert title == f"rank {rank}: {coordinate}"
        assert where == f"node {rank % 4}, rack {rank % 4 // 2}, slot {rank // 4} of 4"
        for axis, line in zip(layout.axes, lines, strict=False):
            peers = layout.peers(rank, axis).tolist()
            before, after = (layout.neighbor(rank, axis, shift) for shift in (-1, 1))
            group = f"{axis} {layout.coordinate(rank)[axis]} of {len(peers)}: "
            assert line.startswith(group + ", ".join(map(str, peers)) + "; ")
            nodes = {peer % 4 for peer in peers}
            racks = f"{(n := len({node // 2 for node in nodes}))} rack{'s' * (n > 1)}"
            assert ("inside its node" in line) == (len(nodes) == 1)
            assert (f"over {len(nodes)} nodes in {racks}" in line) == (len(nodes) > 1)
            ends = [f"{r}" + f" on node {r % 4}" * (r % 4 != rank % 4) for r in (before, after)]
            assert line.endswith("before {}, after {}".format(*ends))
        first = batch.samples(0, position // 2).reshape(-1, 2).tolist()
        ranges = ", ".join(f"{low}-{high}" for low, high in first)
        assert lines[-1] == f"4 micro batches of 2 samples in step 0: {ranges}"


def place_of(browser: Browser, position: int) -> tuple[float, float]:
    """Return the middle of a cell in the window."""
    x, y = browser.run(
        f"(() => {{ const at = canvas.getBoundingClientRect(), [x, y] = corner({position});"
        " return [at.left + x + cell / 2, at.top + y + cell / 2]; })()"
    )
    return x, y


def color_of(browser: Browser, position: int) -> str:
    """Return the color of a corner of a cell, as the screen has it."""
    red, green, blue = browser.run(
        f"[...context.getImageData(...corner({position}).map(n => n + 3), 1, 1).data].slice(0, 3)"
    )
    return f"#{red:02x}{green:02x}{blue:02x}"


def test_pointer_click_and_switches(browser: Browser, small: Path) -> None:
    browser.open(small, width=1280)
    ranks = placed().ranks

    def title() -> str:
        return str(browser.run("document.querySelector('#facts h2').textContent"))

    browser.point(*place_of(browser, 5))
    assert title().startswith(f"rank {ranks[5]}:")
    assert color_of(browser, 4) == "#e69f00"  # its peer along tp
    browser.run("switchOf(axes[2]).click()")
    assert color_of(browser, 4) == "#e4e8ec"
    browser.point(*place_of(browser, 9), click=True)
    browser.point(*place_of(browser, 0))
    assert title().startswith(f"rank {ranks[9]}:")  # a click keeps it
    browser.run("$('rank').value = 7; $('rank').oninput({target: $('rank')})")
    assert title().startswith("rank 7:")
    browser.run("$('by').value = 'dp'; layOut()")
    assert browser.run("boxes.map(box => box.label)") == [f"dp={i}" for i in range(4)]


@pytest.mark.parametrize("width", [390, 1280])
def test_16384_ranks_are_drawn_once_within_a_second(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    page, times = write_page(tmp_path, LARGE), list[float]()
    for _ in range(3):  # the machine may be busy with other tests
        browser.open(page, width=width)
        times.append(browser.run("performance.getEntriesByName('drawn')[0].startTime"))
    assert min(times) < 1000
    assert browser.run("document.documentElement.scrollWidth") <= width
    drawn = "Array.from({length: count}, (_, p) => corner(p).join())"
    assert browser.run(f"new Set({drawn}).size") == 16384
    across, down = browser.run("[canvas.clientWidth, canvas.clientHeight]")
    xs, ys = browser.run(
        "[0, 1].map(i => Array.from({length: count}, (_, p) => corner(p)[i])"
        ".reduce((most, n) => Math.max(most, n), 0) + cell)"
    )
    assert xs <= across and ys <= down  # noqa: PT018
    browser.run("choose(6062)")
    assert browser.run("$('facts').innerText").startswith("rank 6062: pp=5 dp=117 tp=6\n")


@pytest.mark.parametrize("width", [390, 1280])
def test_a_grid_for_each_layout(browser: Browser, tmp_path: Path, width: int) -> None:
    page = write_page(tmp_path, f"dp=4,tp=2 dp=8 tp=4,dp=2 --nodes 2 {BATCH}")
    browser.open(page, width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width
    frames = "[...document.querySelectorAll('iframe')].map(frame => frame.contentWindow)"
    titles = browser.run(f"{frames}.map(frame => frame.document.querySelector('h1').innerText)")
    assert titles == ["dp=4 tp=2", "dp=8", "dp=2 tp=4"]
    assert browser.run(f"{frames}.map(frame => frame.eval('count'))") == [8, 8, 8]
    assert "from dp=4 tp=2 to dp=8" in browser.run("document.querySelector('pre').innerText")


def test_dark_light_and_paper(browser: Browser, small: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    browser.open(small, width=390, dark=True)
    assert browser.run(background) == "rgb(20, 23, 27)"
    assert color_of(browser, 5) == "#2c3238"
    browser.run("onbeforeprint()")  # paper is white
    assert browser.run(background) == "rgb(255, 255, 255)"
    assert color_of(browser, 5) == "#e4e8ec"
    browser.run("onafterprint()")
    assert color_of(browser, 5) == "#2c3238"
