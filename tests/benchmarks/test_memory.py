"""The memory of the cost model beside that of torch: each part within a tenth, and in the table."""

from __future__ import annotations

import re

import pytest
import torch

from benchmarks import memory
from benchmarks.memory import CASES, PARTS, TABLE, LiveBytes, measure, predict
from tests.pages import ROOT


def params() -> list[object]:
    """Return the cases. The quick ones have each way to recompute and each dtype of one decoder."""
    quick = [CASES[0].shape, "fp32 none", "bf16 cheap", "fp32 full"]
    slow = [
        [pytest.mark.slow] * (case.shape != quick[0] or " ".join(case[1:3]) not in quick)
        for case in CASES
    ]
    names = (" ".join(case[:3]) for case in CASES)
    triples = zip(CASES, names, slow, strict=True)
    return [pytest.param(case, id=name, marks=marks) for case, name, marks in triples]


@pytest.mark.parametrize("case", params())
def test_each_part_is_within_a_tenth_of_what_torch_allocates(case: memory.Case) -> None:
    measured, predicted = measure(case), predict(case)
    assert predicted == {part: pytest.approx(measured[part], rel=0.1) for part in PARTS}


@pytest.mark.slow
def test_the_file_has_the_measured_table() -> None:
    """The bytes of another version of torch may differ in the last digit."""
    number = re.compile(r"[-+]?[0-9.]+")
    table, shown = memory.table(), TABLE.read_text()
    assert number.sub("", table) == number.sub("", shown)
    assert [float(n) for n in number.findall(table) if n not in "-+."] == pytest.approx(
        [float(n) for n in number.findall(shown) if n not in "-+."], rel=0.05, abs=1
    )


def test_the_page_has_the_largest_errors_of_the_table() -> None:
    rows = [line.split(" | ")[2:] for line in TABLE.read_text().splitlines()[2:]]
    errors = [[abs(float(cell.rpartition(", ")[2].strip("% |"))) for cell in row] for row in rows]
    states, activations = (
        max(max(row[part]) for row in errors) for part in (slice(3), slice(3, 6))
    )
    page = (ROOT / "docs" / "evidence" / "cost-model.md").read_text()
    assert f"at most {states} % for the states and {activations} % for activations" in page


def test_bytes_are_those_of_storages_that_are_alive() -> None:
    with LiveBytes() as counted:
        first = torch.zeros(1000)
        view = first[:10]
        second = first + 1
        assert counted.live == 8000
        del first, second
        assert counted.live == 4000  # the view keeps its storage
        del view
    assert (counted.live, counted.peak) == (0, 8000)
