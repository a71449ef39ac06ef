"""Megatron-core beside meshkit: its rank tables, its process groups, its layers."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit import BatchPlan, BatchSchedule, Layout, SpecError
from meshkit.interop import megatron
from tests.interop.run_example import run_example

LIBRARY = ["megatron.core.parallel_state", "megatron.core.process_groups_config"]
LIBRARY += ["megatron.core.tensor_parallel", "megatron.core.transformer"]
WITH = Path(__file__).parents[2] / "examples" / "with_megatron.py"
needs_megatron = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None,
    reason="megatron-core is not installed: pip install -e '.[interop]'",
)
Case = tuple[int, dict[str, int], str]  # world size, sizes, order
CASES: list[Case] = [
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
Table = list[list[int]]
DENSE_TOKENS = ("tp", "cp", "dp", "pp", "dp-cp", "tp-pp", "tp-cp", "tp-dp", "tp-dp-cp")
EXPERT_TOKENS = ("tp", "ep", "dp", "pp", "tp-ep", "tp-ep-pp")


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Warnings are errors, but for those of Megatron's own imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        warnings.filterwarnings("ignore", module=r"megatron\.core\.")  # of Apex and the like
        yield


def layers(
    tp: dist.ProcessGroup, x: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> dict[str, torch.Tensor]:
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=2,
        use_cpu_initialization=True,
        tensor_model_parallel_size=tp.size(),
        gradient_accumulation_fusion=False,
    )
    given: Any = {"config": config, "init_method": torch.nn.init.zeros_, "bias": False}
    column = ColumnParallelLinear(8, 16, gather_output=False, tp_group=tp, **given)
    row = RowParallelLinear(
        16, 8, input_is_parallel=True, skip_bias_add=False, tp_group=tp, **given
    )
    with torch.no_grad():
        column.weight.copy_(up.chunk(tp.size(), 0)[tp.rank()])
        row.weight.copy_(down.chunk(tp.size(), 1)[tp.rank()])
    y = row(torch.relu(column(x)[0]))[0]
    y.square().sum().backward()
    return {"y": y.detach(), "x": x.grad, "up": column.weight.grad, "down": row.weight.grad}


def megatrons_tables(cases: list[Case]) -> list[tuple[dict[str, Table], dict[str, Table]]]:
    """For each case the tables of the dense layers and of the experts, as
    ``initialize_model_parallel`` makes its generators."""
    with strict():
        from megatron.core.parallel_state import RankGenerator

        found = []
        for world, sizes, order in cases:
            tp, pp, cp, ep = (sizes.get(axis, 1) for axis in ("tp", "pp", "cp", "ep"))
            etp = sizes.get("etp", tp)
            dp, edp = world // (tp * pp * cp), world // (etp * ep * pp)
            dense = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
            experts = RankGenerator(tp=etp, ep=ep, dp=edp, pp=pp, cp=1, order=order)
            found.append(
                (
                    {token: dense.get_ranks(token) for token in DENSE_TOKENS},
                    {token: experts.get_ranks(token) for token in EXPERT_TOKENS},
                )
            )
        return found


Ramp = tuple[int, int, int, int]  # start, increment, samples, global batch


def ramps(cases: list[Ramp], consumed: list[int]) -> list[list[int]]:
    """For each ramp Megatron's global batch after so many consumed samples."""
    with strict():
        from megatron.core.num_microbatches_calculator import (
            RampupBatchsizeNumMicroBatchesCalculator,
        )

        found = []
        for start, increment, samples, total in cases:
            ramp = RampupBatchsizeNumMicroBatchesCalculator(
                total, 2, 2, False, 0, start, increment, samples
            )
            found.append([])
            for count in consumed:
                ramp.update(count, True)
                found[-1].append(ramp.get_current_global_batch_size())
        return found


def of_one(cases: list[Case], ramped: list[Ramp], consumed: list[int]) -> tuple[Any, Any]:
    """What is asked of one rank."""
    return megatrons_tables(cases), ramps(ramped, consumed)


@pytest.fixture(scope="module")
def one() -> tuple[Any, Any]:
    """Megatron's tables and ramps, as one rank tells them."""
    (told,) = meshkit.spawn(of_one, 1, (CASES, RAMPS, CONSUMED), timeout=200)
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
Ranks = dict[str, list[int] | None]


def ranks_of(collection: Any) -> dict[str, list[int] | None]:
    return {
        name: None if group is None else dist.get_process_group_ranks(group)
        for name, group in sorted(vars(collection).items())
    }


def oracle(sizes: dict[str, int], order: str) -> Ranks:
    with strict():
        from megatron.core import parallel_state
        from megatron.core.process_groups_config import ProcessGroupCollection

        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=sizes.get("tp", 1),
            pipeline_model_parallel_size=sizes.get("pp", 1),
            context_parallel_size=sizes.get("cp", 1),
            expert_model_parallel_size=sizes.get("ep", 1),
            expert_tensor_parallel_size=sizes.get("etp"),
            order=order,
            create_gloo_process_groups=False,
        )
        found = ranks_of(ProcessGroupCollection.use_mpu_process_groups())
        parallel_state.destroy_model_parallel()
        return found


def viewed(mesh: meshkit.Mesh, experts: meshkit.Layout) -> meshkit.Mesh:
    return mesh.view(experts.sizes, order=experts.axes, groups=megatron.groups(experts))


def built(dense: meshkit.Layout) -> meshkit.Mesh:
    return meshkit.build_mesh(dense.sizes, order=dense.axes, groups=megatron.groups(dense))


def ending(dense: meshkit.Layout) -> meshkit.Mesh:
    e = megatron.ends(dense)
    return meshkit.build_mesh(e.sizes, order=e.axes, ranks=e.ranks)


def ours(sizes: dict[str, int], order: str, split: bool) -> tuple[Ranks, int, int]:
    """As meshkit makes them, with a view of the experts where they are split."""
    dense, experts = megatron.layouts(dist.get_world_size(), **sizes, order=order)
    with contextlib.ExitStack() as stack:
        mesh = stack.enter_context(built(dense))
        view = stack.enter_context(viewed(mesh, experts)) if split else None
        tail = stack.enter_context(ending(dense)) if dense.sizes["pp"] > 2 else None
        before = len(dist.distributed_c10d._world.pg_map)
        with strict():
            found = megatron.process_groups(mesh, view, ends=tail)
        made = len(dist.distributed_c10d._world.pg_map) - before
        return ranks_of(found), made, mesh.groups_report().communicators


def beside(cases: list[tuple[dict[str, int], str, bool]]) -> list[tuple[Ranks, Ranks, int, int]]:
    """For each case field to ranks, as Megatron makes them and as meshkit does; how many groups
    process_groups made, and how many this rank holds."""
    meshkit.init(timeout=120)
    return [(oracle(sizes, order), *ours(sizes, order, split)) for sizes, order, split in cases]


def told(*meshes: meshkit.Mesh, **more: meshkit.Mesh) -> str:
    try:
        with strict():
            megatron.process_groups(*meshes, **more)
    except meshkit.MeshkitError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refused() -> list[str]:
    """What is said of meshes that cannot be Megatron's."""
    found = []
    for sizes, more in (
        ({"dp": 4, "ep": 2}, {}),
        ({"dp": 4, "tp": 2}, {}),
        ({"pp": 2, "dp": 2, "cp": 1, "tp": 2}, {"groups": ["pp tp"]}),
    ):
        with meshkit.build_mesh(sizes, **more) as mesh:
            found.append(told(mesh))
    dense, _ = megatron.layouts(8, pp=4)
    with built(dense) as mesh:
        with strict():
            found.append(str(sorted(vars(megatron.process_groups(mesh)))))
        with mesh.view(dp=2, pp=4, ep=1, order="dp pp ep") as experts:
            found.append(told(mesh, experts))
        with meshkit.build_mesh(pp=2, dp=2, ranks=range(4)) as ends:
            found.append(told(mesh, ends=ends))
    return found


def of_eight(cases: list[tuple[dict[str, int], str, bool]]) -> tuple[Any, list[str]]:
    """What is asked of eight ranks, in one job: the import of Megatron takes longest."""
    return beside(cases), refused()


@pytest.fixture(scope="module")
def eight() -> list[tuple[Any, list[str]]]:
    """What eight ranks tell."""
    cases = [case[:3] for case in BESIDE]
    return meshkit.spawn(of_eight, 8, (cases,), timeout=300)


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


def weights() -> list[torch.Tensor]:
    """An input, and the weights of two layers, whole."""
    generator = torch.Generator().manual_seed(0)
    shapes = (3, 8), (16, 8), (8, 16)
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]


def reference(
    tp: dist.ProcessGroup, x: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> dict[str, torch.Tensor]:
    y = torch.relu(x @ up.T) @ down.T
    y.square().sum().backward()
    mine, of = tp.rank(), tp.size()
    grads = {"up": up.grad.chunk(of, 0)[mine], "down": down.grad.chunk(of, 1)[mine]}
    return {"y": y.detach(), "x": x.grad, **grads}


def linear() -> dict[str, float]:
    """Column and row parallel layers over the collection's tp beside plain torch: the largest
    differences, relative to the largest number."""
    with strict(), meshkit.build_mesh(dp=2, cp=1, tp=2, groups=["dp cp tp", "cp tp"]) as mesh:
        tp = megatron.process_groups(mesh).tp
        mine, whole = layers(tp, *weights()), reference(tp, *weights())
        return {n: float((mine[n] - whole[n]).abs().max() / whole[n].abs().max()) for n in whole}


@needs_megatron
def test_its_parallel_layers_compute_what_whole_ones_do() -> None:
    for differences in meshkit.spawn(linear, 4, timeout=200):
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
    assert unbuilt.startswith(
        "SpecError: mesh.group('cp', 'tp'): the mesh has no group over cp tp."
    )
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
        run_example, 4, (str(WITH), {"CUDA_VISIBLE_DEVICES": ""}), timeout=200
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
