"""How large cells are, and what is written in them."""

from __future__ import annotations

import pytest
from meshkit.core.draw.svg_layout import (
    CHARACTER_WIDTH,
    MAX_LABELED,
    MAX_NUMBERED,
    Spacing,
    cell_style,
)

AXES = [("dp", 8), ("tp", 16)]


def test_three_sizes() -> None:
    small, middle, large = (
        cell_style(AXES, n, 16_383) for n in (MAX_NUMBERED + 1, MAX_LABELED + 1, MAX_LABELED)
    )
    assert (large.number, large.label, middle.number, middle.label) == (15, 11, 10, 0)
    assert (small.number, small.label) == (0, 0)
    assert small.width < middle.width < large.width
    assert small.height < middle.height < large.height
    assert cell_style(AXES, MAX_LABELED + 1, 9) == cell_style(AXES, MAX_NUMBERED, 9)
    assert cell_style(AXES, 1, 9) == cell_style(AXES, MAX_LABELED, 9)


@pytest.mark.parametrize("num_ranks", [MAX_LABELED, MAX_NUMBERED, MAX_NUMBERED + 1])
@pytest.mark.parametrize("bands", [0, 1, 2, 6, 14])
def test_bands_fit_their_cell_and_numbers_stand_above(num_ranks: int, bands: int) -> None:
    cells = cell_style([(f"a{i}", 2) for i in range(bands)], num_ranks, 9)
    assert cells.top + bands * cells.band <= cells.height
    assert cells.number <= cells.top
    assert cells.label <= cells.band
    assert cells.height > 0


@pytest.mark.parametrize("largest", [0, 7, 2047, 10**12, 2**62])
@pytest.mark.parametrize("num_ranks", [MAX_LABELED, MAX_NUMBERED])
def test_the_longest_number_fits(largest: int, num_ranks: int) -> None:
    cells = cell_style(AXES, num_ranks, largest)
    assert len(str(largest)) * cells.number * CHARACTER_WIDTH <= cells.width


@pytest.mark.parametrize("axis", ["d", "tp", "replicate", "an_axis_of_many_letters"])
def test_a_label_fits_and_keeps_its_number(axis: str) -> None:
    cells = cell_style([(axis, 128)], MAX_LABELED, 127)
    for index in (0, 127):
        label = cells.cut(f"{axis}={index}")
        assert len(label) * cells.label * CHARACTER_WIDTH <= cells.width - 2 * cells.inset
        assert label.endswith(f"={index}")
        assert label in (f"{axis}={index}", f"~{axis[-len(label) + len(str(index)) + 2 :]}={index}")
        assert (label[0] == "~") == (axis == "an_axis_of_many_letters")


def test_the_name_of_a_node_as_far_as_it_fits() -> None:
    cells = cell_style(AXES, MAX_NUMBERED + 1, 9)
    assert [cells.prefix(7, width) for width in (60, 20, 5)] == ["node ", "", None]
    assert cells.prefix(10**9, 60) is None or cells.prefix(10**9, 60) == ""


def test_the_room_of_a_cell() -> None:
    cells = cell_style(AXES, MAX_LABELED, 9)
    bare = Spacing(cells.width, cells.height, cells.gap, cells.pad, 0, 16)
    assert cells.room(named=False) == bare
    assert cells.room(named=True).head == cells.name + 2
