"""Colours that tell axes and indices apart, in grey and for the colour-blind too."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.core.draw.colors import (
    HUES,
    SHADES,
    Rgb,
    axis_hues,
    hue_numbers,
    luminance,
    shade,
    text_color,
    to_hex,
)
from meshkit.core.grid.axis_names import STANDARD

quick = settings(deadline=None, max_examples=60, database=None)

# Linear RGB as dichromats see it, by the matrices of Machado, Oliveira and Fernandes, "A
# Physiologically-based Model for Simulation of Color Vision Deficiency" (2009), severity 1.0.
SEEN_BY = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413]],
}
BLUE_OF = {"protan": [-0.003882, -0.048116, 1.051998], "deutan": [-0.011820, 0.042940, 0.968881]}


def seen(colour: Rgb, kind: str) -> np.ndarray:
    matrix = np.array([*SEEN_BY[kind], BLUE_OF[kind]])
    linear = (np.array(colour) / 255) ** 2.2
    return np.asarray(np.clip(matrix @ linear, 0, 1) ** (1 / 2.2) * 255)


@pytest.mark.parametrize("kind", SEEN_BY)
def test_hues_differ_for_the_colour_blind(kind: str) -> None:
    far = [
        float(np.abs(seen(one, kind) - seen(other, kind)).max())
        for one, other in itertools.combinations(HUES, 2)
    ]
    assert min(far) > 35


def test_that_test_can_fail() -> None:
    """A red and a green that deutans confuse."""
    red, green = (180, 90, 40), (112, 120, 40)
    assert np.abs(seen(red, "deutan") - seen(green, "deutan")).max() < 35


@quick
@given(st.integers(0, 9), st.integers(2, 200))
def test_shades_run_from_light_to_dark(axis: int, size: int) -> None:
    bright = [luminance(shade(axis, index, size)) for index in range(size)]
    assert bright == sorted(bright, reverse=True)
    assert bright[0] > 0.45
    assert bright[-1] < 0.25
    assert len({shade(axis, index, size) for index in range(size)}) == min(size, SHADES)


def test_the_middle_of_an_odd_axis_is_the_hue() -> None:
    assert [shade(axis, 1, 3) for axis in range(7)] == [*HUES[:6], HUES[0]]


@quick
@given(st.integers(0, 5), st.integers(2, 40), st.data())
def test_ink_is_read_on_every_shade(axis: int, size: int, data: st.DataObject) -> None:
    """Contrast as WCAG 2.1 has it; 4.5 is its level AA."""
    colour = shade(axis, data.draw(st.integers(0, size - 1)), size)
    on = {"#000": 0.0, "#fff": 1.0}[text_color(colour)]
    low, high = sorted((luminance(colour), on))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_luminance_at_its_ends_and_where_ink_changes() -> None:
    assert luminance((0, 0, 0)) == 0
    assert luminance((255, 255, 255)) == pytest.approx(1)
    assert luminance((255, 0, 0)) == pytest.approx(0.2126)
    assert luminance((118, 118, 118)) == pytest.approx(0.1812, abs=1e-4)
    assert (text_color((117, 117, 117)), text_color((118, 118, 118))) == ("#fff", "#000")


def test_written_has_six_digits() -> None:
    assert to_hex((1, 2, 255)) == "#0102ff"


def test_a_standard_axis_has_one_hue_in_every_picture_and_no_two_share_one() -> None:
    assert len({*axis_hues(STANDARD).values()}) == 6
    for axis in STANDARD:
        assert axis_hues([axis])[axis] == axis_hues(["rows", axis, "node"])[axis]
    assert len({*hue_numbers(["replicate", "shard", "node", "tp"]).values()}) == 4
