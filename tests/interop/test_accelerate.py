"""Accelerate's config and data loader on a mesh, beside what Accelerate makes by itself."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader

import meshkit
from meshkit.interop.accelerate import parallelism_config
from tests.interop.run_example import run_example

pytest.importorskip("accelerate", reason="accelerate is not installed: pip install -e '.[interop]'")
LIBRARY = ["accelerate"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "with_accelerate.py"
CASES: dict[str, tuple[dict[str, int], str | None, dict[str, Any]]] = {
    "fsdp tp": ({"dp": 2, "tp": 2, "sp": 1}, None, {}),
    "hsdp": ({"dp_replicate": 2, "dp": 2}, "dp_replicate dp", {}),
    "fsdp cp": ({"dp": 2, "cp": 2}, None, {}),
    "ddp": ({"dp": 4}, None, {"data": "dp_replicate"}),
    "hsdp tp": ({"dp": 2, "dp_shard": 2, "tp": 2}, "dp dp_shard tp", {"data": "dp_replicate"}),
    "fsdp cp tp": ({"dp": 2, "cp": 2, "tp": 2}, None, {}),
}
MADE = {  # groups a rank: by us, by Accelerate
    "fsdp tp": (0, 5),
    "hsdp": (0, 3),
    "fsdp cp": (0, 3),
    "ddp": (0, 0),
    "hsdp tp": (1, 6),  # dp and dp_cp are four ranks of eight
    "fsdp cp tp": (1, 6),
}


def groups_there() -> int:
    return len(dist.distributed_c10d._world.pg_map)


NAMES = ("dp_replicate", "dp_shard", "cp", "tp", "dp", "dp_shard_cp", "dp_cp")


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


@pytest.fixture(scope="module", params=[4, 8])
def found(request: pytest.FixtureRequest) -> dict[str, list[Any]]:
    """By case, what each rank found; the cases of as many ranks in one job."""
    cases = {
        name: one for name, one in CASES.items() if math.prod(one[0].values()) == request.param
    }
    by_rank = meshkit.spawn(besides, request.param, ([*cases.values()],), timeout=200)
    return {name: [one[place] for one in by_rank] for place, name in enumerate(cases)}


def test_names_ranks_and_places_are_those_of_accelerates_own_mesh(
    found: dict[str, list[Any]],
) -> None:
    for ranks in found.values():
        for one in ranks:
            assert one["ours"] == one["theirs"]
            assert not one["sharded"] or one["sharded"][0] == one["sharded"][1]


def test_the_further_names_are_there(found: dict[str, list[Any]]) -> None:
    if "fsdp tp" in found:
        names, ranks, by_name = found["fsdp tp"][3]["ours"]
        assert names == ("dp_shard", "tp")
        assert ranks == [[0, 1], [2, 3]]
        assert by_name == {
            "dp_shard": ([1, 3], 1),
            "tp": ([2, 3], 1),
            **{name: ([1, 3], 1) for name in ("dp", "dp_shard_cp", "dp_cp")},
        }
        assert found["hsdp"][3]["sharded"][0][:2] == (
            ("dp_replicate", "dp_shard_cp"),
            [[0, 1], [2, 3]],
        )
        assert found["ddp"][3]["sharded"] == []
    else:
        assert found["hsdp tp"][7]["ours"][2]["dp_cp"] == ([1, 3, 5, 7], 3)


def test_groups_are_made_only_for_several_axes_that_are_not_all(
    found: dict[str, list[Any]],
) -> None:
    for name, ranks in found.items():
        assert [one["made"] for one in ranks] == [MADE[name]] * len(ranks)


def of_one() -> tuple[object, int]:
    with meshkit.build_mesh(dp=1) as mesh:
        config, view = parallelism_config(mesh)
        with view:
            return config.device_mesh, config.total_size


def test_one_rank_has_no_device_mesh() -> None:
    assert meshkit.spawn(of_one, 1, timeout=120) == [(None, 1)]


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


def test_the_loader_gives_each_data_rank_its_own_and_each_tp_group_the_same() -> None:
    told = meshkit.spawn(batches, 4, ({"dp": 2, "tp": 2},), timeout=120)
    parts = [[[0, 1], [4, 5], [8, 9], [12, 13]], [[2, 3], [6, 7], [10, 11], [14, 15]]]
    for rank, (coordinate, got, seats) in enumerate(told):
        assert got == parts[coordinate["dp"]]
        assert seats == [4, rank]


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


def test_what_accelerate_cannot_express_is_refused_before_a_group_is_made() -> None:
    calls: list[tuple[dict[str, int], dict[str, Any]]] = [
        ({"dp": 2, "sp": 2}, {}),
        ({"dp": 2, "tp": 2}, {"order": "tp dp"}),
        ({"dp": 4}, {"ranks": [1, 0, 2, 3]}),
        ({"dp": 2}, {"ranks": [0, 1]}),
        ({"dp": 4}, {"data": "fsdp"}),
        ({"dp": 4}, {"cp_backend": "ring"}),
    ]
    told, *others = meshkit.spawn(refused, 4, (calls,), timeout=120)
    assert others == [told] * 3
    head = "SpecError: parallelism_config(Layout("
    why = "Accelerate's data loader reads a rank's batches off its number."
    assert told == [
        f"{head}dp=2, sp=2), data='dp_shard'): Accelerate cannot split over sp.\n"
        "  Its axes are dp_replicate, dp_shard, cp, tp; sp is 2.\n"
        "  Fix: build_mesh(dp=4), or axes that it has.",
        f"{head}tp=2, dp=2), data='dp_shard'): ranks do not count up through dp tp.\n"
        f"  The mesh nests tp dp over 4 ranks of 4, from 0 on; {why}\n"
        "  Fix: build_mesh over all ranks in order, order='dp tp'.",
        f"{head}dp=4, ranks=[1, 0, 2, 3]), data='dp_shard'): ranks do not count up through dp.\n"
        f"  The mesh nests dp over 4 ranks of 4, from 1 on; {why}\n"
        "  Fix: build_mesh over all ranks in order.",
        f"{head}dp=2), data='dp_shard'): ranks do not count up through dp.\n"
        f"  The mesh nests dp over 2 ranks of 4, from 0 on; {why}\n"
        "  Fix: build_mesh over all ranks in order.",
        f"{head}dp=4), data='fsdp'): dp cannot be 'fsdp'.\n"
        "  Fix: data='dp_shard' or data='dp_replicate'.",
        f"{head}dp=4), data='dp_shard', cp_backend='ring'): Accelerate refuses.\n"
        "  cp_backend must be one of ['torch'], but got ring\n"
        "  Fix: what Accelerate asks for.",
    ]


def of_two_minds() -> str:
    """One rank asks for what Accelerate refuses."""
    with meshkit.build_mesh(dp=2) as mesh:
        try:
            parallelism_config(mesh, data="dp" if mesh.rank else "dp_shard")
        except meshkit.MeshkitError as error:
            return f"{type(error).__name__}: {error}"
    return ""


def test_a_rank_that_is_refused_alone_tells_the_other() -> None:
    right, wrong = meshkit.spawn(of_two_minds, 2, timeout=120)
    assert wrong.startswith("SpecError: parallelism_config(Layout(dp=2), data='dp'): dp cannot be")
    assert right.startswith("DisagreementError: ")
    assert "dp cannot be 'dp'" in right


def test_the_example_runs() -> None:
    saw, said = {}, meshkit.spawn(run_example, 4, (str(EXAMPLE), {}), timeout=120)
    for line in "".join(said).splitlines():
        place, _, rest = line.partition(" saw ")
        samples, _, loss = rest.partition(", last loss ")
        saw[place] = (ast.literal_eval(samples), float(loss))
    near, far = saw["{'dp': 0, 'tp': 0}"], saw["{'dp': 1, 'tp': 0}"]
    assert near == saw["{'dp': 0, 'tp': 1}"]
    assert far == saw["{'dp': 1, 'tp': 1}"]
    assert sorted(n for batch in near[0] + far[0] for n in batch) == [*range(16)]


def test_without_accelerate_it_says_what_to_install() -> None:
    code = """
import sys
sys.modules["accelerate"] = None
from meshkit.interop.accelerate import parallelism_config
parallelism_config(None)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: meshkit.interop.accelerate needs accelerate 1.15:"
        " pip install 'meshkit[interop]'"
    )
