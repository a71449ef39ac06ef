"""First guesses of people who know other libraries: understood, or answered with a line to type."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, UserDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import meshkit
from meshkit import BatchPlan, Layout, SpecError, factor_world
from meshkit.call import quotes_call
from meshkit.layout.axes import axis_role, parse_axis
from meshkit.norm.shares import parse_max_norm
from meshkit.redistribute.pattern import parse_layout, parse_pattern
from meshkit.redistribute.ring import exchange
from meshkit.synonyms import AXIS_CALLS, MESH_CALLS, MODULE_CALLS, own_misfit_error, standard_axis
from tests.messages.cases import error_of

LAYOUT = Layout(dp=4, tp=2)


@pytest.mark.parametrize(
    ("sizes", "changes"),
    [
        ({"dp_size": 4, "tp_size": 2}, ["dp=4", "tp=2"]),
        ({"dp": 4, "tensor_parallel": 2}, ["tp=2"]),
        ({"tensor_model_parallel_size": 2, "dp": 4}, ["tp=2"]),
        ({"context_parallel_degree": 2}, ["cp=2"]),
        ({"expert_model_parallel_size": 2, "dp": 4}, ["ep=2"]),
        ({"tpp": 2, "dp": 4}, ["did you mean tp=2?"]),
        ({"tp_size": "2"}, ["tp=2"]),
        ({"tp": "2"}, ["tp=2"]),
        ({"tp": 0}, ["tp=1"]),
        ({"dp": None, "tp": 2}, ["leave out dp"]),
        ({"dp": "auto", "tp": 2}, ["dp=-1"]),
        ({"tp": 2, "sequence_parallel": True}, ["leave out sequence_parallel"]),
        ({"tp": 2, "verbose": True}, ["meshkit.init(verbose=True)"]),
        ({"dp": 1, "timout": 30}, ["timeout=30"]),
        ({"tp": 2, "global_batch_size": 64}, ["mesh.batch(global_batch=64)"]),
        ({"fsdp": 8}, ["order='fsdp'"]),  # no sp, whose ranks share samples
        ({"sp": 2, "tp": 4, "order": "tp"}, ["order='tp sp'"]),
        ({"order": ""}, ["leave out order"]),
    ],
)
def test_the_fix_keeps_the_values(sizes: dict[str, Any], changes: list[str]) -> None:
    error = error_of(lambda: factor_world(8, **sizes))
    assert [change for change in changes if change not in error.fix] == []


@pytest.mark.parametrize("sizes", [{"shard": 2, "tp": 2}, {"x": 2}, {"sp": 2, "order": "tp sp"}])
def test_no_fix_adds_an_axis_or_infers_a_size(sizes: dict[str, Any]) -> None:
    fix = error_of(lambda: factor_world(8, **sizes)).fix
    assert "dp" not in fix
    assert "-1" not in fix


@pytest.mark.parametrize(
    ("args", "options", "fix"),
    [
        (("cuda", (4, 2)), {"mesh_dim_names": ("dp", "tp")}, "build_mesh(dp=4, tp=2)."),
        (((4, 2),), {"mesh_dim_names": ("dp", "tp")}, "build_mesh(dp=4, tp=2)."),
        (("cpu", (8,)), {}, "build_mesh(dp=8)."),
        (
            ("cpu",),
            {"mesh_shape": (2, 4), "mesh_dim_names": ("a", "b")},
            'build_mesh({"a": 2, "b": 4}).',
        ),
        ((), {"device_type": "cpu", "mesh_shape": (4, 2)}, "build_mesh(dp=4, tp=2)."),
        (
            (),
            {"replica": 2, "shard": 4, "device_type": "cuda"},
            'build_mesh({"replica": 2, "shard": 4}).',
        ),
        (
            ("cpu",),
            {"mesh_shape": (2, 2), "mesh_dim_names": ("a", "b"), "tp": 1},
            'build_mesh({"a": 2, "b": 2, "tp": 1}).',
        ),
        (("cuda",), {"dp_size": 4, "tp": 2, "timeout": 60}, "build_mesh(dp=4, tp=2, timeout=60)."),
        ((["dp", "tp"], [4, 2]), {}, "build_mesh(dp=4, tp=2)."),
        (((4, 2), ("a", "tp")), {}, 'build_mesh({"a": 4, "tp": 2}).'),
        ((), {"shape": (4, 2), "names": ("dp", "tp")}, "build_mesh(dp=4, tp=2)."),
        ((), {"shape": (4, 2)}, "build_mesh(dp=4, tp=2)."),
    ],
)
def test_the_arguments_of_device_mesh_are_translated_before_a_job_is_joined(
    args: Any, options: dict[str, Any], fix: str
) -> None:
    error = error_of(lambda: meshkit.build_mesh(*args, **options))
    assert error.fix.endswith(fix)
    device = args[0] if args and isinstance(args[0], str) else options.get("device_type")
    assert error.fix.startswith(
        f"meshkit.init(device={device!r}), then" if device else "build_mesh"
    )
    assert meshkit.launch.job.current_job() is None


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        (lambda: meshkit.build_mesh("dp=2 tp=2"), "by keyword: dp=2, tp=2."),  # type: ignore[arg-type]
        (lambda: meshkit.build_mesh("dp=2,tp=-1"), "by keyword: dp=2, tp=-1."),  # type: ignore[arg-type]
        (lambda: meshkit.build_mesh(2, 2), "by keyword: dp=2, tp=2."),  # type: ignore[arg-type, misc]
        (lambda: meshkit.build_mesh(4), "by keyword: dp=4."),  # type: ignore[arg-type]
        (lambda: meshkit.build_mesh([2, 2]), "by keyword: dp=2, tp=2."),  # type: ignore[arg-type]
        (lambda: factor_world(8, 4, 2), "by keyword: dp=4, tp=2."),  # type: ignore[arg-type, misc]
        (lambda: factor_world(8, "tp=2"), "by keyword: tp=2."),  # type: ignore[arg-type]
        (lambda: Layout(4, 2), "by keyword: dp=4, tp=2."),  # type: ignore[arg-type, misc]
        (lambda: Layout("dp=4"), "by keyword: dp=4."),  # type: ignore[arg-type]
        (lambda: LAYOUT.view((2, 4)), "by keyword: dp=2, tp=4."),  # type: ignore[arg-type]
        (lambda: LAYOUT.view(2, 4), "by keyword: dp=2, tp=4."),  # type: ignore[arg-type, misc]
        (lambda: factor_world(8, axes={"dp": 4}), "{'dp': 4}, without axes=."),  # type: ignore[arg-type]
        (lambda: Layout(world_size=8, dp=8), "leave out world_size."),
        (lambda: factor_world("8", tp=2), "8."),  # type: ignore[arg-type]
        (lambda: Layout((1, 2, 3, 4)), 'by keyword: dp=4, sp=2, or as a dict: {"dp": 4, "sp": 2}.'),  # type: ignore[arg-type]
    ],
)
def test_sizes_without_names_keep_their_values(call: Callable[[], object], fix: str) -> None:
    assert error_of(call).fix == fix


def test_the_rank_of_a_coordinate_is_asked_by_rank() -> None:
    index: dict[str, Any] = {"dp": 1, "tp": 0}
    assert error_of(lambda: LAYOUT.coordinate(**index)).fix == "layout.rank(dp=1, tp=0)."
    assert LAYOUT.rank(dp=1, tp=0) == 2


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"nprocs": 8, "tp": 2}, "factor_world(8, tp=2)."),
        ({"num_ranks": 8}, "factor_world(8)."),
        ({"nprocs": 8, "dp": -1, "tp": 2}, "factor_world(8, dp=-1, tp=2)."),
        ({"dp_size": 4}, "factor_world(4, dp=4)."),
        ({"dp": 4, "tp": 2, "order": "tp dp"}, "factor_world(8, dp=4, tp=2, order='tp dp')."),
        ({"tp": 2}, "for example factor_world(2, tp=2)."),
        *(
            (options, "for example factor_world(8, tp=2).")
            for options in ({}, {"dp": 0}, {"dp": -1, "tp": 4}, {"sizes": {"dp": 4}}, {"dp": "4"})
        ),
        ({"nprocs": "8"}, "for example factor_world(8, tp=2)."),
    ],
)
def test_no_fix_invents_the_number_of_ranks(options: dict[str, Any], fix: str) -> None:
    assert error_of(lambda: factor_world(**options)).fix == fix
    eval(fix.removeprefix("for example ").removesuffix("."), {"factor_world": factor_world})


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"axis": "tp"}, "layout.size('tp')."),
        ({"axis": ("dp", "tp")}, "layout.size(('dp', 'tp'))."),
        ({"tp": True}, "layout.size('tp')."),
        ({"mesh_dim": 0}, "layout.size('dp')."),
        ({"dim": 1}, "layout.size('tp')."),
        ({"axis": -1}, "layout.size('tp')."),
        ({"dim": 2}, "for example layout.size('dp')."),
        ({"mesh_dim": None}, "for example layout.size('dp')."),
    ],
)
def test_the_position_of_an_axis_names_it(options: dict[str, Any], fix: str) -> None:
    assert error_of(lambda: LAYOUT.size(**options)).fix == fix
    mesh = SimpleNamespace(layout=LAYOUT)
    of_mesh = own_misfit_error("mesh.size", (mesh,), options)
    assert of_mesh is not None
    assert of_mesh.fix == fix.replace("layout.", "mesh.")
    eval(fix.removeprefix("for example ").removesuffix("."), {"layout": LAYOUT})


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        ("cuda", "init(device='cuda')."),
        ("cuda:1", "init(device='cuda:1')."),
        ("cpu", "init(device='cpu')."),
        ("nccl", "init(backend='nccl')."),
        ("train", ""),
        (4, ""),
    ],
)
def test_a_value_of_init_without_name(value: Any, fix: str) -> None:
    assert error_of(lambda: meshkit.init(value)).fix == fix  # type: ignore[misc]


@quotes_call("mesh.clip_grad_norm", by_name=("parameters",))
def clip_grad_norm(self: object, parameters: object, max_norm: float) -> None:
    """Refuse a norm that is no number."""
    parse_max_norm(max_norm)


@quotes_call("mesh.whole_state", by_name=("state",))
def whole_state(self: object, state: object, layout: object, /) -> None:
    """Refuse a layout that has no text."""
    parse_layout(layout)


MODULE, TENSOR = torch.nn.Linear(1, 1), torch.ones(2)
GROUPS = SimpleNamespace(
    plan=SimpleNamespace(layout=LAYOUT), get=lambda names: parse_axis(names, ("dp",))
)
LIVE = SimpleNamespace(_groups=GROUPS, layout=LAYOUT, rank=0)
SWAPPED: list[tuple[Callable[..., object], tuple[object, ...], str]] = [
    (meshkit.Mesh.shift, ("dp", TENSOR), "mesh.shift(x, 'dp')."),
    (meshkit.Mesh.shift, ("dp", TENSOR, 2), "mesh.shift(x, 'dp', 2)."),
    (meshkit.Mesh.shift, (2, TENSOR, "dp"), "mesh.shift(x, 'dp', 2)."),
    (meshkit.Mesh.shift, (TENSOR, 1, "dp"), "mesh.shift(x, 'dp', 1)."),
    (meshkit.Mesh.neighbor, (1, "dp"), "mesh.neighbor('dp', 1)."),
    (exchange, (TENSOR, [1, 1], "dp"), "mesh.exchange(x, 'dp', [1, 1])."),
    (exchange, ("dp", TENSOR, [1, 1]), "mesh.exchange(x, 'dp', [1, 1])."),
    (clip_grad_norm, (1.0, MODULE), "mesh.clip_grad_norm(parameters, 1.0)."),
    (whole_state, ({"w": "o i"}, {"w": TENSOR}), "mesh.whole_state(state, {'w': 'o i'})."),
]


@pytest.mark.parametrize(("call", "args", "fix"), SWAPPED)
def test_a_tensor_and_an_axis_move_to_their_places(
    call: Callable[..., object], args: tuple[object, ...], fix: str
) -> None:
    error = error_of(lambda: call(LIVE, *args))
    assert error.fix == fix
    assert error.summary.startswith("the arguments are ")


def test_a_first_argument_that_is_right_keeps_the_error_of_another() -> None:
    assert error_of(lambda: clip_grad_norm(None, MODULE, -1.0)).fix == "max_norm=1.0."
    state = {"step": 3, "w": TENSOR}
    assert "two str" in error_of(lambda: whole_state(None, state, {"w": 3})).summary


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: LAYOUT.neighbor(0),
            "the call is layout.neighbor(rank, axis, shift=1, *, wrap=True)",
        ),  # type: ignore[call-arg]
        (lambda: meshkit.Mesh.ring(LIVE), "the call is mesh.ring(axis)"),  # type: ignore[call-arg, arg-type]
        (
            lambda: meshkit.spawn(print),
            "the call is spawn(fn, world_size, args=(), *, timeout=None)",
        ),  # type: ignore[call-arg]
    ],
)
def test_a_type_error_of_a_signature_shows_the_call(call: Callable[[], object], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).endswith(f"; {text}")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("b/dp d => b d", "'b/dp d -> b d'."),
        ("b/dp d \u2192 b d", "'b/dp d -> b d'."),
        ("b/dp, d --> b, d", "'b/dp d -> b d'."),
        ("b/2 d => b d", 'for example "b s/sp h d -> b s h/sp d".'),
    ],
)
def test_the_punctuation_of_a_pattern(text: str, fix: str) -> None:
    assert error_of(lambda: parse_pattern(text)).fix == fix


@pytest.mark.parametrize(
    ("name", "args", "fix"),
    [
        ("mesh.redistribute", (TENSOR, "b/dp", "b"), "'b/dp -> b'."),
        ("mesh.redistribution", (TENSOR, "b/dp -> b"), "mesh.redistribution('b/dp -> b')(x)."),
    ],
)
def test_a_pattern_in_the_wrong_place(name: str, args: tuple[object, ...], fix: str) -> None:
    error = own_misfit_error(name, (None, *args), {})
    assert error is not None
    assert error.fix == fix


def test_axes_by_position_have_the_name_of_their_option() -> None:
    @quotes_call("mesh.check_batch", by_name=("batch",))
    def check_batch(self: object, batch: object, *, data: str | None = None) -> None:
        """Take axes by name."""

    fix = "write the name before the value, for example mesh.check_batch(batch, data='dp')."
    assert error_of(lambda: check_batch(None, TENSOR, "dp")).fix == fix  # type: ignore[misc]
    fix = "mesh.check_batch(batch)."
    assert error_of(lambda: check_batch(None, TENSOR, num_replicas=2, rank=0)).fix == fix  # type: ignore[call-arg]


def test_a_dim_of_a_device_mesh_has_a_name_here() -> None:
    error = error_of(lambda: LAYOUT.size(1))  # type: ignore[arg-type]
    assert error.fix == "write 'dp' for 0, 'tp' for 1."
    assert "takes mesh.device_mesh('dp')." in str(error)


def test_a_plan_is_not_planned_again() -> None:
    plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)
    error = own_misfit_error("mesh.batch", (None, plan), {})
    assert error is not None
    assert error.fix == "use the plan as it is."


def test_a_mapping_takes_any_name_in_the_order_written() -> None:
    assert factor_world(8, {"data": 4, "model": 2}) == Layout(data=4, model=2)
    assert factor_world(8, {"model": -1, "data": 4}) == Layout(model=2, data=4)
    assert factor_world(8, {"replicate": 2, "tp": 4}) == Layout(replicate=2, tp=4)
    assert factor_world(8, {"tp": 2, "data": 4}, order="tp data") == Layout(tp=2, data=4)
    assert factor_world(8, {"dp": 4, "tp": 2}) == factor_world(8, {"tp": 2}) == Layout(dp=4, tp=2)
    with pytest.raises(SpecError, match="needs 4 ranks"):
        factor_world(8, {"data": 4})


@pytest.mark.parametrize("kind", [OrderedDict, UserDict])
def test_a_mapping_of_any_class(kind: Callable[[dict[str, int]], Any]) -> None:
    sizes = kind({"dp": 4, "tp": 2})
    assert factor_world(8, sizes) == Layout(sizes) == Layout(dp=8).view(sizes) == LAYOUT


def test_a_config_of_omegaconf() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create({"dp": 4, "tp": 2, "order": ["tp", "dp"], "batch": 1024.0})
    sizes = omegaconf.OmegaConf.masked_copy(config, ["dp", "tp"])
    assert factor_world(8, sizes) == LAYOUT
    assert factor_world(8, sizes, order=config.order) == Layout(tp=2, dp=4)
    plan = BatchPlan.solve(dp=4, global_batch=config.batch, micro_batch=2)
    assert (plan.global_batch, type(plan.global_batch)) == (1024, int)


@pytest.mark.parametrize(
    ("sizes", "plan"),
    [
        ({"global_batch_size": 16, "per_device_train_batch_size": 4}, (16, 4)),
        ({"train_batch_size": 16, "gradient_accumulation_steps": 2}, (16, 4)),
        ({"batch_size": 4, "accumulation_steps": 2}, (16, 4)),
        ({"micro_batch_size": 4, "global_batch": 16}, (16, 4)),
        ({"batch_size": 4}, (8, 4)),  # with the size that lacks
        ({"global_batch_size": 16}, (16, 8)),
        ({"gradient_accumulation_steps": 2}, (4, 1)),
    ],
)
def test_sizes_of_a_batch_in_the_words_of_others(
    sizes: dict[str, Any], plan: tuple[int, int]
) -> None:
    error = error_of(lambda: BatchPlan.solve(dp=2, **sizes))
    made = eval(error.fix.removesuffix("."), {"BatchPlan": BatchPlan})
    assert (made.global_batch, made.micro_batch) == plan


def test_a_whole_float_of_a_config_is_a_batch() -> None:
    plan = BatchPlan.solve(dp=2, global_batch=1024.0, micro_batch=4)  # type: ignore[arg-type]
    assert plan == BatchPlan.solve(dp=2, global_batch=1024, micro_batch=4)
    assert type(plan.global_batch) is int


AXES = ["dp sp", "dp,sp", "dp, sp", "(dp sp)", ("dp", "sp"), ["dp", "sp"], [("dp", "sp")]]


@pytest.mark.parametrize("axes", AXES, ids=repr)
def test_axes_are_listed_in_one_grammar(axes: Any) -> None:
    layout = Layout(dp=2, sp=2, tp=2)
    for method in (layout.size, layout.groups, layout.strides):
        assert str(method(axes)) == str(method("dp", "sp"))
    assert layout.peers(5, axes).tolist() == layout.peers(5, "dp", "sp").tolist()
    assert layout.ring(5, axes).tolist() == [5, 7, 1, 3]
    assert factor_world(4, dp=2, sp=2, order=axes).axes == ("dp", "sp")
    assert meshkit.layout.group_plan.GroupPlan.of(layout, [axes]).requested == (("dp", "sp"),)


def test_an_order_of_megatron_begins_with_the_fastest_axis() -> None:
    assert factor_world(8, tp=2, order="tp-dp") == Layout(dp=4, tp=2)
    assert factor_world(8, tp=2, pp=2, order="tp-cp-ep-dp-pp") == Layout(pp=2, dp=2, tp=2)
    with pytest.raises(SpecError):
        factor_world(8, tp=2, order="tp-dp pp")


@pytest.mark.parametrize("axis", ["pp", "ep", "cp", "sp"])
def test_an_absent_standard_axis_has_size_1(axis: str) -> None:
    assert LAYOUT.size(axis) == 1
    assert LAYOUT.groups(axis).tolist() == [[rank] for rank in range(8)]
    assert LAYOUT.peers(5, axis).tolist() == LAYOUT.ring(5, axis).tolist() == [5]
    assert (LAYOUT.neighbor(5, axis), LAYOUT.neighbor(5, axis, wrap=False)) == (5, None)
    assert LAYOUT.rank(dp=2, tp=1, **{axis: 0}) == 5
    assert LAYOUT.strides("dp", axis) == LAYOUT.strides("dp")
    pattern = f"dp {axis} tp -> (dp {axis}) tp"
    assert LAYOUT.rearrange(pattern).tolist() == LAYOUT.grid.tolist()
    assert LAYOUT.rearrange(f"... {axis} -> {axis} ...").shape == (1, 4, 2)


def test_names_of_other_libraries_for_axes() -> None:
    words = {"data_parallel_size": "dp", "pipeline_model_parallel_size": "pp", "dp_shard": None}
    assert {word: standard_axis(word) for word in words} == words
    assert axis_role("tensor_parallel") == "model"  # a mapping may have it as a name
    assert factor_world(8, {"data": 4, "tensor_parallel": 2}).axes == ("data", "tensor_parallel")


INIT_ELSEWHERE = (
    "launch_from_torch",
    "launch_from_slurm",
    "launch_from_openmpi",
    "initialize_distributed_hpu",
    "init_distributed",
    "init_process_group",
)


@pytest.mark.parametrize("name", INIT_ELSEWHERE)
def test_a_name_of_another_library_names_init(name: str) -> None:
    with pytest.raises(AttributeError, match=f"{name!r}; meshkit.init\\(\\) joins the job"):
        getattr(meshkit, name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("get_rank", "meshkit.init().rank is that of this process"),
        ("destroy", "meshkit.shutdown() leaves the job"),
        ("plan_batch", "mesh.batch(global_batch=64, micro_batch=4) plans a batch"),
        ("all_reduce", "use torch.distributed.all_reduce(..., group=mesh.group('dp'))"),
        ("get_tensor_model_parallel_rank", "use mesh.group_rank('tp')"),
        ("DeviceMesh", "meshkit.build_mesh(dp=2, tp=2) makes a mesh"),
        ("barrier", "a mesh has it: mesh.barrier"),
        ("build_mash", "did you mean meshkit.build_mesh?"),
        (
            "tp",
            "use mesh.size('tp'), mesh.group_rank('tp'), mesh.group('tp'), mesh.device_mesh('tp')",
        ),
    ],
)
def test_an_unknown_name_of_meshkit_has_a_hint(name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(meshkit, name)
    assert str(caught.value) == f"module 'meshkit' has no attribute {name!r}; {hint}"


def test_hints_name_what_exists() -> None:
    of_mesh = " ".join(MODULE_CALLS["a mesh has it: mesh.{}"].split())
    names = [re.search(r"mesh\.(\w+)", call)[1] for call in MESH_CALLS]  # type: ignore[index]
    names += [*of_mesh.split(), *AXIS_CALLS.values()]
    assert [name for name in names if not hasattr(meshkit.Mesh, name)] == []
    others = " ".join(MESH_CALLS.values()).split()
    assert [name for name in others if hasattr(meshkit.Mesh, name)] == []
    calls = re.findall(r"meshkit\.(\w+)", " ".join(MODULE_CALLS))
    assert [name for name in calls if name not in meshkit.__all__] == []
    for table in (MESH_CALLS, MODULE_CALLS):
        counts = Counter(" ".join(table.values()).split())
        assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"rank": 1, "world_size": 4, "host": "a", "port": 29501}, (1, 4, "tcp://a:29501")),
        ({"rank": 1, "world_size": 4, "master_addr": "::1"}, (1, 4, "tcp://[::1]:29500")),
        ({"nprocs": 4, "rank": 1, "url": "env://"}, (1, 4, "env://")),
    ],
)
def test_the_fix_of_init_keeps_each_value(options: dict[str, Any], values: tuple[Any, ...]) -> None:
    fix = error_of(lambda: meshkit.init(**options)).fix
    made = eval(fix.removesuffix("."), {"init": dict})
    assert (made["rank"], made["world_size"], made["init_method"]) == values


def test_arguments_whose_order_is_unknown_get_no_fix() -> None:
    error = error_of(lambda: meshkit.init("nccl", 0, 4))  # type: ignore[misc]
    assert error.fix == ""
    assert "rank, seed" in str(error)
