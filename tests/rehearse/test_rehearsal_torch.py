"""Ways of torch to communicate, played on recording groups: a table of programs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import meshkit
from meshkit.mesh.mesh import Mesh
from meshkit.rehearse.report import RehearsalReport
from meshkit.testing import rehearse

SIZE = 4


def expect(tensors: Tensor | Sequence[Tensor], value: float, *shape: int) -> None:
    """Check the shape of tensors and, if they have values, that all are equal to one number."""
    for tensor in [tensors] if isinstance(tensors, Tensor) else tensors:
        assert tuple(tensor.shape) == shape
        assert tensor.is_meta or bool((tensor == value).all())


def exchange(mesh: Mesh) -> None:
    """Send to the next rank and receive from the previous one, in one batch."""
    group, rank = mesh.group("dp"), mesh.rank
    sent, received = torch.ones(4), torch.ones(4)
    sends = dist.P2POp(dist.isend, sent, (rank + 1) % SIZE, group)
    receives = dist.P2POp(dist.irecv, received, (rank - 1) % SIZE, group)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()
    with coalesce(mesh) as works:
        dist.isend(sent, (rank + 1) % SIZE, group=group)
        dist.irecv(received, (rank - 1) % SIZE, group=group)
    works.wait()
    expect(received, 0, 4)


def coalesce(mesh: Mesh) -> dist._CoalescingManager:
    """Return torch's manager, which starts the operations of its block together."""
    return dist._coalescing_manager(mesh.group("dp"), mesh.device, async_ops=True)


def manage(mesh: Mesh) -> None:
    """Run coalesced collectives by torch's manager, which FSDP and Megatron use."""
    group = mesh.group("dp")
    parts = [torch.ones(3) for _ in range(2)]
    with coalesce(mesh) as works:
        for part in parts:
            dist.all_reduce(part, group=group)
    works.wait()
    expect(parts, SIZE, 3)
    wholes = [torch.zeros(3 * SIZE) for _ in range(2)]
    with coalesce(mesh) as works:
        for whole in wholes:
            dist.all_gather_into_tensor(whole, torch.ones(3), group=group)
    works.wait()
    expect(wholes, 1, 3 * SIZE)
    with coalesce(mesh) as works:
        for part, whole in zip(parts, wholes, strict=True):
            dist.reduce_scatter_tensor(part, whole, group=group)
    works.wait()
    expect(parts, SIZE, 3)


def coalesce_lists(mesh: Mesh) -> None:
    """Run the coalesced collectives of torch.distributed."""
    parts = [torch.ones(2), torch.ones(2)]
    dist.all_reduce_coalesced(parts, group=mesh.group("dp"))
    lists = [[torch.zeros(2), torch.zeros(2)] for _ in range(SIZE)]
    dist.all_gather_coalesced(lists, parts, group=mesh.group("dp"))
    expect(lists[SIZE - 1], SIZE, 2)


def use_functional(mesh: Mesh) -> None:
    """Run functional collectives, also those with a gradient."""
    group, x = mesh.group("dp"), torch.ones(8)
    expect(functional.all_reduce(x, "sum", group), SIZE, 8)
    expect(functional.all_gather_tensor(torch.ones(2, 2), 1, group), 1, 2, 8)
    expect(functional.reduce_scatter_tensor(x, "avg", 0, group), 1, 2)
    expect(functional.all_to_all_single(x, None, None, group), 1, 8)
    expect(functional.broadcast(x, 0, group), 1, 8)
    expect(functional.all_reduce_coalesced([x, x], "sum", group), SIZE, 8)
    expect(functional.all_gather_into_tensor_coalesced([x, x], group), 1, 32)
    expect(functional.reduce_scatter_tensor_coalesced([x, x], "sum", [0, 0], group), SIZE, 2)
    w = torch.ones(8, requires_grad=True)
    y = functional.all_to_all_single_autograd(w, None, None, group)
    y = functional.all_gather_tensor_autograd(y, 0, group)
    y = functional.reduce_scatter_tensor_autograd(y, "sum", 0, group)
    y.square().sum().backward()  # torch 2.11 takes no gradient that is expanded
    assert w.grad is not None


def pass_objects(mesh: Mesh) -> None:
    """Pass pickled objects, whose sizes are values."""
    group, everything = mesh.group("dp"), [None] * SIZE
    dist.all_gather_object(everything, "a", group=group)
    assert everything == ["a"] * SIZE
    scattered = [None]
    dist.scatter_object_list(scattered, [*range(SIZE)] if mesh.rank == 0 else None, group=group)
    assert scattered == [mesh.rank]


def compile_all(mesh: Mesh) -> None:
    """Compile collectives, DDP, FSDP2 and tensor parallelism."""
    group, root = mesh.group("dp"), mesh.device_mesh("dp")

    @torch.compile(backend="eager", fullgraph=True)
    def double(x: Tensor) -> Tensor:
        return 2 * functional.all_reduce(x, "sum", group)

    @torch.compile(backend="eager")
    def reduce(x: Tensor) -> Tensor:
        dist.all_reduce(x, group=group)
        return x + 1

    expect(double(torch.ones(2)), 2 * SIZE, 2)
    expect(reduce(torch.ones(2)), SIZE + 1, 2)
    sharded, split = (nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)) for _ in range(2))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    for model in (
        DistributedDataParallel(nn.Linear(4, 4), process_group=group),
        fully_shard(sharded, mesh=root),
        parallelize_module(split, root, plan),
    ):
        torch.compile(model, backend="eager")(torch.ones(2, 4)).sum().backward()


PROGRAMS = exchange, manage, coalesce_lists, use_functional, pass_objects
# the operations of a rank in all of them
OPERATIONS = {
    **{"send": 2, "recv": 2, "scatter": 2},
    **{"all_reduce": 4, "all_gather": 8, "reduce_scatter": 5, "all_to_all": 3},
}


def run(*programs: Callable[[Mesh], None]) -> None:
    """Run programs on a mesh of one axis."""
    warnings.simplefilter("ignore")  # torch renames some of these calls
    with meshkit.build_mesh(dp=SIZE) as mesh:
        for program in programs:
            program(mesh)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_way_to_communicate_is_played(device: str) -> None:
    report = rehearse(run, SIZE, PROGRAMS, ranks="all", device=device)
    report.raise_if_mismatched()
    names = [operation.name for operation in report.collectives(3)]
    assert {name: names.count(name) for name in OPERATIONS} == OPERATIONS


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_compiled_programs_are_played(device: str) -> None:
    report = rehearse(run, SIZE, (compile_all,), ranks=[0, 3], device=device)
    report.raise_if_mismatched()
    names = [operation.name for operation in report.collectives(3)]
    assert {*names} >= {"all_reduce", "all_gather", "reduce_scatter"}


def pipeline(
    names: Sequence[str], odd: int = -1, size: int = SIZE, has_fault: bool = False
) -> None:
    """Build a mesh of pipelines, and run schedules on it."""
    with meshkit.build_mesh(pp=size, dp=-1) as mesh:
        for name in names:
            run_schedule(mesh, name, odd)
        if has_fault and 1 < mesh.coordinate["dp"] < mesh.size("dp") - 1:
            dist.all_reduce(torch.ones(1), group=mesh.group("pp"))


def run_schedule(mesh: Mesh, name: str, odd: int) -> None:
    """Run two steps of a schedule of torch, in which a stage may run other micro batches."""
    schedule, rank, size = getattr(schedules, name), mesh.coordinate["pp"], mesh.size("pp")
    per_rank = 2 if issubclass(schedule, schedules.PipelineScheduleMulti) else 1
    is_v = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    last = 2 * size - 1 - rank if is_v else rank + size
    indices = [rank, last][:per_rank]
    stages = [
        PipelineStage(nn.Linear(8, 8), n, per_rank * size, mesh.device, group=mesh.group("pp"))
        for n in indices
    ]
    runner = schedule(
        stages if per_rank > 1 else stages[0],
        n_microbatches=2 * size - 4 * (rank == odd),
        loss_fn=nn.functional.mse_loss,
    )
    x = torch.ones(32, 8)
    for _ in range(2):
        inputs = [x] if 0 in indices else []
        runner.step(*inputs, **{"target": x} if per_rank * size - 1 in indices else {})


SCHEDULES = (
    "ScheduleGPipe",
    "Schedule1F1B",
    "ScheduleInterleaved1F1B",
    "ScheduleLoopedBFS",
    "ScheduleInterleavedZeroBubble",
    "ScheduleZBVZeroBubble",
    "ScheduleDualPipeV",
)


# one stage a rank, two, and two in the order of a V
QUICK = ("ScheduleGPipe", "ScheduleInterleaved1F1B", "ScheduleZBVZeroBubble")
OTHERS = tuple(name for name in SCHEDULES if name not in QUICK)


@pytest.mark.parametrize(
    "names", [QUICK, pytest.param(OTHERS, marks=pytest.mark.slow, id="others")]
)
def test_every_schedule_of_pipelining_is_played(names: tuple[str, ...]) -> None:
    report = rehearse(pipeline, SIZE, (names,), ranks="all")
    report.raise_if_mismatched()
    for rank in range(SIZE):  # two steps of eight micro batches
        sent = sum(op.name == "send" for op in report.collectives(rank))
        assert sent >= 2 * 8 * len(names)


def test_a_stage_with_another_number_of_micro_batches_is_named() -> None:
    report = rehearse(pipeline, SIZE, (("ScheduleInterleaved1F1B",), 2), ranks="all")
    assert any(2 in mismatch.ranks for mismatch in report.mismatches)


def report_of_corners(name: str, size: int, count: int, fault: bool = False) -> RehearsalReport:
    """Rehearse the corners of some pipelines."""
    report = rehearse(pipeline, count * size, ((name,), -1, size, fault), nodes=count)
    report.raise_if_mismatched()
    return report


# the others do as one of these: all forward first, or several stages a rank
SLOW = ("ScheduleInterleaved1F1B", "ScheduleZBVZeroBubble")


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Schedule1F1B", 4),
        *(pytest.param(name, 4, marks=pytest.mark.slow) for name in SLOW),
        *(pytest.param(name, 8, marks=pytest.mark.nightly) for name in ("Schedule1F1B", *SLOW)),
    ],
)
def test_a_rank_of_each_stage_is_played_and_stands_for_others(name: str, size: int) -> None:
    report = report_of_corners(name, size, 64)
    assert report.warnings == ()
    if name == "Schedule1F1B":  # whose stages all do different things
        assert {report.names.coordinate(rank)["pp"] for rank in report.ranks} == {*range(size)}
        assert len(report.ranks) - len(report.witnesses) <= 2 * 3 * 3 + size


def test_pipelines_that_do_other_than_the_corners_are_a_warning() -> None:
    report = report_of_corners("Schedule1F1B", 4, 8, fault=True)
    assert "does not do the same as" in report.warnings[0]
    assert "all_reduce" in report.warnings[0]
