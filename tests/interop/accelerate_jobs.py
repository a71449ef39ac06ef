"""What the ranks of the tests of Accelerate run."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader

import meshkit
from meshkit.interop.accelerate import parallelism_config

NAMES = ("dp_replicate", "dp_shard", "cp", "tp", "dp", "dp_shard_cp", "dp_cp")


def groups_there() -> int:
    return len(dist.distributed_c10d._world.pg_map)


def named(device_mesh: DeviceMesh) -> dict[str, tuple[list[int], int]]:
    """By the names that it has: the ranks of this rank's group, and this rank's place."""
    found = {}
    for name in NAMES:
        try:
            part = device_mesh[name]
        except KeyError:
            continue
        members = dist.get_process_group_ranks(part.get_group())
        assert members == part.mesh.tolist()
        assert device_mesh.get_group(name) is part.get_group()
        found[name] = (members, part.get_local_rank())
    return found


def sharded(device_mesh: DeviceMesh, names: list[str]) -> tuple[Any, ...]:
    """What Accelerate hands to FSDP2: the slice by ``fsdp_dim_names``."""
    part = device_mesh[tuple(names)]
    sums = []
    for dim in range(part.ndim):
        one = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(one, group=part.get_group(dim))
        sums.append(one.item())
    return part.mesh_dim_names, part.mesh.tolist(), sums


def beside(sizes: dict[str, int], order: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Our config and Accelerate's own, in one job."""
    # torch warns of what both slice: a name for several axes
    warnings.filterwarnings("ignore", "Slicing a flattened dim from root mesh", UserWarning)
    from accelerate import ParallelismConfig

    with meshkit.build_mesh(sizes, order=order) as mesh:
        before = groups_there()
        config, view = parallelism_config(mesh, **options)
        made = groups_there() - before
        own = ParallelismConfig(
            **{f"{n}_size": getattr(config, f"{n}_size") for n in ("dp_replicate", "dp_shard")},
            **{f"{n}_size": getattr(config, f"{n}_size") for n in ("cp", "tp", "sp")},
        )
        theirs = own.build_device_mesh("cpu")
        made_by_theirs = groups_there() - before - made
        ours = config.get_device_mesh("cpu")
        assert ours is config.device_mesh
        names = config.fsdp_dim_names if config.dp_shard_cp_dim_names else []
        found = {
            "ours": (ours.mesh_dim_names, ours.mesh.tolist(), named(ours)),
            "theirs": (theirs.mesh_dim_names, theirs.mesh.tolist(), named(theirs)),
            "sharded": names and (sharded(ours, names), sharded(theirs, names)),
            "made": (made, made_by_theirs),
        }
        view.close()
        return found


def besides(cases: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Several cases in one job."""
    return [beside(*case) for case in cases]


def of_one() -> tuple[object, int]:
    with meshkit.build_mesh(dp=1) as mesh:
        config, view = parallelism_config(mesh)
        with view:
            return config.device_mesh, config.total_size


def batches(sizes: dict[str, int]) -> tuple[dict[str, int], list[list[int]], list[int]]:
    """What Accelerate's loader gives this rank, and every rank's sum of it."""
    from accelerate import Accelerator
    from accelerate.data_loader import prepare_data_loader

    with meshkit.build_mesh(sizes) as mesh:
        config, view = parallelism_config(mesh)
        accelerator = Accelerator(cpu=True)
        loader = prepare_data_loader(
            DataLoader(torch.arange(16), batch_size=2),
            device=accelerator.device,
            put_on_device=True,
            torch_device_mesh=config.device_mesh,
        )
        got = [batch.tolist() for batch in loader]
        view.close()
        return mesh.coordinate, got, [accelerator.num_processes, accelerator.process_index]


def refused(calls: list[tuple[dict[str, int], dict[str, Any]]]) -> list[str]:
    """What is told of calls on meshes that cannot be; and that nothing was made."""
    told = []
    for sizes, given in calls:
        options = dict(given)
        build = {name: options.pop(name) for name in ("ranks", "order") if name in options}
        with meshkit.build_mesh(sizes, **build) as mesh:
            before = groups_there()
            try:
                parallelism_config(mesh, **options)
            except meshkit.MeshkitError as error:
                told.append(f"{type(error).__name__}: {error}")
            assert groups_there() == before
    return told


def of_two_minds() -> str:
    """One rank asks for what Accelerate refuses."""
    with meshkit.build_mesh(dp=2) as mesh:
        try:
            parallelism_config(mesh, data="dp" if mesh.rank else "dp_shard")
        except meshkit.MeshkitError as error:
            return f"{type(error).__name__}: {error}"
    return ""
