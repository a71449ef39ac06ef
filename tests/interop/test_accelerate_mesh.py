"""accelerate's own builder of a DeviceMesh, as installed, on meshkit's groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset

import meshkit
from meshkit.testing import rehearse
from tests.pool import Pool, start_pool

pytest.importorskip("accelerate")

SIZES = {"dp_replicate_size": 2, "dp_shard_size": 2, "tp_size": 2}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with start_pool(8) as ranks:
        yield ranks


def build(sizes: dict[str, int]) -> Any:
    """Return what ``ParallelismConfig.build_device_mesh`` builds with the one name replaced."""
    from accelerate.parallelism_config import ParallelismConfig

    with pytest.MonkeyPatch.context() as patch:
        name = "init_device_mesh"  # accelerate imports it in its function
        patch.setattr(torch.distributed.device_mesh, name, meshkit.init_device_mesh)
        return ParallelismConfig(**sizes).build_device_mesh("cpu")


def look_up() -> Any:
    root = build(SIZES)
    with meshkit.Mesh.of(root) as mesh:
        names = (*root.mesh_dim_names, "dp", "dp_shard_cp", "dp_cp")
        ranks = {name: dist.get_process_group_ranks(root.get_group(name)) for name in names}
        large = {root.get_group(name) for name in names}
        same = root.get_group("dp_shard_cp") is mesh.group("dp_shard")
        return ranks, len(large), same, root.get_group("dp") is root.get_group("dp_cp")


def test_its_joint_names_share_groups(pool: Pool) -> None:
    for rank, (ranks, groups, same, joint) in enumerate(pool.run(look_up)):
        data = [*range(rank % 2, 8, 2)]
        shard = [data[rank // 4 * 2], data[rank // 4 * 2 + 1]]
        assert ranks["dp"] == ranks["dp_cp"] == data
        assert ranks["dp_shard"] == ranks["dp_shard_cp"] == shard
        assert groups == 4  # dp_replicate, dp_shard, tp, and both data axes together
        assert same
        assert joint


def reduce_over(odd: int) -> None:
    """Communicate over the meshes of accelerate's builder, but for one collective of one rank."""
    meshkit.init()
    root = build({"dp_replicate_size": 4, "dp_shard_size": 128, "cp_size": 2, "tp_size": 8})
    dist.all_reduce(torch.ones(2), group=root.get_group("tp"))
    if dist.get_rank() != odd:
        dist.all_reduce(torch.ones(3), group=root.get_group("dp_cp"))


@pytest.mark.parametrize("odd", [-1, 8191])
def test_a_job_of_8192_ranks_is_rehearsed(odd: int) -> None:
    report = rehearse(reduce_over, 8192, (odd,), nodes=1024, ranks=[0, 7, 8184, 8191])
    assert report.ok is (odd < 0), report
    assert report.names.layouts[0].shape == (4, 128, 2, 8)
    assert all(odd in mismatch.ranks for mismatch in report.mismatches)


def mean_loss(model: torch.nn.Linear, expert: torch.nn.Linear, part: int) -> torch.Tensor:
    x = torch.arange(4.0).reshape(1, 4) + part
    return expert(model(x)).square().mean()


def make_layers() -> tuple[torch.nn.Linear, torch.nn.Linear]:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)


def bring_a_mesh() -> dict[str, Any]:
    """Give accelerate a mesh of HSDP and tp, and shard experts over a view that it does not know.

    An Accelerator refuses a ParallelismConfig on CPUs, so this sets what its constructor sets.
    """
    from accelerate import Accelerator
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.state import AcceleratorState
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    dense = {"dp_replicate": 2, "dp_shard": 2, "tp": 2}
    dp = "dp_replicate dp_shard"
    with meshkit.build_mesh(dense, order=[*dense], groups=[dp]) as mesh:
        experts = mesh.view({"dp_replicate": 2, "ep": 4})
        config = ParallelismConfig(**{f"{axis}_size": size for axis, size in dense.items()})
        joint = {"dp": dp, "dp_cp": dp, "dp_shard_cp": "dp_shard"}
        config.device_mesh = mesh.device_mesh(joint=joint)
        before = dist.get_pg_count()
        accelerator, state = Accelerator(cpu=True), AcceleratorState()
        state.parallelism_config, state.device_mesh = config, config.get_device_mesh("cpu")
        state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
        model, expert = make_layers()
        model = fsdp2_prepare_model(accelerator, model)
        fully_shard(expert, mesh=experts.device_mesh("dp_replicate ep"))
        at = mesh.coordinate
        mean_loss(model, expert, 2 * at["dp_replicate"] + at["dp_shard"]).backward()
        state.distributed_type = "MULTI_CPU"
        loader = accelerator.prepare_data_loader(DataLoader(torch.arange(16), batch_size=2))
        gradients = {**dict(model.named_parameters()), "expert": expert.weight}
        results = {
            "made": dist.get_pg_count() - before,
            "batch": next(iter(loader)).tolist(),
            "ranks": (accelerator.data_parallel_rank, accelerator.data_parallel_shard_rank),
            "is of the mesh": meshkit.Mesh.of(accelerator.torch_device_mesh) is mesh,
            "gradients": {name: p.grad.full_tensor() for name, p in gradients.items()},
            "norm": float(mesh.grad_norm(gradients)),
        }
        experts.close()
    return results


def test_accelerate_takes_a_mesh_with_hsdp_tp_and_experts(pool: Pool) -> None:
    model, expert = make_layers()
    for part in range(4):
        (mean_loss(model, expert, part) / 4).backward()
    want = {**dict(model.named_parameters()), "expert": expert.weight}
    squares = sum(float(p.grad.double().square().sum()) for p in want.values())
    for rank, got in enumerate(pool.run(bring_a_mesh)):
        replica, shard = rank // 4, rank // 2 % 2
        part = 2 * replica + shard
        assert got["made"] == 0
        assert got["batch"] == [2 * part, 2 * part + 1]  # equal along tp
        assert got["ranks"] == (replica, shard)
        assert got["is of the mesh"]
        for name, parameter in want.items():
            assert torch.allclose(got["gradients"][name], parameter.grad, atol=1e-6)
        assert got["norm"] == pytest.approx(squares**0.5, rel=1e-5)


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(16)


def prepare_loaders() -> list[Any]:
    """Give loaders of a mesh to accelerate, which would divide them over the ranks again."""
    from accelerate import Accelerator, skip_first_batches

    accelerator = Accelerator(cpu=True)
    reports: list[Any] = []
    with meshkit.build_mesh(dp=2) as mesh:
        plan = mesh.batch(global_batch=4, micro_batch=2)
        workers: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}
        for data, options in ((torch.arange(16), {}), (Numbers(), {}), (Numbers(), workers)):
            try:
                reports.append([*accelerator.prepare(mesh.loader(data, plan, **options))])
            except meshkit.BatchError as error:
                reports.append(str(error.fix))
        skipped = skip_first_batches(mesh.loader(torch.arange(16), plan), 2)
        reports.append([batch.tolist() for batch in skipped])
    return reports


def test_accelerate_does_not_divide_a_loader_of_a_mesh_again() -> None:
    for rank, (*fixes, skipped) in enumerate(meshkit.spawn(prepare_loaders, 2)):
        assert all("accelerator.prepare" in fix for fix in fixes)
        assert len(fixes) == 3  # samples, a stream, and one that workers read
        first = 8 + 2 * rank
        assert skipped == [[first, first + 1], [first + 4, first + 5]]
