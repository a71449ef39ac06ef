"""``meshkit.init_device_mesh``: the promise that libraries with a DeviceMesh can rely on."""

from __future__ import annotations

import copy
import io
import pickle
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.device_mesh import init_device_mesh as torch_init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import meshkit
from meshkit.launch.torch_meshes import GROUPS_METHOD
from tests.faults import error_of
from tests.membership import members_of
from tests.newer_torch import needs_order, needs_slices
from tests.one_step import equals_one_process
from tests.pool import Pool, start_pool
from tests.promises import BUSY

RANKS = 8  # of the pool
NAMES = ("dp_replicate", "dp_shard", "tp")
JOINT = {"dp": "dp_replicate dp_shard"}


def make(shape: tuple[int, ...] = (2, 2, 2), **options: Any) -> DeviceMesh:
    return meshkit.init_device_mesh("cpu", shape, **{"mesh_dim_names": NAMES, **options})


def find_groups_that_exist() -> None:
    root = make(joint=JOINT)
    with meshkit.Mesh.of(root) as mesh:
        before, dp = dist.get_pg_count(), mesh.group("dp_replicate", "dp_shard")
        assert isinstance(root, DeviceMesh)
        assert root["dp"].get_group() is root.get_group("dp") is dp
        assert root["dp_replicate", "dp_shard"]._flatten("dp").get_group() is dp
        assert root["dp_replicate", "dp_shard"]._flatten("d").get_group() is dp
        assert root["tp"]._flatten("t").get_group() is mesh.group("tp")
        assert root["dp_shard", "tp"]["tp"].get_group() is mesh.group("tp")
        parts = root._unflatten(0, (1, 2), ("one", "two"))
        assert parts.get_group("two") is mesh.group("dp_replicate")
        assert root._flatten("all").get_group() is dist.group.WORLD
        assert meshkit.Mesh.of(root["dp_shard", "tp"]) is mesh
        assert meshkit.Mesh.of(copy.deepcopy(root)["tp"]) is mesh
        assert dist.get_pg_count() == before
        for name in NAMES:
            assert members_of(root.get_group(name)) == mesh.peers(name).tolist()
        assert members_of(dp) == mesh.peers("dp_replicate", "dp_shard").tolist()
        unpickled = pickle.loads(pickle.dumps(root))
        assert unpickled == root
        kind, text = error_of(lambda: meshkit.Mesh.of(unpickled)) or ("", "")
        assert kind == "SpecError"
        assert "from_device_mesh" in text


def concatenate_without_a_group() -> None:
    root = make(joint=JOINT)
    with meshkit.Mesh.of(root) as mesh:
        before = dist.get_pg_count()
        joined = DeviceMesh._concatenate([root["dp_replicate"], root["dp_shard"]])
        assert joined._flatten("flat").get_group() is mesh.group("dp_replicate", "dp_shard")
        assert dist.get_pg_count() == before
        assert meshkit.Mesh.of(joined) is mesh


def make_missing_groups_once() -> None:
    root = make()
    with meshkit.Mesh.of(root) as mesh:
        flat = root["dp_shard", "tp"]._flatten("inner")
        again = root["dp_shard", "tp"]._flatten("inner_again")
        cut = flat._unflatten(0, (4, 1), ("a", "b"))
        first = mesh.rank // 4 * 4
        assert members_of(flat.get_group()) == [*range(first, first + 4)]
        assert flat.get_group().rank() == mesh.rank % 4
        assert flat.get_group() is again.get_group() is cut.get_group("a")
        # the world, three axes, this rank alone, and the inner one
        assert mesh.groups_report().communicators == 6
        assert dist.get_process_group_ranks(cut.get_group("b")) == [mesh.rank]


def share_groups_with_other_calls() -> None:
    with meshkit.build_mesh({"ddp": 2, "fsdp": 4}, order="ddp fsdp"):
        start = dist.get_pg_count()
        actor = make((2, 4), mesh_dim_names=["ddp", "fsdp"])
        rollout = make((2, 4, 1), mesh_dim_names=["dp", "infer_tp", "infer_pp"])
        assert dist.get_pg_count() == start
        meshkit.Mesh.of(rollout).close()
        meshkit.Mesh.of(actor).close()


def override_backends() -> None:
    """Override a dim of size 1 by name and one of size 2 by index, beside a real dim of size 1."""
    root = make(
        (1, 4, 1, 2),
        mesh_dim_names=("pp", "fsdp", "one", "tp"),
        backend_override={"pp": "fake", 3: dist.ProcessGroupGloo._Options()},
    )
    with meshkit.Mesh.of(root) as mesh:
        fake, real = root.get_group("pp"), root.get_group("one")
        cut = root["fsdp"]._unflatten(0, (2, 2), ("x", "y"), backend_override={"y": "fake"})
        backends = [dist.get_backend(group) for group in (fake, real, cut.get_group("y"))]
        assert backends == ["fake", "gloo", "fake"]
        assert root["pp", "one"]._flatten("both").get_group() is real
        assert root.get_group("tp") is mesh.group("tp")
        assert root["tp"]._flatten("plain").get_group() is not mesh.group("tp")
        sizes = [len(members_of(root.get_group(name))) for name in ("fsdp", "one", "tp", "plain")]
        assert [*sizes, len(members_of(cut.get_group("x")))] == [4, 1, 2, 2, 2]


def keep_the_order_of_permuted_ranks() -> None:
    order = [7, 0, 6, 1, 5, 2, 4, 3]
    with meshkit.build_mesh(dp=4, tp=2, ranks=order) as mesh:
        root = mesh.device_mesh()
        flat = root._flatten("all")
        cut = root["dp"]._unflatten(0, (2, 2), ("a", "b"))
        assert dist.get_process_group_ranks(flat.get_group()) == order
        assert flat.get_group().rank() == mesh.group_rank() == flat.get_coordinate()[0]
        assert [cut.get_group(name).rank() for name in "ab"] == [*cut.get_coordinate()]
        assert members_of(cut.get_group("a")) == sorted(cut["a"].mesh.tolist())


def equal_that_of_torch_without_names() -> None:
    root = meshkit.init_device_mesh("cpu", (2, 4))
    with meshkit.Mesh.of(root):
        reference = torch_init_device_mesh("cpu", (2, 4))
        for group in reference.get_all_groups():
            dist.destroy_process_group(group)
        assert root == reference
        assert root.mesh_dim_names is None
        own = root.mesh[root.get_coordinate()[0]].tolist()  # type: ignore[index]
        assert members_of(root.get_group(1)) == sorted(own)


def refuse_invalid_arguments() -> None:
    names = {"mesh_dim_names": ("dp", "tp")}
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("cpu", (3, 3)), names),
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
    errors = [error_of(lambda c=call: meshkit.init_device_mesh(*c[0], **c[1])) for call in calls]
    kinds = [error and error[0] for error in errors]
    of_joint = ["SpecError"] * 4
    assert kinds == ["DeviceMeshError", *of_joint, *["DeviceMeshError"] * 6, "UnknownAxisError"]
    assert errors[0] is not None
    assert errors[0][1].endswith("Fix: start 9 ranks.")


def name_a_rank_that_asks_for_something_else_at_once() -> None:
    rank = dist.get_rank()

    def check(odd: int, call: Callable[[], Any]) -> None:
        began = time.monotonic()
        kind, text = error_of(call) or ("", "")
        assert kind == "DisagreementError", text
        assert f"rank {odd}" in text.lower() or f" {odd} " in text, text
        assert time.monotonic() - began < 2 + BUSY

    check(5, lambda: make((4, 1, 2) if rank == 5 else (2, 2, 2)))
    name = "dp_cp" if rank == 3 else "dp"
    check(3, lambda: make(joint={name: "dp_replicate dp_shard"}))
    root = make()
    with meshkit.Mesh.of(root) as mesh:
        dims = ("dp_replicate", "dp_shard") if rank == 2 else ("dp_shard", "tp")
        check(2, lambda: root[dims]._flatten("x"))
        mesh.barrier()
        assert root["dp_shard", "tp"]._flatten("y").size() == 4


def train_fsdp_and_tensor_parallelism_as_one_process() -> None:
    root = make(joint=JOINT)
    with meshkit.Mesh.of(root):
        assert all(equals_one_process(root["dp_replicate", "dp_shard"], root["tp"]))


def save_and_load() -> None:
    """Distributed checkpoints and torch.save take its tensors."""
    root = make(joint=JOINT)
    with meshkit.Mesh.of(root), tempfile.TemporaryDirectory() as own:
        folder = [own]
        dist.broadcast_object_list(folder)
        whole = torch.arange(64.0).reshape(8, 8)
        spread = distribute_tensor(whole, root["dp_shard", "tp"], [Shard(0), Shard(1)])
        dcp.save({"x": spread}, checkpoint_id=folder[0])
        empty = distribute_tensor(torch.zeros(8, 8), root["tp"], [Shard(1)])
        dcp.load({"x": empty}, checkpoint_id=folder[0])
        buffer = io.BytesIO()
        torch.save(spread, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=True)
        assert torch.equal(empty.full_tensor(), whole)
        assert torch.equal(loaded.to_local(), spread.to_local())
        dist.barrier()


def compile_slices() -> None:
    root = make()
    with meshkit.Mesh.of(root):

        def double(x: torch.Tensor) -> torch.Tensor:
            spread = DTensor.from_local(x, root["tp"], [Shard(0)], run_check=False)
            return spread.redistribute(placements=[Replicate()]).to_local() * 2

        if dist.get_rank() == 0:  # a compiler takes seconds a rank; the others take part
            double = torch.compile(double, backend="aot_eager", fullgraph=True)
        x = torch.full((1,), float(dist.get_rank()))
        pair = dist.get_rank() // 2 * 2
        assert double(x).tolist() == [2.0 * pair, 2.0 * pair + 2]


def keep_the_timeout_of_an_axis() -> None:
    with meshkit.build_mesh(dp=4, tp=2, timeout={"tp": 7}) as mesh:
        assert mesh.device_mesh()["tp"]._flatten("t").get_group() is mesh.group("tp")


def join_absent_axes() -> None:
    with meshkit.build_mesh(dp=4, tp=2) as mesh:
        root = mesh.device_mesh(joint={"dp_cp": "dp cp", "none": "pp cp"})
        assert root["dp_cp"].get_group() is mesh.group("dp")
        assert root["none"].get_group() is mesh.group("cp")
        assert root["none"].size() == root.get_group("none").size() == 1
        mesh.device_mesh(joint={"all": "dp tp", "again": "dp tp"})
        error = error_of(lambda: mesh.device_mesh("dp", joint={"dp_cp": "dp cp"}))
        assert error is not None
        assert error[0] == "SpecError"


def refuse_a_joint_name_without_a_group() -> None:
    with meshkit.build_mesh(pp=2, dp=2, tp=2) as mesh:
        kind, text = error_of(lambda: mesh.device_mesh(joint={"x": "dp tp"})) or ("", "")
        assert kind == "SpecError"
        assert "groups=['dp tp']" in text


def refuse_a_group_that_ranks_outside_cannot_help_to_make() -> None:
    with meshkit.build_mesh(dp=2, tp=2, ranks=range(4), groups=["dp tp"]) as mesh:
        if mesh.inside:
            root = mesh.device_mesh()
            assert root._flatten("all").get_group() is mesh.group()
            call = lambda: root["tp"]._unflatten(0, (2, 1), ("a", "b"), {"a": "fake"})  # noqa: E731
            assert (error_of(call) or "")[0] == "SpecError"


def refuse_groups_of_a_closed_mesh() -> None:
    root = make()
    meshkit.Mesh.of(root).close()
    assert (error_of(lambda: root["dp_shard", "tp"]._flatten("x")) or "")[0] == "MeshkitError"


def leave_other_device_meshes_alone() -> None:
    """Use torch's own DeviceMesh after meshkit has replaced the private method."""
    root = make()
    with meshkit.Mesh.of(root) as mesh:
        other = torch_init_device_mesh("cpu", (4, 2), mesh_dim_names=("a", "b"))
        assert other["a", "b"]._flatten("c").get_group() is dist.group.WORLD
        assert (error_of(lambda: meshkit.Mesh.of(other)) or "")[0] == "SpecError"
        pair = mesh.rank // 2 * 2
        for name, ranks in ("a", [*range(mesh.rank % 2, 8, 2)]), ("b", [pair, pair + 1]):
            assert members_of(other.get_group(name)) == ranks
            dist.destroy_process_group(other.get_group(name))


def give_slices_and_refuse_joint_names_on_an_unknown_torch() -> None:
    """Let torch make the groups of a DeviceMesh in an unknown way."""
    with (
        pytest.MonkeyPatch.context() as patch,
        meshkit.build_mesh(dp=2, sp=2, tp=2) as mesh,
    ):
        patch.setattr(DeviceMesh, GROUPS_METHOD, lambda self: None)
        assert mesh.device_mesh("dp tp").mesh_dim_names == ("dp", "tp")
        _, text = error_of(lambda: mesh.device_mesh(joint={"dp_sp": "dp sp"})) or ("", "")
        assert "makes the groups of a DeviceMesh in another way" in text


@pytest.mark.parametrize(
    "check",
    [
        find_groups_that_exist,
        pytest.param(concatenate_without_a_group, marks=needs_slices),
        make_missing_groups_once,
        share_groups_with_other_calls,
        override_backends,
        pytest.param(keep_the_order_of_permuted_ranks, marks=needs_order),
        equal_that_of_torch_without_names,
        refuse_invalid_arguments,
        name_a_rank_that_asks_for_something_else_at_once,
        pytest.param(train_fsdp_and_tensor_parallelism_as_one_process, marks=needs_slices),
        save_and_load,
        compile_slices,
        keep_the_timeout_of_an_axis,
        pytest.param(join_absent_axes, marks=needs_slices),
        refuse_a_joint_name_without_a_group,
        refuse_a_group_that_ranks_outside_cannot_help_to_make,
        refuse_groups_of_a_closed_mesh,
        leave_other_device_meshes_alone,
        give_slices_and_refuse_joint_names_on_an_unknown_torch,
    ],
)
def test_on_eight_ranks(pool: Pool, check: Callable[[], None]) -> None:
    pool.run(check)


def stay_away() -> Any:
    sizes = dict.fromkeys(NAMES, 2)
    with meshkit.build_mesh(sizes, order=NAMES, arrival_timeout=1) as mesh:
        root = mesh.device_mesh()
        began = time.monotonic()
        if mesh.rank == 3:
            time.sleep(2.5)
            return None, 0.0
        error = error_of(lambda: root["dp_shard", "tp"]._flatten("inner"))
        return error, time.monotonic() - began


def test_a_rank_that_asks_for_nothing_is_named_within_arrival_timeout() -> None:
    with start_pool(8) as ranks:
        answers = ranks.run(stay_away)
    for rank in {*range(8)} - {3}:
        error, seconds = answers[rank]
        assert error[0] == "RankTimeoutError"
        assert "Missing: 3 (" in error[1]
        assert seconds < 3 + BUSY
