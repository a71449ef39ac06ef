"""Megatron-core beside meshkit: its rank tables, its process groups, its layers."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import meshkit
from meshkit import BatchPlan, BatchSchedule, Layout, SpecError
from meshkit.interop import megatron

from . import example_jobs as example
from . import megatron_jobs as jobs

LIBRARY = ["megatron.core.parallel_state", "megatron.core.process_groups_config"]
LIBRARY += ["megatron.core.tensor_parallel", "megatron.core.transformer"]
WITH = Path(__file__).parents[2] / "examples" / "with_megatron.py"
needs_megatron = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None,
    reason="megatron-core is not installed: pip install -e '.[interop]'",
)

CASES: list[jobs.Case] = [
    (16, {"tp": 2, "pp": 2, "cp": 2, "ep": 4, "etp": 1}, "tp-cp-ep-dp-pp"),
    (16, {"tp": 2, "pp": 2, "cp": 2, "ep": 4, "etp": 1}, "tp-cp-ep-pp-dp"),
    (16, {"tp": 2, "pp": 2, "cp": 2, "ep": 4, "etp": 1}, "cp-tp-dp-ep-pp"),
    (16, {"tp": 2, "pp": 2, "cp": 2, "ep": 2}, "tp-pp-dp-cp-ep"),
    (16, {"tp": 4, "pp": 2}, "tp-dp-pp"),
    (32, {"tp": 2, "pp": 4, "cp": 2, "ep": 2}, "tp-cp-ep-dp-pp"),
    (32, {"tp": 2, "pp": 2, "cp": 2, "ep": 8, "etp": 1}, "tp-ep-dp-cp-pp"),
    (32, {"tp": 2, "pp": 2, "cp": 4, "ep": 8, "etp": 1}, "tp-cp-ep-pp-dp"),
    (32, {"tp": 4, "pp": 2, "cp": 2, "ep": 4, "etp": 2}, "dp-cp-tp-ep-pp"),
]


RAMPS = [(4, 4, 100, 16), (8, 4, 1000, 32), (4, 8, 300, 28)]
CONSUMED = [*range(0, 1100, 7), 33, 34, 66, 67, 99, 100, 101, 299, 300, 10**6]


@pytest.fixture(scope="module")
def one() -> tuple[Any, Any]:
    """Megatron's tables and ramps, as one rank tells them."""
    (told,) = meshkit.spawn(jobs.of_one, 1, (CASES, RAMPS, CONSUMED), timeout=200)
    return told


@needs_megatron
def test_its_rank_tables_are_groups_of_the_layouts(one: tuple[Any, Any]) -> None:
    tables, _ = one
    for (world, sizes, order), theirs in zip(CASES, tables, strict=True):
        for layout, table in zip(
            megatron.layouts(world, **sizes, order=order), theirs, strict=True
        ):
            for token, rows in table.items():
                axes = [axis for axis in layout.axes if axis in token.split("-")]
                assert sorted(layout.groups(*axes).tolist()) == sorted(rows), (order, token)


@needs_megatron
def test_a_ramp_of_the_global_batch_is_megatrons(one: tuple[Any, Any]) -> None:
    _, theirs = one
    for (start, increment, samples, total), found in zip(RAMPS, theirs, strict=True):
        plan = BatchPlan.solve(dp=2, global_batch=total, micro_batch=2)
        ramp = BatchSchedule.ramp_up(plan, start=start, increment=increment, samples=samples)
        assert [ramp.at(count).global_batch for count in CONSUMED] == found


# sizes and order at 8 ranks, whether the experts are a view, and how many groups a rank holds
BESIDE = [
    ({"tp": 2, "pp": 2, "cp": 2, "ep": 2, "etp": 1}, "tp-cp-ep-dp-pp", True, 7),
    ({"tp": 2, "pp": 2, "ep": 2, "etp": 1}, "tp-ep-dp-cp-pp", True, 7),
    ({"tp": 2, "pp": 2, "ep": 1, "etp": 2}, "tp-cp-ep-pp-dp", True, 7),
    ({"tp": 2, "cp": 2}, "cp-tp-dp-ep-pp", True, 8),
    ({"pp": 4, "ep": 2}, "tp-cp-ep-dp-pp", True, 4),
    ({"tp": 2, "cp": 2}, "tp-cp-ep-dp-pp", False, 7),
    ({"tp": 2, "pp": 4}, "tp-cp-ep-dp-pp", False, 4),
]


@pytest.fixture(scope="module")
def eight() -> list[tuple[Any, list[str]]]:
    """What eight ranks tell."""
    cases = [case[:3] for case in BESIDE]
    return meshkit.spawn(jobs.of_eight, 8, (cases,), timeout=300)


@needs_megatron
def test_every_field_holds_the_ranks_that_megatron_gives_it(
    eight: list[tuple[Any, list[str]]],
) -> None:
    for found, _ in eight:
        for (*_, held), (theirs, ours, made, holds) in zip(BESIDE, found, strict=True):
            assert len(theirs) == 20
            assert ours == theirs
            assert made == 0
            assert holds == held


@needs_megatron
def test_its_parallel_layers_compute_what_whole_ones_do() -> None:
    for differences in meshkit.spawn(jobs.linear, 4, timeout=200):
        assert len(differences) == 4
        assert max(differences.values()) < 1e-6


@needs_megatron
def test_meshes_that_cannot_be_are_refused_on_every_rank(
    eight: list[tuple[Any, list[str]]],
) -> None:
    by_rank = [told for _, told in eight]
    assert by_rank == [by_rank[0]] * 8
    other, absent, unbuilt, fields, stages, ends = by_rank[0]
    assert other == (
        "SpecError: process_groups: dense is Layout(dp=4, ep=2); Megatron has no axis ep of size 2 "
        "here; it has pp dp cp tp.\n"
        "  Fix: ep=1, or the axis that it is to Megatron: layouts(...) has them."
    )
    assert absent == (
        "SpecError: process_groups: Megatron asks for a group over pp, and Layout(dp=4, tp=2) has "
        "no such axis, nor one of size 1 to stand for it.\n"
        "  Fix: give the mesh the axis pp=1."
    )
    assert unbuilt.startswith("SpecError: mesh.group('cp', 'tp'): no group over cp tp was built.")
    assert "'pos_embd'" in fields
    assert "'embd'" not in fields  # four stages, and nobody gave their ends
    assert stages == (
        "SpecError: process_groups: the experts, Layout(dp=2, pp=4, ep=1), have other stages than "
        "the dense layers, Layout(pp=4, dp=2, ep=1, cp=1, tp=1).\n"
        "  The first pipeline is [0, 1, 2, 3] of the experts, [0, 2, 4, 6] of the dense layers.\n"
        "  Fix: experts = dense.view(...), with the same pp, at the same place."
    )
    assert ends == (
        "SpecError: process_groups: Layout(pp=2, dp=2) are not the ends of "
        "Layout(pp=4, dp=2, ep=1, cp=1, tp=1).\n"
        "  The ends of the first pipeline are [0, 6].\n"
        "  Fix: e = ends(dense.layout); build_mesh(e.sizes, order=e.axes, ranks=e.ranks)."
    )


@needs_megatron
def test_the_example_trains() -> None:
    said, *others = meshkit.spawn(
        example.printed, 4, (str(WITH), {"CUDA_VISIBLE_DEVICES": ""}), timeout=200
    )
    assert re.fullmatch(
        r"ProcessGroupCollection\(tp\(2\), pp\(1\).*\nloss \S+ -> \S+\n", said, re.DOTALL
    )
    assert others == [""] * 3


def test_stages_that_differ_are_refused_as_megatron_does() -> None:
    with pytest.raises(SpecError) as caught:
        megatron.layouts(16, tp=2, pp=2, cp=2, ep=4, etp=1, order="tp-pp-dp-cp-ep")
    assert str(caught.value) == (
        "layouts(16, tp=2, pp=2, cp=2, ep=4, etp=1, order='tp-pp-dp-cp-ep'): the stages of dense "
        "layers and experts hold different ranks.\n"
        "  Rank 0 is in one pipeline with [2] by the dense layout, with [1] by that of the "
        "experts.\n"
        "  Fix: an order that ends with pp: "
        "layouts(16, tp=2, pp=2, cp=2, ep=4, etp=1, order='tp-cp-ep-dp-pp')."
    )


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SpecError, match="needs a multiple of 6 ranks, the world has 16"):
        megatron.layouts(16, tp=3, pp=2)
    with pytest.raises(SpecError, match="cp has a size but is not in order"):
        megatron.layouts(16, cp=2, order="tp-dp-pp")
    with pytest.raises(SpecError, match="xp is in order but has no size"):
        megatron.layouts(16, order="tp-xp-dp-pp")


def test_the_groups_of_the_experts_are_only_theirs() -> None:
    dense, experts = megatron.layouts(16, tp=2, pp=2, cp=2, ep=4, etp=1)
    assert megatron.groups(experts) == ["ep tp", "pp ep tp"]
    assert megatron.groups(dense) == [
        *("pp tp", "dp cp", "cp tp", "dp cp tp"),
        *("ep tp", "pp ep tp"),  # as ep is 1, these are those of tp and pp tp
    ]
    assert megatron.ends(Layout(dp=2, pp=3, tp=1)).groups("pp").tolist() == [[0, 2], [3, 5]]
