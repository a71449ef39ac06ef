"""Each error and how it is raised.

test_messages.py compares its class, attributes and text with the snapshot. A new ``raise`` in
a file without torch needs a case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

import meshkit
from meshkit import (
    BatchPlan,
    BatchSchedule,
    Layout,
    SequencePlan,
    Topology,
    build_mesh,
    factor_world,
    plan_redistribution,
    split_world,
    stream_seed,
)
from meshkit.bench.limits import SavedRun, parse_saved, resolve_limits
from meshkit.bench.report import run_to_json
from meshkit.bench.results import Case, parse_targets, sweep_sizes
from meshkit.call import quotes_call
from meshkit.compare.parity import Held, Rules, find_differences
from meshkit.data.batch import resolve_data_axes
from meshkit.data.canonical import canonical_text
from meshkit.data.conflicts import EqualAxes, Row, refused_error
from meshkit.data.epoch import Epoch, SampleOrder, parse_count
from meshkit.data.seeds import select_coordinate, select_streams
from meshkit.errors import MeshkitError
from meshkit.interop import deepspeed
from meshkit.launch.detect import check_url
from meshkit.launch.judges import Arrival, Arrivals, Judge, Process, RankState, Sighting, all_same
from meshkit.launch.regroup import RecoveryFacts, Regrouping, check_committed, find_sources, regroup
from meshkit.layout.axes import resolve_axes
from meshkit.layout.crossings import check_policies
from meshkit.layout.draw import draw_page, join_pages
from meshkit.layout.group_plan import GroupPlan, parse_group
from meshkit.layout.names import parse_axis_pattern
from meshkit.layout.position import Position
from meshkit.layout.sequence import plan_sequence
from meshkit.layout.sizes import merge_sizes, view_sizes
from meshkit.layout.topology import parse_hostfile
from meshkit.norm.shares import (
    NormLayout,
    form_error,
    main_grad_error,
    parse_max_norm,
    parse_order,
    sparse_error,
    unequal_error,
)
from meshkit.plan.memory import ModelShape
from meshkit.plan.search import fastest_cost
from meshkit.plan.step_time import MACHINES, TrainingJob
from meshkit.redistribute.dim_sizes import infer_dim_sizes
from meshkit.redistribute.move import check_gradient, check_op, unmarked_axes
from meshkit.redistribute.pattern import check_globs, parse_layout, parse_pattern
from meshkit.rehearse.mismatches import find_mismatches
from meshkit.rehearse.record import GroupRecord, Names, Operation, Trace
from meshkit.rehearse.report import RehearsalReport
from meshkit.transfer.state import StatePatterns, plan_moves
from meshkit.transfer.whole import whole_sizes
from tests.bench import example_runs
from tests.launch import recorded

SHAPES = {"w": (2, 4), "v": (3,)}


def error_of(call: Callable[[], object]) -> MeshkitError:
    """Return the error that a call raises."""
    try:
        call()
    except MeshkitError as error:
        return error
    raise AssertionError("the call raises no error")


LAYOUT = Layout(dp=4, sp=2, tp=1)
PLAN = BatchPlan.solve(dp=4, global_batch=16, micro_batch=2)
EPOCH = Epoch(100, replace(PLAN, data_index=0), True, 1, number=2)
STATE = EPOCH.state(1)


@quotes_call("mesh.check_parameters", by_name=("model",))
def check_parameters(model: object, *, axes: object = None) -> object:
    return EqualAxes.of({"dp": 2, "rows": 4, "tp": 2}, axes)


@quotes_call("mesh.seed")
def mesh_seed(*, vary: object) -> object:
    return select_coordinate(LAYOUT, 0, vary)


@quotes_call("mesh.seed")
def mesh_seed_on_rank_9(*, vary: object) -> object:
    return select_coordinate(LAYOUT, 9, vary)


@quotes_call("mesh.rng.load_state_dict", by_name=("states",))
def load_streams(states: dict[str, list[int]], coordinate: dict[str, int]) -> object:
    return select_streams(states, coordinate)


@quotes_call("mesh.batch")
def mesh_batch_of_x_and_y(*, global_batch: int, micro_batch: int) -> object:
    return resolve_data_axes(None, {"x": 4, "y": 2})


@quotes_call("mesh.sampler", by_name=("plan",))
def mesh_sampler(length: int, plan: BatchPlan, **changes: Any) -> object:
    return Epoch.of(length, plan, SampleOrder(shuffle=True, **changes))


@quotes_call("mesh.sampler", by_name=("dataset", "plan"))
def sample(self: object, dataset: object, plan: BatchPlan) -> None:
    """Take a dataset and a plan."""


@quotes_call("mesh.sequence")
def mesh_sequence(length: int, *, axes: str) -> object:
    return plan_sequence(Layout(cp=2, sp=2), tuple(axes.split()), length)


@quotes_call("mesh.grad_norm", by_name=("parameters",))
def grad_norm(
    parameters: dict[str, tuple[int, ...]],
    *,
    layout: object = {},
    sizes: object = None,
    **axes: int,
) -> object:
    """Take the shapes of parameters for the parameters."""
    parsed = NormLayout.of(axes or {"dp": 4, "tp": 2}, layout, sizes)
    check_globs(parsed.unmatched(parameters), parameters, "parameter")
    return [parsed.shares(name, shape, is_plain=True) for name, shape in parameters.items()]


@quotes_call("mesh.clip_grad_norm", by_name=("model",))
def clip_grad_norm(model: object, max_norm: object, norm_type: object = 2.0) -> object:
    return parse_max_norm(max_norm), parse_order(norm_type)


@quotes_call("mesh.grad_norm", by_name=("model",))
def refuse_form(
    model: object, forms: dict[int, str], sides: object = None, **options: bool
) -> object:
    layout = NormLayout.of({"dp": 2, "ep": 2}, sides or {})
    raise form_error(Layout(dp=2, ep=2), layout, "w", forms, **options)


@quotes_call("mesh.clip_grad_norm", by_name=("model",))
def refuse_call(model: object, max_norm: float, error: Exception) -> object:
    raise error


def refuse_unequal(ranks: str, name: str, first: str, other: str) -> object:
    contents = dict.fromkeys(range(3), first) | {3: other}
    error = unequal_error(Layout(dp=2, tp=2), Row(ranks, name, first), contents)
    return refuse_call(None, 1.0, error)


FORMS = dict.fromkeys((0, 2), "missing") | dict.fromkeys((1, 3), "torch.float32 (2, 4)")


@quotes_call("compare_meshes", by_name=("step",))
def compare_weight(step: object, mesh: str, **rules: Any) -> object:
    """Compare a weight of 4 ones, of which rank 0 holds a half and rank 1 nothing."""
    parts = {0: np.full((4, 1), 0.5), 1: np.zeros((4, 1))}
    held = [Held(m, Layout(tp=2), {"w": parts}, {"w": np.ones((4, 1))}) for m in (mesh, "dp=2")]
    return find_differences(held, Rules(**{"layout": {}, "reduce": {}} | rules))


@quotes_call("sampler.load_state_dict", by_name=("state",))
def load_state(state: object) -> object:
    return EPOCH.resume(state)


@quotes_call("sampler.load_state_dict", by_name=("state",))
def load_state_of_other_data(state: object) -> object:
    return replace(EPOCH, length=90, seed=3).resume(state)


@quotes_call("sampler.state_dict")
def save_state(*, steps: int) -> object:
    return parse_count("steps", steps, 7)


@quotes_call("sampler.micro_batches")
def read_step(step: int) -> object:
    return EPOCH.micro_batches(step)


CONFIG = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}

SIZES = {"hidden": 4096, "layers": 32, "heads": 32, "vocab": 128256, "ffn": 14336}
TOPOLOGY = Topology.even(8, nodes=1)
AXES = {"dp": 4, "tp": 2}
MESH = "dp=4 tp=2"
PLACE = {"dp": 1, "tp": 0}


def infer(text: str, shape: tuple[int, ...], **sizes: int) -> object:
    """Infer the sizes of a pattern from the shape of a local tensor."""
    return infer_dim_sizes(parse_pattern(text), AXES, PLACE, shape, sizes)


def refuse_gradient(text: str) -> None:
    """Check the gradient of a pattern that lacks a mark."""
    pattern = parse_pattern(text)
    check_gradient(pattern, unmarked_axes(pattern))


REGROUPED = cast(Regrouping, regroup(Layout(dp=2, tp=2), range(4)))
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "n[1-2]",
}

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}

POD = {"RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "pod-0", "MASTER_PORT": "23456"}
POD |= {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "4"}

TWO_HALVES = {"OMPI_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_SIZE": "4"}


def train(rank: int) -> None:
    """Expect a rank, as torch.multiprocessing.spawn passes it."""


def arrivals(*requests: dict[str, str] | None, **options: Any) -> Arrivals:
    """Return what ranks have left, None for a rank that is missing."""
    given = {rank: facts for rank, facts in enumerate(requests) if facts is not None}
    arrived = {rank: Arrival(Process("n1", 70 + rank), facts) for rank, facts in given.items()}
    return Arrivals(range(len(requests)), arrived, expired=True, **options)


@quotes_call("build_mesh")
def judge(judge: Judge, seen: Arrivals) -> None:
    decision = judge(seen)
    assert decision is not None
    decision.check(1)


DP4 = {"call": "build_mesh", "sizes": "dp=4"}
SAME = all_same("ranks disagree about the mesh; no process group was created.", seconds=30)
FOUR_NODES = Topology.even(8, nodes=4)
solve, ramp_up, detect = BatchPlan.solve, BatchSchedule.ramp_up, meshkit.detect
move = partial(plan_redistribution, MESH)
FACT = [{"o": 4, "i": 2}, "float32", False]  # of a tensor of a state
PATTERNS = StatePatterns.of({"*.w": "o/dp i -> o/tp i", "*": "o i -> o i"})
LAYOUTS = Layout(pp=2, dp=2), Layout(tp=2, ranks=[4, 5])
state = partial(plan_moves, PATTERNS, LAYOUTS, dtype="", call="mesh.transfer")


FUSED = {"w": "(qkv h/tp) i"}


def whole(*shapes: list[int], side: str = "o/tp i", **sizes: int) -> object:
    """Find the size of a tensor from its parts along tp."""
    tables = [({"w": (shape, "float32")}, [rank]) for rank, shape in enumerate(shapes)]
    return whole_sizes(Layout(tp=2), parse_layout({"w": side}), tables, 0, sizes)


ENDED = Sighting(RankState.ENDED, "host n2, pid 71")


SAVED = run_to_json(example_runs.REPORT)


def limits(option: str, *given: tuple[str, float]) -> object:
    """Return the limits of a run that measures dp, and dp and sp at once."""
    targets = example_runs.DP, example_runs.BOTH
    return resolve_limits(example_runs.LAYOUT, targets, option, given)


def rehearsed_report() -> RehearsalReport:
    """Return the report of two ranks of which one skips an all_reduce, and one raised."""
    names, group = Names([Layout(tp=2)]), [GroupRecord((0, 1), 0)]
    reduction = Operation("all_reduce", 0, "f32", (4,), 4, "sum", line="train.py:8")
    traces = {0: Trace(0, group, [reduction], [0, -1]), 1: Trace(1, group)}
    found, error = tuple(find_mismatches(traces, names)), {1: ValueError("a missing file")}
    even, lines = Topology.even(2, nodes=1), {1: "train.py:9"}
    return RehearsalReport(
        2, even, names, traces, found, (), error, lines, witnesses=(), links="h100", device="cpu",
        seconds=1.0,
    )  # fmt: skip


CASES: dict[str, Callable[[], object]] = {
    "a rank does not arrive": lambda: judge(
        SAME, arrivals(DP4, None, None, DP4, seen={1: ENDED}, late=(3,))
    ),
    # layout
    "a name that is not an identifier": lambda: Layout(**{"d-p": 2}),
    "a name with an edge underscore": lambda: Layout(dp_=2),
    "a name that is a keyword": lambda: factor_world(8, **{"for": 2}),
    "a name that is an option": lambda: Layout(groups=2),
    "a name that is not a str": lambda: factor_world(8, order=["dp", 3], dp=8),
    "a layout without axes": lambda: Layout(),
    "an unknown axis": lambda: LAYOUT.groups("dp", "ttp"),
    "an axis with two letters exchanged": lambda: Layout(dp=2, tp=2).size("pd"),
    "an axis that may be two": lambda: Layout(dp=2, tp=2).size("xp"),
    "an unknown axis in a plan": lambda: GroupPlan.of(LAYOUT, ["dp pipe"]),
    "a group that a plan lacks": lambda: parse_group(
        GroupPlan.of(Layout(dp=2, sp=2, tp=2)), "dp tp"
    ),
    "an axis named twice": lambda: LAYOUT.size("dp", "dp"),
    "an axis of size 0": lambda: Layout(dp=0, sp=2),
    "two sizes to infer": lambda: factor_world(8, tp=-1),
    "an axis without a standard place": lambda: factor_world(8, shard=2, tp=2),
    "an order that differs from the sizes": lambda: factor_world(
        8, sp=2, tp=2, order="dp cp tp tp"
    ),
    "sizes whose product is not the world size": lambda: factor_world(6, dp=4, sp=2, tp=1),
    "sizes whose product does not divide the world size": lambda: factor_world(6, tp=4),
    "a view out of the standard order": lambda: view_sizes({"tp": 2, "node": 2, "dp": 2}, None),
    "sizes as a mapping and by keyword": lambda: merge_sizes({"dp": 4}, {"tp": 2}),
    "a part to infer without a world size": lambda: split_world(actor=4, critic=-1),
    "a split without parts": lambda: split_world(8),
    "parts that leave no rank for the last": lambda: split_world(8, actor=8, critic=-1),
    "a view that does not divide": lambda: Layout(dp=4, sp=2).view(node=3, local=-1),
    "a world of 0 ranks": lambda: factor_world(0, tp=2),
    "the rank at indices without names": lambda: LAYOUT.rank(2, 1, 0),  # type: ignore[misc]
    "the rank at an axis": lambda: LAYOUT.rank("dp"),  # type: ignore[misc]
    "a neighbor along an axis by keyword": lambda: LAYOUT.neighbor(0, dp=1),  # type: ignore[call-arg]
    "factor_world without a number": lambda: factor_world(dp=4, tp=2),  # type: ignore[call-arg]
    "a plan of three sizes": lambda: BatchPlan(dp=2, global_batch=64, micro_batch=4),  # type: ignore[call-arg]
    "a sampler without a dataset": lambda: sample(None, PLAN),  # type: ignore[call-arg]
    "the size of an axis by keyword": lambda: LAYOUT.size(axis="dp"),  # type: ignore[call-arg]
    "init with a backend by position": lambda: meshkit.init("nccl"),  # type: ignore[misc]
    "spawn in the other order": lambda: meshkit.spawn(4, train),  # type: ignore[arg-type]
    "spawn with arguments that are no tuple": lambda: meshkit.spawn(train, 4, 1, 2),  # type: ignore[misc, arg-type]
    "init_device_mesh with sizes by name": lambda: meshkit.init_device_mesh(dp=2),  # type: ignore[call-arg]
    "build_mesh with a device type": lambda: build_mesh(dp=2, device_type="cuda"),
    "a movement of the pattern first": lambda: move(np.ones(2)),  # type: ignore[arg-type]
    "a coordinate without an axis": lambda: LAYOUT.rank(dp=1),
    "coordinates of floats": lambda: LAYOUT.coordinates(np.array([0.5])),
    "coordinates of whole floats": lambda: LAYOUT.coordinates(np.array([1.0])),
    "coordinates of rows of unequal lengths": lambda: LAYOUT.coordinates([[0], [1, 2]]),
    "coordinates of a rank outside the layout": lambda: LAYOUT.coordinates([[0, 9]]),
    "the coordinate of a rank outside the layout": lambda: Layout(
        dp=4, ranks=range(8, 12)
    ).coordinate(0),
    "a layout with a size to infer": lambda: Layout(dp=-1),
    "a layout of too many ranks": lambda: Layout(dp=2**62, tp=2),
    "an index on an axis of one": lambda: LAYOUT.rank(dp=1, sp=0, tp=-1),
    "a tensor of two dims whose side has one": lambda: compare_weight(
        None, "tp=2", layout={"w": "a/tp"}
    ),
    "a side that cuts inside brackets": lambda: compare_weight(
        None, "tp=2", layout={"w": "(h a/tp) b"}
    ),
    "sizes that do not fit a side": lambda: compare_weight(
        None, "tp=2", layout={"w": "(h a/tp) b"}, sizes={"h": 3}
    ),
    "sizes that do not fit the parts of a tensor": lambda: whole(
        [4, 2], [4, 2], side="(qkv h/tp) i", qkv=3
    ),
    "sizes that are no mapping": lambda: grad_norm({"w": (8, 4)}, layout=FUSED, sizes=[3]),
    "a size that is no number": lambda: grad_norm({"w": (8, 4)}, layout=FUSED, sizes={"qkv": "3"}),
    "the size of a dim that no side has": lambda: grad_norm(
        {"w": (8, 4)}, layout=FUSED, sizes={"heads": 3}
    ),
    "an unknown reduction of a tensor": lambda: compare_weight(None, "tp=2", reduce={"w": "max"}),
    "numbers of a mesh that differ": lambda: compare_weight(None, "tp=2").raise_if_different(),
    "a pattern with an open bracket": lambda: parse_axis_pattern("(dp sp", LAYOUT.axes),
    "a pattern with its axes in another order": lambda: LAYOUT.rearrange("sp dp tp -> sp dp tp"),
    "more positions than ranks": lambda: Layout(dp=4, ranks=[0, 1, 2]),
    "a range of negative ranks": lambda: Layout(dp=8, ranks=range(-1, 7)),
    "a rank that is a float": lambda: Layout(dp=8, ranks=[0.0, *range(1, 8)]),
    "a repeated rank": lambda: Layout(dp=8, ranks=[0, 0, *range(2, 8)]),
    "experts that dp counts, too, in another order": lambda: factor_world(
        16, dp=8, ep=4, tp=2, order="ep dp tp"
    ),
    "a view with experts that dp counts, too": lambda: Layout(dp=8).view(dp=8, ep=4),
    "an order that is an int": lambda: factor_world(8, order=5, tp=2),
    "a pattern without an arrow": lambda: LAYOUT.rearrange("dp sp tp"),
    "a size in a pattern that is a str": lambda: LAYOUT.rearrange(
        "(a b) sp tp -> a b sp tp", a="2"
    ),
    "groups that are ints": lambda: GroupPlan.of(LAYOUT, [5]),
    "ranks that are empty": lambda: Layout(dp=1, ranks=[]),
    "ranks that are an int": lambda: Layout(dp=2, ranks=5),
    "within as a list": lambda: factor_world(8, within=[2]),
    "two sizes to infer within and across nodes": lambda: factor_world(8, within={"tp": -1}),
    "data axes of a mesh with other names": lambda: resolve_axes(
        "data", "dp", ("replicate", "shard")
    ),
    "axes with an open bracket": lambda: LAYOUT.size("(dp sp"),
    "two axes instead of one": lambda: LAYOUT.neighbor(0, "dp sp"),
    "an order of sizes that are missing": lambda: factor_world(8, order="sp"),
    "an axis of another library": lambda: factor_world(8, dp=4, tensor_parallel=2),
    "a mapping out of the standard order": lambda: factor_world(8, {"tp": 2, "dp": 4}),
    "the data index of a mesh with an axis of unknown role": lambda: (
        Position(Layout({"dp": 2, "rows": 4}), 5).data_index
    ),
    # data/batch, schedule, epoch, sequence, seeds and compare
    "a batch over axes of unknown role alone": lambda: mesh_batch_of_x_and_y(
        global_batch=16, micro_batch=2
    ),
    "a batch that does not divide": lambda: solve(dp=4, global_batch=100, micro_batch=3),
    "a batch that leaves ranks without one": lambda: solve(dp=8, global_batch=8, micro_batch=8),
    "a batch from one size": lambda: solve(dp=4, micro_batch=2),
    "a global batch of 0": lambda: solve(dp=4, global_batch=0, micro_batch=2),
    "samples of a negative step": lambda: PLAN.samples(-1, 0),
    "a batch from two sizes without dp": lambda: solve(global_batch=100, micro_batch=3),
    "an uneven batch with a partial micro batch": lambda: solve(
        dp=7, global_batch=32, micro_batch=3, uneven=True
    ),
    "an uneven batch with wrong accumulation steps": lambda: solve(
        dp=7, global_batch=32, micro_batch=1, accumulation_steps=4, uneven=True
    ),
    "a negative first sample": lambda: PLAN.samples(0, 0, first=-3),
    "stages that do not ascend from 0": lambda: BatchSchedule(PLAN, ((5, 8), (5, 16))),
    "stages that are a number": lambda: BatchSchedule(PLAN, 5),  # type: ignore[arg-type]
    "a stage with a float": lambda: BatchSchedule(PLAN, ((0, 8.0),)),
    "a ramp with more increments than samples": lambda: ramp_up(
        PLAN, start=8, increment=1, samples=5
    ),
    "a ramp with a batch that does not divide": lambda: ramp_up(
        PLAN, start=7, increment=3, samples=100, uneven=True
    ),
    "a schedule of a str": lambda: BatchSchedule("x", ((0, 8),)),
    "uneven as a str": lambda: solve(dp=4, global_batch=8, micro_batch=2, uneven="no"),
    "a huge batch that does not divide": lambda: solve(dp=1, global_batch=10**18, micro_batch=3),
    "a ramp from 0 samples": lambda: ramp_up(PLAN, start=0, increment=8, samples=100),
    "a ramp whose increments miss its end": lambda: ramp_up(
        PLAN, start=8, increment=5, samples=100
    ),
    "the batch at a negative sample": lambda: BatchSchedule(PLAN, ((0, 8),)).at(-1),
    "samples of no data index": lambda: PLAN.samples(0),
    "a batch that uneven solves": lambda: solve(dp=3, global_batch=16, micro_batch=2),
    "a data index outside the plan": lambda: PLAN.samples(0, 4),
    "a sequence that does not divide": lambda: SequencePlan(10, 4),
    "a sequence over two axes that does not divide": lambda: mesh_sequence(10, axes="cp sp"),
    "a sequence of length 0": lambda: SequencePlan(0, 4, "zigzag"),
    "an unknown order of tokens": lambda: SequencePlan(8, 4, "striped"),
    "padding that is an int": lambda: SequencePlan(8, 4, pad=1),
    "parameters on axes of unknown role": lambda: check_parameters(object()),
    "a part outside a sequence": lambda: SequencePlan(8, 4).positions(4),
    "a step beyond an epoch": lambda: read_step(7),
    "an epoch without data": lambda: mesh_sampler(0, PLAN),
    "an unknown tail": lambda: mesh_sampler(100, PLAN, tail="wrap"),
    "a shuffle with a float seed": lambda: mesh_sampler(100, PLAN, seed=1.5),
    "an epoch shorter than a step": lambda: mesh_sampler(9, PLAN, tail="drop"),
    "a sampler state of other data": lambda: load_state_of_other_data(STATE),
    "a state of an order of one's own": lambda: load_state({**STATE, "order": "0f"}),
    "a sampler state with too many consumed samples": lambda: load_state(
        {**STATE, "consumed": 101}
    ),
    "a sampler state that is a list": lambda: load_state([1]),
    "a sampler state with missing fields": lambda: load_state(
        {"version": 1, "length": 100, "epoch": 2, "consumed": 0}
    ),
    "a sampler state of another version": lambda: load_state({**STATE, "version": 2}),
    "a sampler state of a negative epoch": lambda: load_state({**STATE, "epoch": -1}),
    "more steps than an epoch has": lambda: save_state(steps=9),
    "a stream seed with a float base": lambda: stream_seed(1.0, dp=2),
    "a stream with an int as its name": lambda: stream_seed(1, 3),
    "a stream at a negative index": lambda: stream_seed(1, "init", dp=2, tp=-1),
    "a stream at a bool index": lambda: stream_seed(1, "init", dp=True),
    "a stream at an index beyond its limit": lambda: stream_seed(1, "init", sample=2**40),
    "random streams of rank 0 alone": lambda: load_streams(
        {"dropout dp=0 tp=0": [4, 2], "init": []}, {"dp": 3, "tp": 1}
    ),
    "random streams of an unknown mesh": lambda: load_streams({"dropout dp=0": []}, {"dp": 1}),
    "the seed of a rank outside the layout": lambda: mesh_seed_on_rank_9(vary="dp"),
    "vary as an int": lambda: mesh_seed(vary=3),
    "a batch in the words of another library": lambda: solve(dp=2, batch_size=4),
    "a batch of text": lambda: solve(dp=2, global_batch="1e3", micro_batch=4),
    # layout/topology
    "a hostfile without a host": lambda: parse_hostfile("# nothing\n"),
    "a hostfile with a line that is too long": lambda: parse_hostfile("a b c d e\n"),
    "a hostfile of Open MPI": lambda: parse_hostfile("# mpirun\na slots=8\n"),
    "a host in two racks": lambda: parse_hostfile("a r1\nb r1\na r2\n"),
    "an unknown crossing policy": lambda: check_policies(
        Layout(dp=2, tp=2), {"tp": "warn", "dp": "no"}
    ),
    "nodes that do not divide over racks": lambda: Topology.even(8, nodes=4, racks=3),
    "a topology without nodes": lambda: Topology.of_sizes([]),
    "an empty node": lambda: Topology.of_sizes([8, 0]),
    "the class of a topology": lambda: Topology(8, 2),  # type: ignore[arg-type]
    "a level that exists already": lambda: FOUR_NODES.with_level("node", [0, 0, 1, 1]),
    "a level that covers only some nodes": lambda: FOUR_NODES.with_level("rack", [0, 1]),
    "a level that splits a rack": lambda: Topology.even(8, nodes=4, racks=2).with_level(
        "hall", [0, 1, 1, 1]
    ),
    "an unknown level": lambda: FOUR_NODES.domain_of("rack", [0]),
    "the node of a rank outside the topology": lambda: FOUR_NODES.node_of([0, 8]),
    "the ranks of a node outside the topology": lambda: FOUR_NODES.ranks_of(4),
    # plan
    "a model config without a size": lambda: ModelShape.of(
        {k: v for k, v in CONFIG.items() if k != "num_hidden_layers"}
    ),
    "a model with latent attention of a head without a size": lambda: ModelShape.of(
        {**CONFIG, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    ),
    "a layout of unknown roles with a cost": lambda: fastest_cost(
        ModelShape(**SIZES), TrainingJob(8, 1, 8, 64, MACHINES["h100"]), Layout(dp=4, x=2), TOPOLOGY
    ),
    "a layout that does not divide the model": lambda: fastest_cost(
        ModelShape(**SIZES),
        TrainingJob(8, 1, 8, 64, MACHINES["h100"]),
        Layout(dp=1, tp=7),
        TOPOLOGY,
    ),
    "a model size that is a str": lambda: ModelShape.of({**CONFIG, "hidden_size": "4096"}),
    "more dense layers than layers": lambda: ModelShape(
        **SIZES, experts=4, top_k=2, dense_layers=33
    ),
    "an unknown figure of a machine": lambda: MACHINES["h100"].with_measured({"nvlink": 450}),
    "a machine with a bandwidth of 0": lambda: MACHINES["h100"].with_measured(
        {"bandwidth_inter_node": 0}
    ),
    "a training job of 0 ranks": lambda: TrainingJob(0, 1, 8, 64, MACHINES["h100"]),
    "a training job that does not divide over its nodes": lambda: TrainingJob(
        64, 7, 8, 64, MACHINES["h100"]
    ),
    # layout/draw
    "layouts too large for one page": lambda: join_pages(["x" * 2_000_000] * 2, ""),
    "a page with too many ranks": lambda: draw_page(
        ("dp", "tp"), np.zeros((50_000, 8), np.int64), title=""
    ),
    # redistribute
    "a movement over too many ranks": lambda: plan_redistribution({"dp": 10**9}, "b/dp -> b", b=2),
    "a movement with two arrows": lambda: move("b -> b -> b", b=2),
    "a movement that is no text": lambda: move(5, b=2),
    "a movement that cuts three dims": lambda: move("(a b/dp c)/tp -> a"),
    "a movement with an open bracket": lambda: move("(b s/tp -> b s"),
    "a movement with a bracket in a bracket": lambda: move("((b) s) -> b s"),
    "a movement that cuts a size of 1": lambda: move("b 1/tp -> b"),
    "a movement with an ellipsis on one side": lambda: move("b -> b ..."),
    "a mean": lambda: check_op(parse_pattern("b +tp -> b =tp"), "mean"),
    "a maximum that begins a sum": lambda: check_op(parse_pattern("b =tp -> b +tp"), "max"),
    "a gathered axis without a mark": lambda: refuse_gradient("b s/tp -> b s"),
    "a size for an ellipsis": lambda: move("... +dp -> ... =dp", b=4),
    "a size that is a float": lambda: move("b/dp -> b *dp", b=4.0),
    "a dim without a size": lambda: move("b/dp s -> b s *dp", b=4),
    "a dim called to without a size": lambda: move("to/tp -> to"),
    "sizes of dims that are no mapping": lambda: move("b/tp -> b", sizes=[4]),
    "a size of a dim in both ways": lambda: move("b/tp -> b", sizes={"b": 4}, b=4),
    "an ellipsis in a plan": lambda: move("... s/tp -> ... s *tp", s=4),
    "a mesh of no ranks": lambda: plan_redistribution("dp=0", "b -> b", b=4),
    "a mesh of a name without a size": lambda: plan_redistribution("dp tp=2", "b -> b", b=4),
    "a mesh with two sizes of an axis": lambda: plan_redistribution("dp=2,dp=4", "b -> b", b=4),
    "a mesh that is no mesh": lambda: plan_redistribution(8, "b -> b", b=4),
    "a mark outside an absent axis": lambda: move("b @pp:1 -> b", b=4),
    "a tensor with too few dims": lambda: infer("b s/tp d -> b s d *tp", (2, 3)),
    "a bracket of unknown sizes": lambda: infer("(h d) -> h d", (12,)),
    "a dim of size 1 that is longer": lambda: infer("b 1 -> b", (2, 3)),
    "a bracket that does not divide": lambda: infer("(h d/tp) -> h d *tp", (9,), h=4),
    "a size that does not divide over two axes": lambda: infer("s *dp *tp -> s/tp/dp", (4,)),
    "a value that is shown by its address": lambda: canonical_text({"a": object()}),
    "a value whose repr has an address": lambda: canonical_text({"a": [].append}),
    "fewer heads than ranks": lambda: infer("b s/dp h d -> b s h/dp d", (1, 3, 2, 4)),
    "a dim of an ellipsis that does not divide": lambda: infer("... s =dp -> ... s/dp", (2, 10)),
    "a padded sequence plan with other parts": lambda: move(
        "s =tp -> s/tp", s=SequencePlan(10, 4, pad=True)
    ),
    "an unknown dtype": lambda: move("b/dp -> b *dp", dtype="half", b=8),
    "parts of different sizes between views": lambda: move("b/dp -> b/x", to=Layout(x=2, y=4), b=5),
    # transfer/state
    "no patterns of a state": lambda: StatePatterns.of({}),
    "a name without a pattern": lambda: StatePatterns.of({"*.w": "o i -> o i"}).find("a.bias"),
    "a name that the source lacks": lambda: state([({"a": FACT}, range(4))], [({}, [4, 5])]),
    "a dtype that cannot hold what arrives": lambda: state(
        [({"a": FACT}, range(4))], [({"a": [[4, 2], "int32", False]}, [4, 5])]
    ),
    "a name on some ranks": lambda: state([({"a": FACT}, [0, 1, 2]), ({}, [3])], []),
    "a name on some ranks of an axis that cuts it": lambda: state(
        [({"a.w": FACT}, [0, 2]), ({}, [1, 3])], []
    ),
    "a name with two sizes": lambda: state(
        [({"a": FACT}, [0, 1]), ({"a": [{"o": 5, "i": 2}, "float32", False]}, [2, 3])], []
    ),
    # recover
    "a step on NCCL that was not committed": lambda: check_committed(
        {0: RecoveryFacts(step=7, committed=7), 1: RecoveryFacts(step=7, committed=6)}
    ),
    "a rank that recovers without a step": lambda: find_sources(
        REGROUPED, {0: 4, 1: None, 2: 4, 3: 4}
    ),
    "steps that are not held for each part of the state": lambda: find_sources(
        REGROUPED, {0: 4, 1: 5, 2: 3, 3: 5}
    ),
    # bench
    "a sweep without sizes": lambda: sweep_sizes(64, 32, 2),
    "a target without axes": lambda: parse_targets(LAYOUT, ["dp", "dp+"]),
    "a target over groups of one rank": lambda: parse_targets(LAYOUT, ["tp"]),
    "a limit for groups that are not measured": lambda: limits("--min-busbw", ("sp", 2.0)),
    "two limits for one target": lambda: limits("--max-latency", ("dp", 2.0), ("dp", 3.0)),
    "a busbw of two axes at once": lambda: limits("--min-busbw", ("dp+sp", 2.0)),
    "a saved run that is none": lambda: parse_saved(LAYOUT, {"sizes": {"dp": 2}}),
    "a saved run without a group": lambda: parse_saved(
        example_runs.LAYOUT,
        {**SAVED, "measurements": [SAVED["measurements"][1] | {"by_group": []}]},
    ),
    "a saved run without measurements": lambda: parse_saved(
        example_runs.LAYOUT, {**SAVED, "measurements": []}
    ),
    "a saved run of another mesh": lambda: parse_saved(Layout(dp=4), SAVED),
    "a saved run without rounds": lambda: parse_saved(example_runs.LAYOUT, SAVED),
    "a saved run of other cases": lambda: SavedRun("cpu", "gloo", {}).check_measures(
        [Case("broadcast", example_runs.DP, 64)]
    ),
    "a saved run on another device": lambda: SavedRun("cuda", "nccl", {}).check_device(
        example_runs.REPORT
    ),
    # launch
    "a launcher variable that is not set": lambda: detect({"WORLD_SIZE": "8"}),
    "a launcher variable that is not set on rank 0": lambda: detect({"RANK": "0"}),
    "RANK that counts pods": lambda: detect(POD),
    "an empty address": lambda: detect({**TORCHRUN, "MASTER_ADDR": " "}),
    "more local ranks than ranks": lambda: detect({**TORCHRUN, "LOCAL_WORLD_SIZE": "16"}),
    "a local rank argument without a rank": lambda: detect({}, local_rank=3),
    "a rank argument outside the world": lambda: detect(OPEN_MPI, rank=9),
    "a world size argument that is too large": lambda: detect({}, rank=0, world_size=10**26),
    "a launcher inside another without a rank": lambda: detect(TWO_HALVES),
    "an IPv6 address without brackets": lambda: check_url("tcp://fd00::55:29500"),
    "an address that has a port": lambda: detect({**TORCHRUN, "MASTER_ADDR": "node1:29500"}),
    "a host name with a blank": lambda: detect({}, rank=0, world_size=2, master_addr="node 1"),
    "local ranks that contradict the nodes": lambda: detect(
        {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "NNODES": "2"}
    ),
    "Cray PALS without a size": lambda: detect(recorded.PALS_WITHOUT_PMI),
    "RANK that contradicts the launcher": lambda: detect(
        {**OPEN_MPI, "RANK": "1", "WORLD_SIZE": "4"}
    ),
    "a single process of several that srun has started": lambda: detect(
        {**SRUN, "RANK": "0", "WORLD_SIZE": "1"}
    ),
    "an address that is each rank's own": lambda: detect(
        {"RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "0.0.0.0"}
    ),
    "a URL of a file without a path": lambda: check_url("file://"),
    "a URL of a file with one slash": lambda: check_url("file:/shared/new-file"),
    "a URL in capital letters": lambda: check_url("TCP://node1:29500"),
    "a list of tasks that is the only size": lambda: detect(
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_TASKS_PER_NODE": "2(x"}
    ),
    "a malformed list of nodes": lambda: detect({**SRUN, "SLURM_STEP_NODELIST": "n[2-1]"}),
    "a malformed list of tasks": lambda: detect({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2(x"}),
    "a node outside the list of tasks": lambda: detect({**SRUN, "SLURM_NODEID": "2"}),
    "a Slurm topology without hosts": lambda: meshkit.slurm_topology("SwitchName=s0 Nodes=n1", []),
    "a timeout of 0": lambda: meshkit.init(timeout=0),
    "an arrival timeout that is a str": lambda: meshkit.init(arrival_timeout="5"),
    "a seed that is a float": lambda: meshkit.init(seed=1.5),
    "init with several arguments by position": lambda: meshkit.init("nccl", 4),
    "init with an option of torch": lambda: meshkit.init(device_id=0),
    "init with an option of a batch": lambda: meshkit.init(global_batch=8),
    "init with a host and a port": lambda: meshkit.init(rank=1, world_size=4, host="a", port=29501),
    "init with a host and a URL": lambda: meshkit.init(host="a", init_method="env://"),
    "init with an option of DeepSpeed": lambda: meshkit.init(dist_backend="gloo", dist_init=1),
    "a world that is unpacked": lambda: [*detect({"RANK": "1", "WORLD_SIZE": "4"})],
    "a ring of attention": lambda: build_mesh(ring_attn_size=2, tp=2),
    "parts of a whole of other sizes": lambda: whole([4, 2], [0, 2]),
    "parts of a whole that differ": lambda: whole([4, 2], [4, 3]),
    "parts of a whole with other dims": lambda: whole([4], [4]),
    "spawn of the result of a function": lambda: meshkit.spawn(set(), 4),  # type: ignore[arg-type]
    "a timeout with a unit": lambda: meshkit.init(timeout="2 min"),  # type: ignore[arg-type]
    "the class of a mesh with sizes": lambda: meshkit.Mesh(dp=2, tp=2),  # type: ignore[call-arg]
    "the class of a mesh with sizes without names": lambda: meshkit.Mesh(2, 2),  # type: ignore[arg-type]
    "the class of a mesh as init_device_mesh": lambda: meshkit.Mesh("cuda", (4, 2)),  # type: ignore[arg-type]
    "spawn of 0 ranks": lambda: meshkit.spawn(print, 0),
    "spawn of more ranks than a machine has": lambda: meshkit.spawn(print, 100_000_000),
    "an address that is empty as an argument": lambda: detect(
        {}, rank=0, world_size=2, master_addr=""
    ),
    "a port argument of 0": lambda: detect({}, rank=0, world_size=2, master_port=0),
    "spawn in the order of torch.multiprocessing": lambda: meshkit.spawn(train, (), 2),  # type: ignore[arg-type]
    "spawn of a function that expects a rank": lambda: meshkit.spawn(train, 4),
    "spawn with arguments that do not fit": lambda: meshkit.spawn(train, 4, (1, 2, 3)),
    # norm/shares
    "a layout that is no mapping": lambda: grad_norm(SHAPES, layout="o/tp i"),
    "a layout with a list": lambda: grad_norm(SHAPES, layout={"w": ["o/tp", "i"]}),
    "a layout with an arrow": lambda: grad_norm(SHAPES, layout={"w": "o/tp i -> o i"}),
    "a layout with an axis twice": lambda: grad_norm(SHAPES, layout={"w": "o/tp i/tp"}),
    "a layout with a misspelt axis": lambda: grad_norm(SHAPES, layout={"w": "o/ttp i"}),
    "a layout with a holder": lambda: grad_norm(SHAPES, layout={"w": "o i @tp:0"}),
    "a table at a speed of 0": lambda: plan_redistribution("dp=4", "i/dp -> i", i=8).draw(speed=0),
    "a layout with a sum over stages": lambda: grad_norm(SHAPES, layout={"w": "o i +pp"}, pp=2),
    "a layout for other names": lambda: grad_norm(SHAPES, layout={"*.w": "o/tp i"}),
    "a layout with too many dims": lambda: grad_norm(SHAPES, layout={"w": "a b c ..."}),
    "a layout with a dim of another size": lambda: grad_norm(SHAPES, layout={"w": "1 i/tp"}),
    "a parameter on an axis of unknown role": lambda: grad_norm({"w": (2, 4)}, rows=4, tp=2),
    "a norm of order 0": lambda: clip_grad_norm(None, 1.0, 0),
    "a negative norm": lambda: clip_grad_norm(None, -1.0),
    "a gradient that a rank lacks": lambda: refuse_form(None, FORMS),
    "a gradient that a rank lacks though a side says less": lambda: refuse_form(
        None, FORMS, {"w": "(two o/dp) i"}
    ),
    "a gradient that a rank lacks though a glob matches": lambda: refuse_form(
        None, FORMS, {"*": "... =dp"}
    ),
    "a DTensor that a rank lacks": lambda: refuse_form(None, FORMS, is_whole=True),
    "a norm of which a rank asks another order": lambda: refuse_unequal(
        "call", "norm_type", "2.0", "inf"
    ),
    "a norm for which a rank has another layout": lambda: refuse_unequal(
        "layout", "up.weight", "o/tp i", "no layout"
    ),
    "a norm of a sum of which a rank has no part": lambda: refuse_unequal(
        "sum over dp at tp=1", "up.bias", "(16,)", "missing"
    ),
    "a norm that a rank refuses": lambda: refuse_call(
        None, 1.0, refused_error({1: "SpecError: max_norm is None, not a number of 0 or more."})
    ),
    "a gradient of Megatron": lambda: refuse_call(None, 1.0, main_grad_error("up.weight")),
    "a sparse gradient": lambda: refuse_call(None, 1.0, sparse_error("up.weight", "sparse_coo")),
    # a rehearsal
    "a rehearsal with two orders of collectives": lambda: rehearsed_report().raise_if_mismatched(),
    # live
    "build_mesh with positional sizes": lambda: build_mesh([4, 2]),
    "build_mesh for more ranks than there are": lambda: build_mesh(dp=4, sp=2, tp=1),
    "build_mesh with the options of other calls": lambda: build_mesh(dp=1, seed=1, micro_batch=4),
    "a number as the plan of DeepSpeed": lambda: deepspeed.config(5),
    "build_mesh with the arguments of init_device_mesh": lambda: build_mesh(
        "cuda", (2, 2), mesh_dim_names=("dp", "tp")
    ),
    "build_mesh with ranks beside within": lambda: build_mesh(within={"tp": 1}, ranks=[0]),
    "build_mesh with a rank outside the world": lambda: build_mesh(dp=1, ranks=[5]),
    "build_mesh with crossing as a str": lambda: build_mesh(dp=1, tp=1, crossing="tp"),
    "build_mesh with sizes and ranks beside within": lambda: build_mesh(
        dp=1, tp=1, within={"tp": 1}, ranks=[0]
    ),
    "build_mesh with an unknown placement": lambda: build_mesh(dp=1, tp=1, place="near"),
    "build_mesh placed on a topology of other ranks": lambda: build_mesh(
        dp=1, tp=1, place=Topology.even(8, nodes=2)
    ),
    "build_mesh with a timeout of 0 for an axis": lambda: build_mesh(dp=1, tp=1, timeout={"tp": 0}),
}
