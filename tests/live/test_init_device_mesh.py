"""``meshkit.init_device_mesh``: the promise that libraries with a DeviceMesh can rely on."""

from __future__ import annotations

import copy
import io
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.device_mesh import init_device_mesh as torch_init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import meshkit
from meshkit.launch.torch_internals import GROUPS_METHOD
from tests.live.faults import error_of
from tests.live.newer_torch import needs_order, needs_slices
from tests.one_step import equals_one_process
from tests.pool import Pool, start_pool

NAMES = ("dp_replicate", "dp_shard", "tp")
JOINT = {"dp": "dp_replicate dp_shard"}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with start_pool(8) as ranks:
        yield ranks


def make(shape: tuple[int, ...] = (2, 2, 2), **options: Any) -> DeviceMesh:
    return meshkit.init_device_mesh("cpu", shape, **{"mesh_dim_names": NAMES, **options})


def members(group: dist.ProcessGroup) -> list[int]:
    """Return what a one-hot all-reduce finds in a group: its ranks, by communication."""
    hot = torch.zeros(dist.get_world_size())
    hot[dist.get_rank()] = 1
    dist.all_reduce(hot, group=group)
    return hot.nonzero().flatten().tolist()


def look_up_dims() -> Any:
    root = make(joint=JOINT)
    with meshkit.Mesh.of(root) as mesh:
        before = dist.get_pg_count()
        same = [
            root["dp"].get_group() is mesh.group("dp_replicate", "dp_shard"),
            root["dp_replicate", "dp_shard"]._flatten("dp").get_group() is root.get_group("dp"),
            root["dp_replicate", "dp_shard"]._flatten("d").get_group() is root["dp"].get_group(),
            root["tp"]._flatten("t").get_group() is mesh.group("tp"),
            root["dp_shard", "tp"]["tp"].get_group() is mesh.group("tp"),
            root._unflatten(0, (1, 2), ("one", "two")).get_group("two")
            is mesh.group("dp_replicate"),
            root._flatten("all").get_group() is dist.group.WORLD,
            meshkit.Mesh.of(root["dp_shard", "tp"]) is mesh,
            meshkit.Mesh.of(copy.deepcopy(root)["tp"]) is mesh,
            isinstance(root, DeviceMesh),
            dist.get_pg_count() == before,
        ]
        found = {name: members(root.get_group(name)) for name in (*NAMES, "dp")}
        peers = {name: mesh.peers(name).tolist() for name in NAMES}
        peers["dp"] = mesh.peers("dp_replicate", "dp_shard").tolist()
        unpickled = pickle.loads(pickle.dumps(root))
        return same, found == peers, unpickled == root, error_of(lambda: meshkit.Mesh.of(unpickled))


def test_groups_that_exist_are_never_made_again(pool: Pool) -> None:
    for same, agree, is_equal, error in pool.run(look_up_dims):
        assert all(same), same
        assert agree
        assert is_equal
        assert error[0] == "SpecError"
        assert "from_device_mesh" in error[1]


@needs_slices
def test_a_concatenation_makes_no_group(pool: Pool) -> None:
    assert pool.run(concatenate) == [[True, True, True]] * 8


def concatenate() -> list[bool]:
    root = make(joint=JOINT)
    with meshkit.Mesh.of(root) as mesh:
        before = dist.get_pg_count()
        joined = DeviceMesh._concatenate([root["dp_replicate"], root["dp_shard"]])
        flat = joined._flatten("flat").get_group()
        return [
            dist.get_pg_count() == before,
            flat is mesh.group("dp_replicate", "dp_shard"),
            meshkit.Mesh.of(joined) is mesh,
        ]


def make_later_groups() -> Any:
    """Request groups that do not exist, by _flatten and _unflatten, also from a slice."""
    root = make()
    with meshkit.Mesh.of(root) as mesh:
        flat = root["dp_shard", "tp"]._flatten("inner")
        again = root["dp_shard", "tp"]._flatten("inner_again")
        cut = flat._unflatten(0, (4, 1), ("a", "b"))
        return (
            [members(flat.get_group()), flat.get_group().rank()],
            [flat.get_group() is again.get_group(), cut.get_group("a") is flat.get_group()],
            mesh.groups_report().communicators,
            [dist.get_process_group_ranks(cut.get_group("b")), mesh.coordinate],
        )


def test_missing_groups_are_made_once(pool: Pool) -> None:
    for rank, (inner, same, communicators, alone) in enumerate(pool.run(make_later_groups)):
        assert inner == [[rank // 4 * 4 + i for i in range(4)], rank % 4]
        assert same == [True, True]
        assert communicators == 6  # the world, three axes, this rank alone, and the inner one
        assert alone[0] == [rank]


def share_with_other_calls() -> list[int]:
    """Count the groups that later calls make, beside a mesh of build_mesh and each other."""
    counts = []
    with meshkit.build_mesh({"ddp": 2, "fsdp": 4}, order="ddp fsdp"):
        start = dist.get_pg_count()
        actor = make((2, 4), mesh_dim_names=["ddp", "fsdp"])
        counts.append(dist.get_pg_count() - start)
        rollout = make((2, 4, 1), mesh_dim_names=["dp", "infer_tp", "infer_pp"])
        counts.append(dist.get_pg_count() - start)
        meshkit.Mesh.of(rollout).close()
        meshkit.Mesh.of(actor).close()
    return counts


def test_meshes_of_several_calls_share_groups(pool: Pool) -> None:
    assert pool.run(share_with_other_calls) == [[0, 0]] * 8


def override_backends() -> Any:
    """Override a dim of size 1 by name and one of size 2 by index, beside a real dim of size 1."""
    options = dist.ProcessGroupGloo._Options()
    root = make(
        (1, 4, 1, 2),
        mesh_dim_names=("pp", "fsdp", "one", "tp"),
        backend_override={"pp": "fake", 3: options},
    )
    with meshkit.Mesh.of(root) as mesh:
        fake, real = root.get_group("pp"), root.get_group("one")
        flat = root["pp", "one"]._flatten("both")
        cut = root["fsdp"]._unflatten(0, (2, 2), ("x", "y"), backend_override={"y": "fake"})
        return [
            [dist.get_backend(group) for group in (fake, real, cut.get_group("y"))],
            flat.get_group() is real,
            root.get_group("tp") is mesh.group("tp"),
            root["tp"]._flatten("plain").get_group() is not mesh.group("tp"),
            [len(members(root.get_group(name))) for name in ("fsdp", "one", "tp", "plain")],
            len(members(cut.get_group("x"))),
        ]


def test_overrides_are_honoured_and_a_fake_group_is_never_a_real_one(pool: Pool) -> None:
    expected = [["fake", "gloo", "fake"], True, True, True, [4, 1, 2, 2], 2]
    assert pool.run(override_backends) == [expected] * 8


def permute() -> Any:
    order = [7, 0, 6, 1, 5, 2, 4, 3]
    with meshkit.build_mesh(dp=4, tp=2, ranks=order) as mesh:
        root = mesh.device_mesh()
        flat = root._flatten("all")
        cut = root["dp"]._unflatten(0, (2, 2), ("a", "b"))
        places = [cut.get_group(name).rank() for name in "ab"]
        return (
            dist.get_process_group_ranks(flat.get_group()) == order,
            flat.get_group().rank() == mesh.group_rank() == flat.get_coordinate()[0],
            places == [*cut.get_coordinate()],
            members(cut.get_group("a")) == sorted(cut["a"].mesh.tolist()),
        )


@needs_order
def test_order_is_kept_for_permuted_ranks(pool: Pool) -> None:
    assert pool.run(permute) == [(True, True, True, True)] * 8


def without_names() -> Any:
    root = meshkit.init_device_mesh("cpu", (2, 4))
    with meshkit.Mesh.of(root):
        reference = torch_init_device_mesh("cpu", (2, 4))
        for group in reference.get_all_groups():
            dist.destroy_process_group(group)
        same = root == reference and root.mesh_dim_names is None
        return same, members(root.get_group(1)) == sorted(
            root.mesh[root.get_coordinate()[0]].tolist()
        )


def test_a_mesh_without_names_equals_that_of_torch(pool: Pool) -> None:
    assert pool.run(without_names) == [(True, True)] * 8


def refuse(calls: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
    return [error_of(lambda c=call: meshkit.init_device_mesh(*c[0], **c[1])) for call in calls]


def test_invalid_arguments_are_refused(pool: Pool) -> None:
    names = {"mesh_dim_names": ("dp", "tp")}
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("cpu", (3, 2)), names),
        (("cpu", (4, 2)), {"joint": {"all": "dp tp"}}),
        (("cpu", (4, 2)), {**names, "joint": {"all": "tp dp"}}),
        (("cpu", (4, 2)), {**names, "joint": {"tp": "dp tp"}}),
        (("cpu", (4, 2)), {**names, "joint": ["dp tp"]}),
        (("cpu", (4, 2)), {"mesh_dim_names": ("dp", "dp")}),
        (("cpu", (4, 2)), {"mesh_dim_names": ("dp",)}),
        (("cpu:0", (4, 2)), names),
        (("cuda", (4, 2)), names),
        (("cpu", "42"), names),
        (("cpu", (4, 2)), {**names, "backend_override": {"pp": "gloo"}}),
        (("cpu", (4, 2)), {**names, "joint": {"all": "dp shard"}}),
    ]
    for errors in pool.run(refuse, calls):
        assert [error[0] for error in errors] == ["SpecError"] * 11 + ["UnknownAxisError"]
        assert errors[0][1].endswith("Fix: mesh_shape=(4, 2), or start 6 ranks.")


def disagree() -> Any:
    rank = dist.get_rank()
    began = time.monotonic()
    shape = (4, 1, 2) if rank == 5 else (2, 2, 2)
    first = error_of(lambda: make(shape)), time.monotonic() - began
    began = time.monotonic()
    joint = {"dp_cp" if rank == 3 else "dp": "dp_replicate dp_shard"}
    second = error_of(lambda: make(joint=joint)), time.monotonic() - began
    root = make()
    with meshkit.Mesh.of(root):
        dims = ("dp_replicate", "dp_shard") if rank == 2 else ("dp_shard", "tp")
        began = time.monotonic()
        third = error_of(lambda: root[dims]._flatten("x")), time.monotonic() - began
        meshkit.Mesh.of(root).barrier()
        assert root["dp_shard", "tp"]._flatten("y").size() == 4
    return first, second, third


def test_a_rank_that_asks_for_something_else_is_named_at_once(pool: Pool) -> None:
    for answers in pool.run(disagree):
        for (error, seconds), odd in zip(answers, (5, 3, 2), strict=True):
            assert error[0] == "DisagreementError", error
            assert f"rank {odd}" in error[1].lower() or f" {odd} " in error[1], error[1]
            assert seconds < 2


def stay_away() -> Any:
    sizes = dict.fromkeys(NAMES, 2)
    with meshkit.build_mesh(sizes, order=NAMES, arrival_timeout=1) as mesh:
        root = mesh.device_mesh()
        began = time.monotonic()
        if mesh.rank == 6:
            time.sleep(2.5)
            return None, 0.0
        error = error_of(lambda: root["dp_shard", "tp"]._flatten("inner"))
        return error, time.monotonic() - began


def test_a_rank_that_asks_for_nothing_is_named_within_arrival_timeout() -> None:
    with start_pool(8) as ranks:
        answers = ranks.run(stay_away)
    for rank in {*range(8)} - {6}:
        error, seconds = answers[rank]
        assert error[0] == "RankTimeoutError"
        assert "6" in error[1]
        assert seconds < 3


def train() -> list[bool]:
    """Compare a step of FSDP2 over dp and tensor parallelism over tp with one process."""
    root = make(joint=JOINT)
    with meshkit.Mesh.of(root):
        return equals_one_process(root["dp_replicate", "dp_shard"], root["tp"])


@needs_slices
def test_fsdp_and_tensor_parallelism_train_as_one_process(pool: Pool) -> None:
    assert pool.run(train) == [[True] * 4] * 8


def save_and_load(folder: str) -> Any:
    root = make(joint=JOINT)
    with meshkit.Mesh.of(root):
        whole = torch.arange(64.0).reshape(8, 8)
        spread = distribute_tensor(whole, root["dp_shard", "tp"], [Shard(0), Shard(1)])
        dcp.save({"x": spread}, checkpoint_id=folder)
        empty = distribute_tensor(torch.zeros(8, 8), root["tp"], [Shard(1)])
        dcp.load({"x": empty}, checkpoint_id=folder)
        buffer = io.BytesIO()
        torch.save(spread, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=True)
        return torch.equal(empty.full_tensor(), whole), torch.equal(
            loaded.to_local(), spread.to_local()
        )


def test_distributed_checkpoints_and_torch_save_take_its_tensors(
    pool: Pool, tmp_path: Path
) -> None:
    assert pool.run(save_and_load, str(tmp_path)) == [(True, True)] * 8


def compile_redistribution() -> bool:
    root = make()
    with meshkit.Mesh.of(root):

        @torch.compile(backend="aot_eager", fullgraph=True)
        def double(x: torch.Tensor) -> torch.Tensor:
            spread = DTensor.from_local(x, root["tp"], [Shard(0)], run_check=False)
            return spread.redistribute(placements=[Replicate()]).to_local() * 2

        x = torch.full((1,), float(dist.get_rank()))
        pair = dist.get_rank() // 2 * 2
        return double(x).tolist() == [2.0 * pair, 2.0 * pair + 2]


def test_torch_compile_takes_its_slices(pool: Pool) -> None:
    assert pool.run(compile_redistribution) == [True] * 8


def keep_timeouts() -> Any:
    with meshkit.build_mesh(dp=4, tp=2, timeout={"tp": 7}) as mesh:
        root = mesh.device_mesh()
        flat = root["tp"]._flatten("t")
        return flat.get_group() is mesh.group("tp")


def test_a_timeout_of_an_axis_is_that_of_its_other_names(pool: Pool) -> None:
    assert pool.run(keep_timeouts) == [True] * 8


def join_absent_axes() -> Any:
    with meshkit.build_mesh(dp=4, tp=2) as mesh:
        root = mesh.device_mesh(joint={"dp_cp": "dp cp", "none": "pp cp"})
        missing = error_of(lambda: mesh.device_mesh(joint={"all": "dp tp", "again": "dp tp"}))
        patterned = error_of(lambda: mesh.device_mesh("dp", joint={"dp_cp": "dp cp"}))
        return [
            root["dp_cp"].get_group() is mesh.group("dp"),
            root["none"].get_group() is mesh.group("cp"),
            root["none"].size(),
            root.get_group("none").size(),
            missing,
            patterned and patterned[0],
        ]


@needs_slices
def test_joint_names_may_list_absent_axes(pool: Pool) -> None:
    assert pool.run(join_absent_axes) == [[True, True, 1, 1, None, "SpecError"]] * 8


def join_missing_group() -> Any:
    with meshkit.build_mesh(pp=2, dp=2, tp=2) as mesh:
        return error_of(lambda: mesh.device_mesh(joint={"x": "dp tp"}))


def test_a_joint_name_without_a_group_says_how_to_build_it(pool: Pool) -> None:
    for error in pool.run(join_missing_group):
        assert error[0] == "SpecError"
        assert "groups=['dp tp']" in error[1]


def part_of_the_world() -> Any:
    with meshkit.build_mesh(dp=2, tp=2, ranks=range(4), groups=["dp tp"]) as mesh:
        if not mesh.inside:
            return None
        root = mesh.device_mesh()
        with_group = root._flatten("all").get_group() is mesh.group()
        return with_group, error_of(
            lambda: root["tp"]._unflatten(0, (2, 1), ("a", "b"), {"a": "fake"})
        )


def test_ranks_outside_cannot_help_to_make_a_group(pool: Pool) -> None:
    for answer in pool.run(part_of_the_world)[:4]:
        assert answer[0]
        assert answer[1][0] == "SpecError"


def use_after_close() -> Any:
    root = make()
    meshkit.Mesh.of(root).close()
    return error_of(lambda: root["dp_shard", "tp"]._flatten("x"))


def test_a_closed_mesh_gives_no_groups(pool: Pool) -> None:
    assert {error[0] for error in pool.run(use_after_close)} == {"MeshkitError"}


def leave_torch_alone() -> Any:
    """Use torch's own DeviceMesh after meshkit has replaced the private method."""
    root = make()
    with meshkit.Mesh.of(root):
        other = torch_init_device_mesh("cpu", (4, 2), mesh_dim_names=("a", "b"))
        flat = other["a", "b"]._flatten("c")
        error = error_of(lambda: meshkit.Mesh.of(other))
        made = [other.get_group(name) for name in "ab"] + [flat.get_group()]
        ranks = [members(group) for group in made[:2]]
        for group in made[:2]:
            dist.destroy_process_group(group)
        return ranks, error[0], made[2] is dist.group.WORLD


def test_other_device_meshes_behave_as_before(pool: Pool) -> None:
    for rank, answer in enumerate(pool.run(leave_torch_alone)):
        assert answer[0] == [[*range(rank % 2, 8, 2)], [rank // 2 * 2, rank // 2 * 2 + 1]]
        assert answer[1:] == ("SpecError", True)


def meet_another_torch() -> list[str]:
    """Return what calls do if torch makes the groups of a DeviceMesh in an unknown way."""
    known = getattr(DeviceMesh, GROUPS_METHOD)
    setattr(DeviceMesh, GROUPS_METHOD, lambda self: None)
    try:
        with meshkit.build_mesh(dp=2, sp=2, tp=2) as mesh:
            slices = mesh.device_mesh("dp tp")
            joint = error_of(lambda: mesh.device_mesh(joint={"dp_sp": "dp sp"}))
            return [str(slices.mesh_dim_names), str(joint)]
    finally:
        setattr(DeviceMesh, GROUPS_METHOD, known)


def test_a_torch_that_is_not_known_gives_slices_and_refuses_joint_names(pool: Pool) -> None:
    for names, joint in pool.run(meet_another_torch):
        assert names == "('dp', 'tp')"
        assert "makes the groups of a DeviceMesh in another way" in joint
