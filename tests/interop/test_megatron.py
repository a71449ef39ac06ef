"""Megatron-core and meshkit: equal rank tables and process groups, and its layers on a mesh."""

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
EXAMPLE = Path(__file__).parents[2] / "examples" / "with_megatron.py"
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
    """Turn warnings into errors, except those of Megatron's own imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        warnings.filterwarnings("ignore", module=r"megatron\.core\.")  # about Apex and others
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
    options: Any = {"config": config, "init_method": torch.nn.init.zeros_, "bias": False}
    column = ColumnParallelLinear(8, 16, gather_output=False, tp_group=tp, **options)
    row = RowParallelLinear(
        16, 8, input_is_parallel=True, skip_bias_add=False, tp_group=tp, **options
    )
    with torch.no_grad():
        column.weight.copy_(up.chunk(tp.size(), 0)[tp.rank()])
        row.weight.copy_(down.chunk(tp.size(), 1)[tp.rank()])
    y = row(torch.relu(column(x)[0]))[0]
    y.square().sum().backward()
    return {"y": y.detach(), "x": x.grad, "up": column.weight.grad, "down": row.weight.grad}


def megatrons_tables(cases: list[Case]) -> list[tuple[dict[str, Table], dict[str, Table]]]:
    """Return Megatron's tables of the dense layers and of the experts for each case."""
    with strict():
        from megatron.core.parallel_state import RankGenerator

        tables = []
        for world, sizes, order in cases:
            tp, pp, cp, ep = (sizes.get(axis, 1) for axis in ("tp", "pp", "cp", "ep"))
            etp = sizes.get("etp", tp)
            dp, edp = world // (tp * pp * cp), world // (etp * ep * pp)
            dense = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
            experts = RankGenerator(tp=etp, ep=ep, dp=edp, pp=pp, cp=1, order=order)
            tables.append(
                (
                    {token: dense.get_ranks(token) for token in DENSE_TOKENS},
                    {token: experts.get_ranks(token) for token in EXPERT_TOKENS},
                )
            )
        return tables


Ramp = tuple[int, int, int, int]  # start, increment, samples, global batch


def ramps(cases: list[Ramp], consumed: list[int]) -> list[list[int]]:
    """Return Megatron's global batch of each ramp after each number of consumed samples."""
    with strict():
        from megatron.core.num_microbatches_calculator import (
            RampupBatchsizeNumMicroBatchesCalculator,
        )

        batches: list[list[int]] = []
        for start, increment, samples, total in cases:
            ramp = RampupBatchsizeNumMicroBatchesCalculator(
                total, 2, 2, False, 0, start, increment, samples
            )
            batches.append([])
            for count in consumed:
                ramp.update(count, True)
                batches[-1].append(ramp.get_current_global_batch_size())
        return batches


def tables_and_ramps(cases: list[Case], ramped: list[Ramp], consumed: list[int]) -> tuple[Any, Any]:
    """Return both on one rank."""
    return megatrons_tables(cases), ramps(ramped, consumed)


@pytest.fixture(scope="module")
def expected() -> tuple[Any, Any]:
    """Return Megatron's tables and ramps."""
    (results,) = meshkit.spawn(tables_and_ramps, 1, (CASES, RAMPS, CONSUMED), timeout=200)
    return results


@needs_megatron
def test_its_rank_tables_are_groups_of_the_layouts(expected: tuple[Any, Any]) -> None:
    tables, _ = expected
    for (world, sizes, order), theirs in zip(CASES, tables, strict=True):
        for layout, table in zip(
            megatron.layouts(world, **sizes, order=order), theirs, strict=True
        ):
            for token, rows in table.items():
                axes = [axis for axis in layout.axes if axis in token.split("-")]
                assert sorted(layout.groups(*axes).tolist()) == sorted(rows), (order, token)


@needs_megatron
def test_a_ramp_of_the_global_batch_is_megatrons(expected: tuple[Any, Any]) -> None:
    _, theirs = expected
    for (start, increment, samples, total), sizes in zip(RAMPS, theirs, strict=True):
        plan = BatchPlan.solve(dp=2, global_batch=total, micro_batch=2)
        ramp = BatchSchedule.ramp_up(plan, start=start, increment=increment, samples=samples)
        assert [ramp.at(count).global_batch for count in CONSUMED] == sizes


# sizes and order at 8 ranks, whether the experts are a view, the number of groups of a rank
COMPARED = [
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


def megatrons_groups(sizes: dict[str, int], order: str) -> Ranks:
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
        ranks = ranks_of(ProcessGroupCollection.use_mpu_process_groups())
        parallel_state.destroy_model_parallel()
        return ranks


def expert_view(mesh: meshkit.Mesh, experts: meshkit.Layout) -> meshkit.Mesh:
    return mesh.view(experts.sizes, order=experts.axes, groups=megatron.groups(experts))


def dense_mesh(dense: meshkit.Layout) -> meshkit.Mesh:
    return meshkit.build_mesh(dense.sizes, order=dense.axes, groups=megatron.groups(dense))


def ends_mesh(dense: meshkit.Layout) -> meshkit.Mesh:
    e = megatron.ends(dense)
    return meshkit.build_mesh(e.sizes, order=e.axes, ranks=e.ranks)


def meshkits_groups(sizes: dict[str, int], order: str, split: bool) -> tuple[Ranks, int, int]:
    """Return meshkit's groups, with a view of the experts if they are split."""
    dense, experts = megatron.layouts(dist.get_world_size(), **sizes, order=order)
    with contextlib.ExitStack() as stack:
        mesh = stack.enter_context(dense_mesh(dense))
        view = stack.enter_context(expert_view(mesh, experts)) if split else None
        tail = stack.enter_context(ends_mesh(dense)) if dense.sizes["pp"] > 2 else None
        before = len(dist.distributed_c10d._world.pg_map)
        with strict():
            collection = megatron.process_groups(mesh, view, ends=tail)
        created = len(dist.distributed_c10d._world.pg_map) - before
        return ranks_of(collection), created, mesh.groups_report().communicators


def compare_groups(
    cases: list[tuple[dict[str, int], str, bool]],
) -> list[tuple[Ranks, Ranks, int, int]]:
    """Return the ranks of each field from Megatron and from meshkit for each case.

    Also return the number of groups that process_groups created, and that this rank holds.
    """
    meshkit.init(timeout=120)
    return [
        (megatrons_groups(sizes, order), *meshkits_groups(sizes, order, split))
        for sizes, order, split in cases
    ]


def error_text(*meshes: meshkit.Mesh, **more: meshkit.Mesh) -> str:
    try:
        with strict():
            megatron.process_groups(*meshes, **more)
    except meshkit.MeshkitError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def invalid_meshes() -> list[str]:
    """Return the errors for meshes that Megatron cannot use."""
    errors = []
    for sizes, more in (
        ({"dp": 4, "ep": 2}, {}),
        ({"dp": 4, "tp": 2}, {}),
        ({"pp": 2, "dp": 2, "cp": 1, "tp": 2}, {"groups": ["pp tp"]}),
    ):
        with meshkit.build_mesh(sizes, **more) as mesh:
            errors.append(error_text(mesh))
    dense, _ = megatron.layouts(8, pp=4)
    with dense_mesh(dense) as mesh:
        with strict():
            errors.append(str(sorted(vars(megatron.process_groups(mesh)))))
        with mesh.view(dp=2, pp=4, ep=1, order="dp pp ep") as experts:
            errors.append(error_text(mesh, experts))
        with meshkit.build_mesh(pp=2, dp=2, ranks=range(4)) as ends:
            errors.append(error_text(mesh, ends=ends))
    return errors


def groups_and_errors(cases: list[tuple[dict[str, int], str, bool]]) -> tuple[Any, list[str]]:
    """Return both from one job, because the import of Megatron takes most of its time."""
    return compare_groups(cases), invalid_meshes()


@pytest.fixture(scope="module")
def eight() -> list[tuple[Any, list[str]]]:
    """Return the results of eight ranks."""
    cases = [case[:3] for case in COMPARED]
    return meshkit.spawn(groups_and_errors, 8, (cases,), timeout=300)


@needs_megatron
def test_every_field_holds_the_ranks_that_megatron_gives_it(
    eight: list[tuple[Any, list[str]]],
) -> None:
    for results, _ in eight:
        for (*_, held), (theirs, ours, created, holds) in zip(COMPARED, results, strict=True):
            assert len(theirs) == 20
            assert ours == theirs
            assert created == 0
            assert holds == held


def weights() -> list[torch.Tensor]:
    """Return an input and the whole weights of two layers."""
    generator = torch.Generator().manual_seed(0)
    shapes = (3, 8), (16, 8), (8, 16)
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]


def reference(
    tp: dist.ProcessGroup, x: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> dict[str, torch.Tensor]:
    y = torch.relu(x @ up.T) @ down.T
    y.square().sum().backward()
    rank, size = tp.rank(), tp.size()
    grads = {"up": up.grad.chunk(size, 0)[rank], "down": down.grad.chunk(size, 1)[rank]}
    return {"y": y.detach(), "x": x.grad, **grads}


def linear() -> dict[str, float]:
    """Return the largest relative differences between parallel layers and plain torch."""
    with strict(), meshkit.build_mesh(dp=2, cp=1, tp=2, groups=["dp cp tp", "cp tp"]) as mesh:
        tp = megatron.process_groups(mesh).tp
        split, whole = layers(tp, *weights()), reference(tp, *weights())
        return {n: float((split[n] - whole[n]).abs().max() / whole[n].abs().max()) for n in whole}


@needs_megatron
def test_its_parallel_layers_compute_what_whole_ones_do() -> None:
    for differences in meshkit.spawn(linear, 4, timeout=200):
        assert len(differences) == 4
        assert max(differences.values()) < 1e-6


@needs_megatron
def test_invalid_meshes_are_errors_on_every_rank(
    eight: list[tuple[Any, list[str]]],
) -> None:
    by_rank = [errors for _, errors in eight]
    assert by_rank == [by_rank[0]] * 8
    other, absent, unbuilt, fields, stages, ends = by_rank[0]
    call = "SpecError: process_groups(dense"
    assert other.startswith(f"{call}): dense is Layout(dp=4, ep=2), and Megatron has no axis ep")
    assert absent.startswith(f"{call}): Megatron needs a group over pp, and Layout(dp=4, tp=2)")
    assert unbuilt.startswith(f"{call}): the mesh has no group over dp cp tp.")
    assert "'pos_embd'" in fields
    assert "'embd'" not in fields  # four stages, without ends
    assert "[0, 1, 2, 3] for experts, [0, 2, 4, 6] for dense layers." in stages
    assert "The ends of the first pipeline are [0, 6]." in ends


@needs_megatron
def test_the_example_trains() -> None:
    output, *others = meshkit.spawn(
        run_example, 4, (str(EXAMPLE), {"CUDA_VISIBLE_DEVICES": ""}), timeout=200
    )
    assert re.fullmatch(
        r"ProcessGroupCollection\(tp\(2\), pp\(1\).*\nloss \S+ -> \S+\n", output, re.DOTALL
    )
    assert others == [""] * 3


def test_different_stages_are_an_error_as_in_megatron() -> None:
    with pytest.raises(SpecError, match=r"\[0, 2\] for dense layers, \[0, 1\] for experts"):
        megatron.layouts(16, tp=2, pp=2, cp=2, ep=4, etp=1, order="tp-pp-dp-cp-ep")
    with pytest.raises(SpecError, match="cp has a size but is not in order"):
        megatron.layouts(16, cp=2, order="tp-dp-pp")


def test_the_groups_of_dense_layers_and_experts() -> None:
    dense, experts = megatron.layouts(16, tp=2, pp=2, cp=2, ep=4, etp=1)
    assert megatron.groups(experts) == ["ep tp", "pp ep tp"]
    assert megatron.groups(dense) == [
        *("pp tp", "dp cp", "cp tp", "dp cp tp"),
        *("ep tp", "pp ep tp"),  # because ep is 1, these equal tp and pp tp
    ]
    assert megatron.ends(Layout(dp=2, pp=3, tp=1)).groups("pp").tolist() == [[0, 2], [3, 5]]


def test_experts_over_other_ranks_are_an_error_even_with_an_equal_first_pipeline() -> None:
    dense = Layout(pp=2, dp=4)
    megatron._check_same_stages(dense, Layout(pp=2, ep=4))
    with pytest.raises(SpecError, match="have other stages than the dense layers"):
        megatron._check_same_stages(dense, Layout(pp=2, ep=4, ranks=[0, 2, 1, 3, 4, 6, 5, 7]))
