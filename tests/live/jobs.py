"""What the ranks of the live tests run. No pytest here: every child imports this."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.launch.inside import timeout_of
from meshkit.live import create

Request = dict[str, Any]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def one_hot_sum(mesh: meshkit.Mesh, *axes: str) -> list[int]:
    """Who takes part in an all-reduce over a group, as the group itself shows."""
    seen = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    seen[mesh.rank] = 1
    dist.all_reduce(seen, group=mesh.group(*axes))
    return [int(rank) for rank in seen.nonzero()]


def in_order(mesh: meshkit.Mesh, *axes: str) -> list[int]:
    """The members of a group by their place in it, as a gather shows."""
    group = mesh.group(*axes)
    found = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(found, torch.tensor([mesh.rank]), group=group)
    return [int(rank) for rank in found]


def members_of_every_group(requests: list[Request], asked: list[list[tuple[str, ...]]]) -> Any:
    """For each request and each set of axes: coordinate, all-reduced members, members in order."""
    report = []
    for request, axes_sets in zip(requests, asked, strict=True):
        with meshkit.build_mesh(**request) as mesh:
            if mesh.rank not in mesh.layout:
                report.append(None)
                continue
            rows = {
                axes: (one_hot_sum(mesh, *axes), in_order(mesh, *axes), mesh.group(*axes).rank())
                for axes in axes_sets
            }
            report.append((mesh.coordinate, rows))
    return report


def getters(folder: str) -> Any:
    """Every getter on rank 5 alone, while the others are somewhere else."""
    with meshkit.build_mesh(dp=4, sp=2, tp=1) as mesh:
        done = Path(folder) / "done"
        if mesh.rank != 5:
            while not done.exists():  # not in a collective: rank 5 must not need us
                time.sleep(0.01)
            return None
        before = live_groups()
        asked: list[tuple[str, ...]] = [(), ("dp",), ("sp",), ("tp",), ("dp", "sp")]
        groups = [mesh.group(*axes) for axes in asked]
        world = dist.group.WORLD
        answers = {
            "coordinate": mesh.coordinate,
            "sizes": [mesh.size(), mesh.size("dp"), mesh.size("dp", "sp"), mesh.size("tp")],
            "peers": [mesh.peers("dp").tolist(), mesh.ranks("sp").tolist(), mesh.peers().tolist()],
            "neighbors": [
                mesh.neighbor("dp"),
                mesh.neighbor("dp", -1),
                mesh.neighbor("dp", 3, wrap=False),
                mesh.neighbor("sp", wrap=False),
            ],
            "steps": mesh.batch(global_batch=1024, micro_batch=4).accumulation_steps,
            "is_world": [group is world for group in groups],
            "again": [
                mesh.group(*axes) is group for axes, group in zip(asked, groups, strict=True)
            ],
            "own": mesh.coordinate is not mesh.coordinate,
            "a list": refusal(mesh, ["dp", "sp"]),
            "tp_ranks": dist.get_process_group_ranks(mesh.group("tp")),
            "repr": repr(mesh),
            "str": str(mesh),
        }
        mesh.device_mesh()
        mesh.device_mesh("(dp sp) tp")
        made = live_groups() - before
        done.touch()
        return answers, made


def singletons() -> Any:
    """Axes of size 1 share one group; a world of such groups costs one a rank."""
    meshkit.init()
    before = live_groups()
    with meshkit.build_mesh(dp=2, sp=1, tp=1, pp=1) as mesh:
        alone = mesh.group("tp")
        shared = all(mesh.group(axis) is alone for axis in ("sp", "tp", "pp"))
        return shared, one_hot_sum(mesh, "sp"), live_groups() - before


def refusal(mesh: meshkit.Mesh, axis: Any) -> str:
    """The first line of what ``mesh.group`` says, or that it said nothing."""
    try:
        mesh.group(axis)
    except meshkit.MeshkitError as error:
        return str(error).partition("\n")[0]
    return "nothing was raised"


def closing(times: int) -> Any:
    """Descriptors and threads after each of many builds."""
    meshkit.init()
    counts = []
    for _ in range(times):
        more = ["sp dp"] if create.KEEPS_ORDER else []
        with meshkit.build_mesh(dp=2, sp=2, groups=more) as mesh:
            for axes in (("dp",), ("sp",), *(tuple(axes.split()) for axes in more), ()):
                one_hot_sum(mesh, *axes)
            inside = (descriptors(), threads())
        mesh.close()
        counts.append((descriptors(), threads()))
    dist.barrier()
    return inside, counts, repr(mesh)


def live_groups() -> int:
    """How many process groups torch holds. It has no public name that counts singletons."""
    return len(dist.distributed_c10d._world.pg_names)


def threads() -> int:
    """Threads of the process, those of torch's C++ included."""
    time.sleep(0.1)  # a thread that was joined is in the list for a moment longer
    return len(os.listdir("/proc/self/task"))


def closed_mesh() -> str:
    mesh = meshkit.build_mesh(dp=2)
    mesh.group("dp")  # what was handed out once is not handed out for ever
    mesh.close()
    try:
        mesh.group("dp")
    except meshkit.MeshkitError as error:
        return str(error)
    return "nothing was raised"


def refused(requests: list[Request], *, joined: bool) -> Any:
    """For each bad request: the error, and whether anything was made for it."""
    if joined:
        meshkit.init()
    told = []
    for request in requests:
        before = live_groups()
        sizes = request.pop("sizes", None)
        try:
            meshkit.build_mesh(sizes, **request)
            told.append(("accepted", "", True))
        except meshkit.MeshkitError as error:
            made = live_groups() != before or dist.is_initialized() != joined
            told.append((type(error).__name__, str(error), made))
    return told


def failing_creation(at: int, told_of_each: bool) -> Any:
    """new_group fails at its n-th call, on every rank: what is left?"""
    meshkit.init()
    real, calls = dist.new_group, []
    if told_of_each:
        create.count_on = tell_each

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == at:
            dist.barrier()  # the fault comes when nobody is connecting any more
            raise RuntimeError("planted")
        return real(*args, **kwargs)

    before = (descriptors(), threads())
    create.dist.new_group = failing
    try:
        meshkit.build_mesh(dp=2, sp=2)
    except RuntimeError as error:
        told = str(error)
    finally:
        create.dist.new_group = real
    left = (descriptors(), threads())
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        return told, len(calls), before, left, one_hot_sum(mesh, "dp")


def tell_each(groups: int) -> bool:
    """In place of ``inside.count_on``: torch is told of groups of others one by one."""
    return groups == 0


def names(told_of_each: bool) -> Any:
    """The names of a mesh's groups, and what torch counts; a group of the user's own works on."""
    if told_of_each:
        create.count_on = tell_each
    with meshkit.build_mesh(dp=2, sp=2, tp=2, groups=["dp tp"]) as mesh:
        groups = [mesh.group(*axes) for axes in ((), ("dp",), ("sp",), ("tp",), ("dp", "tp"))]
        own, ones = dist.new_group([1, 2, 5]), torch.ones(1)
        if mesh.rank in (1, 2, 5):
            dist.all_reduce(ones, group=own)
        return [group.group_name for group in groups], dist.get_pg_count(), int(ones)


def one_never_builds(folder: str) -> Any:
    """Rank 1 comes to build_mesh when the others have given up; then all build."""
    world, gave_up = meshkit.init(), Path(folder) / "gave_up"
    while world.rank == 1 and not gave_up.exists():
        time.sleep(0.01)
    groups, began = live_groups(), time.monotonic()
    try:
        meshkit.build_mesh(dp=2, sp=2, arrival_timeout=1)
        first: Any = "built"
    except meshkit.RankTimeoutError as error:
        first = str(error), error.missing_ranks, live_groups() - groups
        gave_up.touch()
    seconds = time.monotonic() - began
    with meshkit.build_mesh(dp=2, sp=2, arrival_timeout=20) as mesh:
        return first, seconds, one_hot_sum(mesh, "sp")


def wrong_group() -> Any:
    """torch makes another group than it was asked for."""
    meshkit.init()
    before = live_groups()
    real = dist.get_process_group_ranks
    create.dist.get_process_group_ranks = lambda group: real(group)[::-1]
    try:
        meshkit.build_mesh(dp=2, sp=2)
    except meshkit.MeshkitError as error:
        return str(error), live_groups() - before
    finally:
        create.dist.get_process_group_ranks = real
    return "accepted"


def on_torch_that_sorts(request: Request) -> str:
    """A torch below 2.13, as far as meshkit can tell."""
    create.KEEPS_ORDER = False
    try:
        meshkit.build_mesh(**request)
    except meshkit.SpecError as error:
        return f"{error} {dist.is_initialized()}"
    return "accepted"


def foreign_group(path: str) -> Any:
    """A default group that someone else made, with a timeout of its own."""
    from datetime import timedelta

    who = meshkit.detect()
    limit = timedelta(seconds=77)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{path}",
        rank=who.rank,
        world_size=who.world_size,
        timeout=limit,
    )
    world = meshkit.init()
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        times = [timeout_of(mesh.group(axis)) for axis in ("dp", "sp")]
        members = one_hot_sum(mesh, "dp")
    with meshkit.build_mesh(dp=2, sp=2, timeout=33) as mesh:
        own = timeout_of(mesh.group("dp"))
        with mesh.guard(timeout=7), meshkit.build_mesh(dp=2, sp=2) as inner:
            times.append(timeout_of(inner.group("dp")))
    meshkit.shutdown()
    still = dist.is_initialized()
    dist.destroy_process_group()
    return world.launcher, world.backend, str(world.device), times, own, members, still


def own_times() -> Any:
    """A mesh with a timeout of its own: also where it spans the world, and at its barrier."""
    meshkit.init()
    with meshkit.build_mesh(dp=2, timeout=2, arrival_timeout=20) as mesh:
        times = [timeout_of(mesh.group()), timeout_of(mesh.group("dp"))]
        is_world = mesh.group("dp") is dist.group.WORLD
        if mesh.rank == 0:
            try:
                mesh.barrier()
            except meshkit.RankTimeoutError as error:
                return times, is_world, str(error).splitlines()[0]
        time.sleep(5)
        return times, is_world, None


def not_built_and_fixed(request: Request) -> Any:
    """The fix of a group that was not built, typed as it stands."""
    with meshkit.build_mesh(**request) as mesh:
        try:
            mesh.group("tp", "expert")
        except meshkit.SpecError as error:
            fix = str(error).splitlines()[-1].removeprefix("  Fix: ").removesuffix(".")
    with eval(f"meshkit.{fix}") as mesh:
        return fix, list(mesh.layout.axes), in_order(mesh, "tp", "expert")


def inherited_times() -> Any:
    meshkit.init(timeout=44)
    with meshkit.build_mesh(dp=2) as world_mesh, meshkit.build_mesh(dp=1, sp=2) as mesh:
        return [timeout_of(world_mesh.group("dp")), timeout_of(mesh.group("dp"))]


def absent_at_barrier() -> Any:
    """Rank 1 never comes to the barrier of its sp group."""
    mesh = meshkit.build_mesh(dp=2, sp=2)
    if mesh.rank == 1:
        time.sleep(4)
        return "absent"
    began = time.monotonic()
    try:
        mesh.barrier("sp", timeout=1)
    except meshkit.RankTimeoutError as error:
        return str(error), time.monotonic() - began
    return "passed"


def device_meshes() -> Any:
    """Names, shapes and ranks of DeviceMeshes of several patterns, on a pipeline of two."""
    with meshkit.build_mesh(pp=2, dp=2, sp=2, tp=1, groups=["pp dp"]) as mesh:
        found = {}
        for pattern in (None, "(dp sp) tp", "dp sp", "tp", "(pp dp) sp", "(pp dp sp tp)", "pp"):
            made = mesh.device_mesh(pattern)
            groups = [dist.get_process_group_ranks(made.get_group(i)) for i in range(made.ndim)]
            found[pattern] = (made.mesh_dim_names, made.mesh.tolist(), groups)
        return found


def refused_patterns(patterns: list[str]) -> list[str]:
    told = []
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        for pattern in patterns:
            try:
                mesh.device_mesh(pattern)
                told.append("accepted")
            except meshkit.MeshkitError as error:
                told.append(f"{type(error).__name__}: {error}")
    return told


def swapped_groups() -> str:
    """Groups of the wrong axis, handed to the room that makes DeviceMeshes."""
    from meshkit.live.device_mesh import device_mesh

    swap = {("dp",): ("sp",), ("sp",): ("dp",)}
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        try:
            device_mesh(mesh.layout, mesh.rank, lambda *a: mesh.group(*swap[a]), "cpu", "dp sp")
        except meshkit.SpecError as error:
            return str(error)
    return "accepted"


def fsdp_and_tensor() -> list[float]:
    """FSDP2 over (dp sp), and a DTensor over dp: the forms torch itself asks for."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    with meshkit.build_mesh(dp=2, sp=2, tp=1) as mesh:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4)
        whole = torch.nn.Linear(8, 4)
        whole.load_state_dict(model.state_dict())
        fully_shard(model, mesh=mesh.device_mesh("(dp sp)"))
        inputs = torch.arange(32.0).reshape(4, 8) / 32
        model(inputs[mesh.rank : mesh.rank + 1]).sum().backward()
        (whole(inputs).sum() / 4).backward()
        grad = model.weight.grad.full_tensor()
        spread = distribute_tensor(inputs, mesh.device_mesh("dp"), [Shard(0)])
        assert whole.weight.grad is not None
        return [
            float((grad - whole.weight.grad).abs().max()),
            float((spread.full_tensor() - inputs).abs().max()),
            float(spread.to_local().shape[0]),
        ]


def dry_run(rank: int, count: int) -> Any:
    """One rank of a world that is not there, on torch's fake backend."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
    with meshkit.build_mesh(sp=2, tp=8) as mesh:
        ranks = {axis: dist.get_process_group_ranks(mesh.group(axis)) for axis in ("sp", "tp")}
        found = mesh.coordinate, ranks, mesh.size("dp")
    dist.destroy_process_group()
    return found


def after_shutdown() -> list[str]:
    """What a mesh says when its job has been left, also when another was joined."""
    mesh = meshkit.build_mesh(dp=2)
    mesh.group("dp")  # what was handed out once is not handed out for ever
    told = []
    for _ in range(2):
        meshkit.shutdown()
        try:
            mesh.group("dp")
            told.append("handed out")
        except meshkit.MeshkitError as error:
            told.append(str(error))
        meshkit.init()
    mesh.close()
    return [*told, repr(mesh)]


def as_device_mesh_on_fake(sizes: list[tuple[str, int]]) -> list[Any]:
    """Torch's own answers for every rank of a world, one at a time on its fake backend."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    names, shape = zip(*sizes, strict=True)
    count = int(torch.tensor(shape).prod())
    answers = []
    for rank in range(count):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
        made = init_device_mesh("cpu", shape, mesh_dim_names=names)
        groups = {n: dist.get_process_group_ranks(made.get_group(n)) for n in names}
        answers.append((made.get_coordinate(), groups, made.mesh.tolist()))
        dist.destroy_process_group()
    return answers


def times_by_axis(timeout: Any) -> Any:
    """What torch keeps for each group; dp sp is dp here, whose time is asked for beside it."""
    meshkit.init(arrival_timeout=60)

    def seconds(mesh: meshkit.Mesh, axes: str) -> float:
        limit = timeout_of(mesh.group(*axes.split()))
        assert limit is not None
        return limit.total_seconds()

    with meshkit.build_mesh(dp=2, sp=1, tp=2, timeout={"tp": timeout["tp"]}) as mesh:
        times = {axes: seconds(mesh, axes) for axes in ("dp", "tp", "dp sp", "")}
        is_world = mesh.group() is dist.group.WORLD
    with meshkit.build_mesh(dp=4, timeout={"dp": 33}) as mesh:
        own = {axes: seconds(mesh, axes) for axes in ("dp", "")}
        shared = mesh.group() is dist.group.WORLD
    return times, own, shared, is_world
