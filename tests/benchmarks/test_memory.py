"""The memory of the cost model beside that of torch: each part within a tenth, and on the page."""

from __future__ import annotations

import re

import pytest
import torch

from benchmarks import memory
from benchmarks.memory import CASES, PAGE, PARTS, LiveBytes, measure, predict


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
def test_the_page_has_the_measured_table() -> None:
    """The bytes of another version of torch may differ in the last digit."""
    number = re.compile(r"[-+]?[0-9.]+")
    table = memory.section()
    shown = PAGE.read_text().partition(memory.BEGIN)[2].partition(memory.END)[0]
    assert number.sub("", table) == number.sub("", shown)
    assert [float(n) for n in number.findall(table) if n not in "-+."] == pytest.approx(
        [float(n) for n in number.findall(shown) if n not in "-+."], rel=0.05, abs=1
    )


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
