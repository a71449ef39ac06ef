"""Law 12: a picture shows each rank once."""

from __future__ import annotations

import math
import re

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.testing import layouts, ranks
from tests.laws.derivations import law
from tests.layout.test_draw import draw_grid


def parse_ranks(text: str) -> tuple[list[int], list[int]]:
    """Return the integers between spaces in a text, and those of them in brackets."""
    matches = [re.fullmatch(r"(\[?)(\d+)(\]?)", token) for token in text.split()]
    numbers = [int(match[2]) for match in matches if match]
    return numbers, [int(match[2]) for match in matches if match and match[1] and match[3]]


def test_the_parser_of_ranks_in_a_text() -> None:
    assert parse_ranks("dp=2\n  sp=0  sp=1\n dp=0 [3] 4\n ... 5") == ([3, 4, 5], [3])


@law
@given(layouts(with_ranks=True, max_ranks=200), st.integers(1, 200), st.data())
def test_law_12_a_picture_shows_each_rank_once_and_fits(
    layout: Layout, width: int, data: st.DataObject
) -> None:
    mark = data.draw(st.none() | ranks(layout))
    lengths = st.just(0) | st.integers(0, 100)
    names = tuple(axis + "x" * data.draw(lengths) for axis in layout.axes)
    assume(len({*names}) == len(names))
    text = draw_grid(names, layout.grid, mark=mark, width=width)
    shown, marked = parse_ranks(text)
    assert shown == [int(rank) for rank in layout.ranks]  # in row-major order
    assert marked == ([] if mark is None else [mark])
    assert max(map(len, text.splitlines())) <= max(width, 40)
    assert not any(line != line.rstrip() or not line for line in text.splitlines())


@law
@given(
    st.sampled_from(
        [(5000,), (2, 3000), (3000, 2), (1, 9000, 1), (70, 70), (9, 9, 9, 9), (17,) * 3]
    ),
    st.integers(0, 4096),
    st.integers(1, 200),
)
def test_law_12_a_large_picture_shows_no_rank_twice_and_the_mark(
    shape: tuple[int, ...], mark: int, width: int
) -> None:
    axes = ("a", "b", "c", "d")[: len(shape)]
    grid = np.arange(math.prod(shape)).reshape(shape)
    text = draw_grid(axes, grid, mark=mark, width=width)
    shown, marked = parse_ranks(text)
    assert shown == sorted(set(shown))
    assert {0, mark, grid.size - 1} <= set(shown)
    assert marked == [mark]
    assert "..." in text.split()
    assert max(map(len, text.splitlines())) <= max(width, 40)
