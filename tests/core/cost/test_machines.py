"""Figures of devices and wires, and those that were measured in their place."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from meshkit import SpecError
from meshkit.core.cost.machines import ATTAINED, MACHINES


@pytest.mark.parametrize("name", MACHINES)
def test_every_row_has_a_source_and_its_wires_are_in_order(name: str) -> None:
    links = MACHINES[name]
    assert "data sheet" in links.source
    assert "NCCL" in links.source
    assert links.across < links.inside < links.reads
    assert links.wait_inside < links.wait_across


def test_the_figures_of_an_h100_are_those_of_its_data_sheet() -> None:
    links = MACHINES["h100"]
    assert links.flops == ATTAINED * 989e12
    assert (links.memory, links.reads) == (80, 3350)
    assert (links.inside, links.across) == (900 / 2, 400 / 8)  # both ways; Gb/s


def test_what_was_measured_takes_the_place_of_what_was_printed() -> None:
    links = MACHINES["h100"].but({"inside": 370, "source": "a run"})
    assert asdict(links) == {**asdict(MACHINES["h100"]), "inside": 370, "source": "a run"}


@pytest.mark.parametrize("value", [0, -1.0, "50", True, None, float("nan")])
def test_a_figure_is_a_number_above_zero(value: object) -> None:
    with pytest.raises(SpecError, match=r"^Links\(across="):
        MACHINES["h100"].but({"across": value})
