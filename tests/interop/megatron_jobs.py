"""What the ranks of test_megatron run: Megatron-core itself, and meshkit beside it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.interop import megatron

Table = list[list[int]]
Case = tuple[int, dict[str, int], str]  # world size, sizes, order

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


Ranks = dict[str, list[int] | None]


def beside(cases: list[tuple[dict[str, int], str, bool]]) -> list[tuple[Ranks, Ranks, int, int]]:
    """For each case field to ranks, as Megatron makes them and as meshkit does; how many groups
    process_groups made, and how many this rank holds."""
    meshkit.init(timeout=120)
    return [(oracle(sizes, order), *ours(sizes, order, split)) for sizes, order, split in cases]


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


def viewed(mesh: meshkit.Mesh, experts: meshkit.Layout) -> meshkit.Mesh:
    return mesh.view(experts.sizes, order=experts.axes, groups=megatron.groups(experts))


def built(dense: meshkit.Layout) -> meshkit.Mesh:
    return meshkit.build_mesh(dense.sizes, order=dense.axes, groups=megatron.groups(dense))


def ending(dense: meshkit.Layout) -> meshkit.Mesh:
    e = megatron.ends(dense)
    return meshkit.build_mesh(e.sizes, order=e.axes, ranks=e.ranks)


def ranks_of(collection: Any) -> dict[str, list[int] | None]:
    return {
        name: None if group is None else dist.get_process_group_ranks(group)
        for name, group in sorted(vars(collection).items())
    }


def weights() -> list[torch.Tensor]:
    """An input, and the weights of two layers, whole."""
    generator = torch.Generator().manual_seed(0)
    shapes = (3, 8), (16, 8), (8, 16)
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]


def linear() -> dict[str, float]:
    """Column and row parallel layers over the collection's tp beside plain torch: the largest
    differences, relative to the largest number."""
    with strict(), meshkit.build_mesh(dp=2, cp=1, tp=2, groups=["dp cp tp", "cp tp"]) as mesh:
        tp = megatron.process_groups(mesh).tp
        mine, whole = layers(tp, *weights()), reference(tp, *weights())
        return {n: float((mine[n] - whole[n]).abs().max() / whole[n].abs().max()) for n in whole}


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


def reference(
    tp: dist.ProcessGroup, x: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> dict[str, torch.Tensor]:
    y = torch.relu(x @ up.T) @ down.T
    y.square().sum().backward()
    mine, of = tp.rank(), tp.size()
    grads = {"up": up.grad.chunk(of, 0)[mine], "down": down.grad.chunk(of, 1)[mine]}
    return {"y": y.detach(), "x": x.grad, **grads}


def of_eight(cases: list[tuple[dict[str, int], str, bool]]) -> tuple[Any, list[str]]:
    """What is asked of eight ranks, in one job: the import of Megatron takes longest."""
    return beside(cases), refused()


def of_one(cases: list[Case], ramped: list[Ramp], consumed: list[int]) -> tuple[Any, Any]:
    """What is asked of one rank."""
    return megatrons_tables(cases), ramps(ramped, consumed)


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


def told(*meshes: meshkit.Mesh, **more: meshkit.Mesh) -> str:
    try:
        with strict():
            megatron.process_groups(*meshes, **more)
    except meshkit.MeshkitError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
