"""``meshkit.init_device_mesh`` beside torch's: some ranks, names, descriptions and errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.device_mesh import init_device_mesh as torch_init_device_mesh

import meshkit
from tests.membership import members_of
from tests.newer_torch import needs_slices
from tests.pool import Pool

RANKS = 8  # of the pool


@contextmanager
def of_torch(*args: Any, **options: Any) -> Iterator[DeviceMesh]:
    """Make torch's own DeviceMesh, and destroy what it has made afterwards."""
    before = {*dist.distributed_c10d._world.pg_map}
    try:
        yield torch_init_device_mesh(*args, **options)
    finally:
        for group in {*dist.distributed_c10d._world.pg_map} - before:
            dist.destroy_process_group(group)


def answer(ask: Callable[[], Any]) -> Any:
    """Return the answer, or the class of the error."""
    try:
        return ask()
    except Exception as error:
        return type(error)


def describe_dim(root: DeviceMesh, dim: int) -> tuple[list[int], str]:
    return dist.get_process_group_ranks(root.get_group(dim)), root.get_group(dim).group_desc


def describe(root: DeviceMesh) -> dict[str, Any]:
    """Return what a program can ask a DeviceMesh about its dims, on each rank."""
    names = root.mesh_dim_names or ()
    dims = [answer(lambda d=dim: describe_dim(root, d)) for dim in range(root.ndim)]
    return {
        "coordinate": root.get_coordinate(),
        "grid": root.mesh.tolist(),
        "names": names,
        "size": root.size(),
        "dims": dims,
        "named": [answer(lambda n=name: root.get_group(n).group_desc) for name in names],
        "local": [answer(lambda d=dim: root.get_local_rank(d)) for dim in range(root.ndim)],
        "slices": [answer(lambda n=name: root[n].mesh.tolist()) for name in names],
        "text": str(root),
    }


def check_as_torch(shape: Collection[int], **options: Any) -> None:
    with of_torch("cpu", shape, **options) as theirs:
        ours = meshkit.init_device_mesh("cpu", shape, **options)
        with meshkit.Mesh.of(ours) as mesh:
            assert not mesh.inside or mesh.device_mesh() is ours
            assert describe(ours) == describe(theirs)
            assert ours == theirs
            assert mesh.inside == (theirs.get_coordinate() is not None)


def give_some_ranks_what_torch_gives_them() -> None:
    for shape in ((1,), (2,), (5,), (3, 2), (2, 1, 2), (7, 1)):
        check_as_torch(shape)
        check_as_torch(shape, mesh_dim_names=tuple("abc"[: len(shape)]))


def communicate_over_some_ranks() -> None:
    rank, options = dist.get_rank(), {"mesh_dim_names": ("dp", "tp")}
    root = meshkit.init_device_mesh("cpu", (3, 2), joint={"all": "dp tp"}, **options)  # type: ignore[arg-type]
    with meshkit.Mesh.of(root) as mesh:
        assert mesh.inside == (rank < 6)
        flat = root._flatten("flat")
        halves = flat._unflatten(0, (2, 3), ("x", "y"))
        fake = root._unflatten(0, (3, 1), ("u", "v"), {"u": "fake"})
        if not mesh.inside:
            groups = [answer(made.get_group) for made in (flat, halves)]
            assert groups == [IndexError, RuntimeError]
            return
        assert root["all"].get_group() is flat.get_group() is mesh.group()
        assert members_of(root.get_group("tp")) == [rank // 2 * 2, rank // 2 * 2 + 1]
        assert members_of(root.get_group("dp")) == [*range(rank % 2, 6, 2)]
        assert members_of(flat.get_group()) == [*range(6)]
        assert members_of(halves.get_group("y")) == [*range(rank // 3 * 3, rank // 3 * 3 + 3)]
        assert dist.get_backend(fake.get_group("u")) == "fake"
        mesh.barrier()


def name_a_rank_with_another_number_of_ranks() -> None:
    shape = (4,) if dist.get_rank() == 5 else (6,)
    with pytest.raises(meshkit.DisagreementError) as error:
        meshkit.init_device_mesh("cpu", shape)
    requests = error.value.requests
    assert requests[5] not in [requests[other] for other in requests if other != 5]


def describe_groups_by_the_dim_that_is_asked() -> None:
    check_as_torch((1, 2, 1, 4), mesh_dim_names=("pp", "dp", "cp", "tp"))
    names = ("dp_shard", "tp")
    first = meshkit.init_device_mesh("cpu", (2, 4), mesh_dim_names=names)
    second = meshkit.init_device_mesh("cpu", (2, 4), mesh_dim_names=("fsdp", "infer"))
    cut = second["infer"]._unflatten(0, (2, 2), ("x", "y"))
    flat = cut["x", "y"]._flatten("again")
    asked = [(first, "tp"), (second, "infer"), (first, "dp_shard"), (second, "fsdp")]
    asked += [(cut, "x"), (cut, "y"), (flat, "again"), (first["tp"], "tp")]
    for root, name in asked:
        assert root.get_group(name).group_desc == f"mesh_{name}"
    assert first.get_group("tp") is flat.get_group()
    assert first["tp"].get_group().group_desc == "mesh_tp"
    meshkit.Mesh.of(second).close()
    meshkit.Mesh.of(first).close()


def leave_descriptions_of_others_alone() -> None:
    with of_torch("cpu", (2, 4), mesh_dim_names=("a", "b")) as theirs:
        theirs.get_group("b")._set_group_desc("of the user")
        with meshkit.Mesh.of(meshkit.init_device_mesh("cpu", (8,), mesh_dim_names=("w",))) as mesh:
            assert theirs.get_group("b").group_desc == "of the user"
            assert mesh.device_mesh().get_group().group_desc == dist.group.WORLD.group_desc


def accept_the_names_that_torch_accepts() -> None:
    odd = [("TP-1", "x.y"), ("0", ""), ("a b", "(c)"), ("class", "_x"), ("groups", "axis")]
    for names in [*odd, ("TP-1", "TP_1"), ("é", "Ü"), ("dp", "DP")]:
        check_as_torch((2, 4), mesh_dim_names=names)
        check_as_torch((3, 2), mesh_dim_names=names)


def accept_the_views_of_a_dict() -> None:
    sizes = {"dp": 4, "tp": 2}
    check_as_torch(sizes.values(), mesh_dim_names=sizes.keys())
    check_as_torch(sizes.values())


def use_odd_names_as_any_other() -> None:
    options: dict[str, Any] = {"mesh_dim_names": ("TP-1", "x.y", "0")}
    options |= {"joint": {"both": "TP-1 x.y"}, "backend_override": {"0": "fake"}}
    root = meshkit.init_device_mesh("cpu", (2, 2, 2), **options)
    with meshkit.Mesh.of(root) as mesh:
        assert mesh.layout.axes == ("TP_1", "x_y", "dim_0")
        assert root["TP-1"].get_group() is mesh.group("TP_1")
        assert root["both"].get_group() is mesh.group("TP_1", "x_y")
        assert dist.get_backend(root.get_group("0")) == "fake"
        flat = root["x.y", "0"]._flatten("y.0")
        assert members_of(flat.get_group()) == [*range(mesh.rank // 4 * 4, mesh.rank // 4 * 4 + 4)]


def raise_what_torch_raises() -> None:
    names = {"mesh_dim_names": ("dp", "tp")}
    calls: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        (("cpu", (3, 3)), names, "Mesh should not be bigger than default world size 8"),
        (("cpu", (4, 2)), {"mesh_dim_names": ("dp", "dp")}, "Each mesh_dim_name must be unique."),
        (("cpu", (8,)), names, "mesh_shape and mesh_dim_names should have same length!"),
        (("cpu", (4, 2)), {"mesh_dim_names": ()}, "mesh_shape and mesh_dim_names should have same"),
        (("cuda:0", (4, 2)), names, "Device type with index is not supported"),
        (("cpu:0", (4, 4)), names, "Device type with index is not supported"),  # the first fault
        (("cpu", (4, 2)), {**names, "backend_override": {"pp": "gloo"}}, r"override: got \['pp'\]"),
        (("cpu", (4, 2)), {**names, "backend_override": {2: "gloo"}}, "Found invalid keys in"),
        (("cpu", (4, 2)), {"backend_override": {"dp": "gloo"}}, "Found invalid keys in"),
        (
            ("cpu", (4, 2)),
            {**names, "backend_override": {0: "gloo", "dp": "gloo"}},
            "Found redundant dim index 0 and name dp in backend_override",
        ),
        (("cpu", (2.0, 4)), {}, ""),
        (("cpu", (-1, 8)), {}, ""),
    ]
    for args, options, text in calls:
        with pytest.raises((RuntimeError, ValueError), match=text) as theirs:
            torch_init_device_mesh(*args, **options)
        with pytest.raises(theirs.type, match=text) as ours:
            meshkit.init_device_mesh(*args, **options)
        assert isinstance(ours.value, meshkit.SpecError)
        assert "Fix: " in str(ours.value)


@pytest.mark.parametrize(
    "check",
    [
        give_some_ranks_what_torch_gives_them,
        pytest.param(communicate_over_some_ranks, marks=needs_slices),
        name_a_rank_with_another_number_of_ranks,
        describe_groups_by_the_dim_that_is_asked,
        leave_descriptions_of_others_alone,
        accept_the_names_that_torch_accepts,
        accept_the_views_of_a_dict,
        pytest.param(use_odd_names_as_any_other, marks=needs_slices),
        raise_what_torch_raises,
    ],
)
def test_on_eight_ranks(pool: Pool, check: Callable[[], None]) -> None:
    pool.run(check)
