"""Figures of machines, and measured figures in their place."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from meshkit import SpecError
from meshkit.core.cost.machines import MACHINES, Machine


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_has_a_source_and_ordered_links(name: str) -> None:
    machine = MACHINES[name]
    assert "data sheet" in machine.source
    assert "NCCL" in machine.source
    assert machine.bandwidth_inter_node < machine.bandwidth_intra_node < machine.memory_bandwidth
    assert machine.latency_intra_node < machine.latency_inter_node


def test_measured_figures_replace_those_of_the_data_sheet() -> None:
    machine = MACHINES["h100"].with_measured({"bandwidth_intra_node": 370, "source": "a run"})
    expected = {**asdict(MACHINES["h100"]), "bandwidth_intra_node": 370, "source": "a run"}
    assert asdict(machine) == expected


@pytest.mark.parametrize("value", [0, -1.0, "50", True, None, float("nan")])
def test_a_figure_is_a_number_above_zero(value: object) -> None:
    with pytest.raises(SpecError) as caught:
        MACHINES["h100"].with_measured({"bandwidth_inter_node": value})
    assert caught.value.summary == f"bandwidth_inter_node is {value!r}."
    assert str(caught.value).startswith("machine.with_measured({'bandwidth_inter_node': ")
    with pytest.raises(SpecError, match=r"^memory is 0"):
        Machine(1, 0, 1, 1, 1)
