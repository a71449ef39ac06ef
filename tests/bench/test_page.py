"""The page of a benchmark: its scales and labels, and what it says of odd names and figures."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.bench.page import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MAX_MARKED,
    MAX_TICKS,
    RIGHT,
    TOP,
    WIDTH,
    draw_run,
    format_size,
    log_ticks,
    widen,
)
from meshkit.bench.report import summary_cells
from meshkit.bench.results import (
    CONCURRENT,
    BenchmarkRun,
    Beside,
    Case,
    parse_targets,
)
from tests.bench.example_runs import CLEAN, REPORT, summarize_case

VALUES = st.floats(1e-12, 1e15)


@given(VALUES, VALUES)
def test_each_range_has_a_margin_and_some_round_labels(first: float, second: float) -> None:
    low, high = sorted((first, second))
    lower, higher = widen(low, high)
    assert lower < low <= high < higher
    ticks = log_ticks(lower, higher)
    assert 2 <= len(ticks) <= MAX_TICKS
    assert ticks == sorted({*ticks})
    assert all(lower <= tick <= higher for tick in ticks)


@pytest.mark.parametrize(
    ("size", "text"),
    [(4, "4"), (1000, "1000"), (1024, "1K"), (1048572, "1M"), (2**40, "1024G"), (1536, "1.5K")],
)
def test_sizes_are_labelled_as_they_are_typed(size: int, text: str) -> None:
    assert format_size(size) == text


class Page(HTMLParser):
    """The elements of a page with their attributes and text; each must be closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.setdefault(self.open[-1], []).append(data.strip())

    def points(self, tag: str, kind: str) -> list[list[tuple[float, float]]]:
        """Return the pixels of the lines of a class."""
        pairs = []
        for own, attributes in self.elements:
            if own == tag and attributes.get("class", "") == kind:
                numbers = map(float, re.split("[ ,]", attributes["points"] or ""))
                pairs.append([*zip(numbers, numbers, strict=True)])
        return pairs


def test_each_target_has_its_figures_and_lines() -> None:
    page = Page(draw_run(REPORT))
    assert page.texts["h2"] == [
        *("all_reduce over dp, n = 2", "all_reduce over sp, n = 2"),
        "all_reduce over dp+sp, n = 2 and 2",
    ]
    names, cells = zip(*((name, cells) for name, *cells in summary_cells(REPORT)), strict=True)
    assert page.texts["a"] == [*names]
    assert page.texts["td"] == [cell for row in cells for cell in row][:-1]  # no slowest of dp+sp
    assert page.texts["li"] == [
        *("one group alone", "all 2 at once"),
        *("one group alone", "all 2 at once", "3 wrong elements", "both at once"),
    ]
    titles = [text for text in page.texts["text"] if text in ("time of a call", "busbw, GB/s")]
    assert titles == ["time of a call", "busbw, GB/s"] * 2 + ["time of a call"]
    assert "FAILED: 7 rows in 1.2 s; 3 wrong elements." in page.texts["p"]


def test_collectives_beside_a_product_have_a_table_when_measured() -> None:
    run = replace(CLEAN, beside=(Beside(CLEAN.measurements[0].case, 4e-3, 5e-3, 6e-3),))
    rows = [line.split("<td>")[1:] for line in draw_run(run).splitlines() if "<tr><td>" in line]
    texts = [re.sub("<.*", "", cell) for cell in rows[-1]]
    assert texts == ["dp", "1024", "4000", "5000", "9000", "6000", "75"]
    assert 'class="beside"' not in draw_run(CLEAN)


def test_lines_rise_by_the_logarithm_of_their_figures() -> None:
    page = Page(draw_run(CLEAN))  # 1.5 and 4 ms alone, 2.5 and 7 ms at once
    pixels = []
    for kind in ("alone", "all"):
        (least, low), (most, high) = page.points("polyline", kind)[0]
        assert (least, most) == (LEFT, WIDTH - RIGHT)
        pixels += [low, high]
    logs = [math.log(ms) for ms in (1.5, 4, 2.5, 7)]
    slope = (pixels[0] - pixels[3]) / (logs[3] - logs[0])
    assert pixels == pytest.approx([pixels[0] - slope * (log - logs[0]) for log in logs], abs=0.2)
    assert slope > 0  # up is smaller
    (band,) = page.points("polygon", "")[:1]  # 2 to 3, and 6 to 8 ms
    edges = [pixels[0] - slope * (math.log(ms) - logs[0]) for ms in (2, 6, 8, 3)]
    assert [y for _, y in band] == pytest.approx(edges, abs=0.2)


def run_with_slow_groups(num_slow: int, host: str = "a", axis: str = "dp") -> BenchmarkRun:
    """Return a run of one size over 16 groups, of which the last ones are slow."""
    sizes = {axis: 2, "tp": 16}
    layout = Layout.of(sizes)
    (target,) = parse_targets(layout, [axis])
    seconds = np.full((32, 9), 1e-3)
    for index in range(16 - num_slow, 16):
        seconds[[index, 16 + index]] *= 2 + index / 4
    rows = summarize_case(
        layout, Case("all_reduce", target, 2**20), CONCURRENT, np.hsplit(seconds, 9), 0
    )
    return replace(CLEAN, sizes=sizes, hosts=(host,) * 32, first_calls=(), measurements=(rows,))


@pytest.mark.parametrize("number", [0, 1, 4, 7])
def test_slow_groups_are_marked_and_named_the_slowest_first(number: int) -> None:
    page = Page(draw_run(run_with_slow_groups(number)))
    expected = [
        f"{letter}: tp={index} (ranks {index} and {16 + index}) on a: SLOW, "
        f"{2 + index / 4:.2f} times the median of its peers at 1M"
        for letter, index in zip("ABCDEF", range(15, 15 - number, -1), strict=False)
    ]
    expected += ["and 1 more slow group"] * (number > MAX_MARKED)
    assert page.texts["li"] == ["all 16 at once", *expected]
    drawn = min(number, MAX_MARKED)
    marks = [text for text in page.texts["text"] if text in [*"ABCDEF"]]
    assert marks == [*"ABCDEF"][:drawn] * 2  # time and busbw
    heights = [points[0][1] for points in page.points("polyline", "slow")[:drawn]]
    assert heights == sorted(heights)


def test_one_size_is_a_point_in_the_middle() -> None:
    page = Page(draw_run(run_with_slow_groups(0)))
    (point,) = page.points("polyline", "all")[0]
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2, TOP + (HEIGHT - TOP - BOTTOM) / 2
    assert point == pytest.approx(middle, abs=0.1)


@pytest.mark.parametrize("name", ['<b>&"', "\u0639\u0627", "</style><script>alert(1)</script>"])
def test_names_of_hosts_are_text(name: str) -> None:
    page = Page(draw_run(run_with_slow_groups(1, host=name)))
    assert [tag for tag, _ in page.elements if tag in ("b", "script")] == ["script"]
    assert f" on {name}: SLOW" in page.texts["li"][1]


def test_the_page_needs_no_other_file() -> None:
    assert not re.search(r"https?:|src=|url\(|@import", draw_run(REPORT))
