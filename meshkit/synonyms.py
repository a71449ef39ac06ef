"""Names of axes and options, here and in other libraries, and calls in the words of those.

::

    build_mesh(dp_size=4)                   build_mesh(dp=4)
    init(host="a", port=29500)              init(init_method='tcp://a:29500')
    build_mesh("cuda", (4, 2))              meshkit.init(device='cuda'), then build_mesh(dp=4, tp=2)

A fix keeps every value that has a place in it. A line of evidence names each option that has none.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from .errors import BatchError, CoordinateError, MeshkitError, SpecError

Quote = Callable[[Sequence[object], Mapping[str, object]], object]
Role = Literal["data", "expert", "model", "unknown"]


class Axis(NamedTuple):
    """A standard axis."""

    role: Role  # whether its ranks read different samples, or share them
    color: str  # of Okabe and Ito, "Color Universal Design" (2008), for all kinds of color vision
    synonyms: str  # names in other libraries that mean this axis
    relatives: str  # names of its role, beside which a mesh may have this axis too


DATA_NAMES = "data_parallel ddp fsdp hsdp shard replicate replica dp_shard dp_replicate batch"
PIPELINE_NAMES = "pipe pipeline pipeline_model stage stages"
TENSOR_NAMES = "mp model model_parallel mdl tensor_parallel etp"
AXES = {
    "pp": Axis("model", "#cc79a7", PIPELINE_NAMES, "pipeline_parallel"),
    "dp": Axis("data", "#0072b2", "data", DATA_NAMES),
    "ep": Axis("expert", "#56b4e9", "expert experts expert_model", "expert_parallel"),
    "cp": Axis("model", "#d55e00", "context", "context_parallel"),
    "sp": Axis("model", "#009e73", "seq sequence ulysses ring_attn", "sequence_parallel"),
    "tp": Axis("model", "#e69f00", "tensor tensor_model", TENSOR_NAMES),
}
STANDARD = tuple(AXES)
SYNONYMS = {name: axis for axis, row in AXES.items() for name in (axis, *row.synonyms.split())}
STANDARD_OF = SYNONYMS | {n: axis for axis, row in AXES.items() for n in row.relatives.split()}
INIT_OPTIONS = frozenset(
    {"seed", "device", "init_method", "rank", "world_size", "local_rank", "bind", "verbose"}
)
BATCH_OPTIONS = frozenset({"global_batch", "micro_batch", "accumulation_steps"})
MESH_OPTIONS = frozenset(
    {"order", "sizes", "groups", "ranks", "timeout", "arrival_timeout", "backend"}
    | {"place", "crossing", "within", "across", "share"}
)
OTHER_NAMES = {
    "global_batch": "global_batch_size train_batch_size total_batch_size train_global_batch_size",
    "micro_batch": "micro_batch_size per_device_train_batch_size per_device_batch_size "
    "train_micro_batch_size_per_gpu local_batch_size batch_size",
    "accumulation_steps": "gradient_accumulation_steps grad_accumulation_steps grad_accum_steps "
    "accumulate_grad_batches gradient_accumulation accumulation",
    "timeout": "timeouts",
    "order": "axis_order dim_order",
    "device": "device_id",
    "init_method": "url",
    "backend": "dist_backend",
    "world_size": "nprocs nproc_per_node num_ranks num_replicas",
    "nodes": "nnodes num_nodes",
    "seq": "seq_len seq_length sequence_length max_seq_len",
    "axis": "dim mesh_dim dim_name",
    "op": "reduce_op reduction",
    "max_norm": "max_grad_norm gradient_clip_val gradient_clipping clip_grad",
}
ARGUMENTS = {other: name for name, others in OTHER_NAMES.items() for other in others.split()}
PORT = 29500  # torch's usual one
BACKENDS = frozenset({"nccl", "gloo", "mpi", "ucc", "hccl", "xccl", "fake"})
DEVICES = re.compile(r"(cpu|cuda|xpu|hpu|npu|mps|mtia)(:[0-9]+)?", re.ASCII)
SHAPES = {1: ("dp",), 2: ("dp", "tp"), 3: ("pp", "dp", "tp")}  # axes of a shape without names
# calls that take sizes by name, and the number of arguments before the sizes by position
BY_POSITION = {"build_mesh": 0, "factor_world": 1, "Layout": 1, "mesh.view": 1, "layout.view": 1}
BY_AXES = ("mesh.size", "mesh.group_rank", "mesh.peers", "layout.size", "layout.groups")
LAUNCHED = {"rank", "world_size", "local_rank"}  # known of every process that a launcher started
DEVICE_MESH = {"device_type", "mesh_shape", "mesh_dim_names", "backend_override"}
# calls of a mesh, and the names by which others ask for them
MESH_CALLS = {
    "mesh.batch": "plan plan_batch batch_plan",
    "mesh.check_parameters": "check_params",
    "mesh.clip_grad_norm": "clip_grad_norm_ clip_grad clip_gradients",
    "mesh.close": "destroy destroy_process_group shutdown",
    "mesh.coordinate": "get_coordinate coords",
    "mesh.coordinate['pp'] == 0": "is_pipeline_first_stage is_first_stage",
    "mesh.neighbor('pp', wrap=False) is None": "is_pipeline_last_stage is_last_stage",
    "mesh.device_mesh": "submesh get_submesh to_device_mesh world_mesh get_mesh get_optional_mesh",
    "torch.distributed.fsdp.fully_shard(model, mesh=mesh.device_mesh('dp'))": "fully_shard FSDP",
    "plan.sync_on_last(model, micro) of plan = mesh.batch(...)": "no_sync accumulate",
    "mesh.first": "main_process_first",
    "mesh.current": "current_mesh get_current_mesh",
    "mesh.group": "process_group pg new_group get_process_group world_group default_group",
    "mesh.groups_report": "get_all_groups all_groups",
    "mesh.layout.axes": "axes names dim_names",
    "mesh.layout.sizes": "sizes dims",
    "mesh.layout.grid": "mesh ranks grid",
    "mesh.loader": "data_loader prepare prepare_data_loader",
    "mesh.rank": "global_rank process_index",
    "mesh.neighbor": "next_rank prev_rank next prev neighbour",
    "mesh.rank == 0": "is_main_process is_first is_master is_rank_0 on_main_process print",
    "mesh.sampler": "distributed_sampler",
    "mesh.seed": "set_seed manual_seed",
    "mesh.size": "num_ranks num_processes get_world_size",
    "mesh.view": "reshape unflatten flatten rearrange",
    "mesh.whole_state": "state_dict get_state_dict",
    "mesh.barrier": "wait_for_everyone",
}
# what a name after that of an axis asks for, as in data_parallel_rank
AXIS_CALLS = {"size": "size", "rank": "group_rank", "group": "group", "mesh": "device_mesh"}
# calls of the module, and the names by which others ask for them
MODULE_CALLS = {
    "torch.distributed.fsdp.fully_shard(model, mesh=mesh.device_mesh('dp')), with mesh = "
    "meshkit.build_mesh(dp=-1)": "fully_shard FSDP FullyShardedDataParallel",
    "meshkit.init() joins the job of every launcher": "launch_from_torch launch_from_slurm "
    "launch_from_openmpi initialize_distributed_hpu initialize_distributed init_distributed "
    "init_process_group initialize",
    "meshkit.init().rank is that of this process": "rank get_rank process_index",
    "meshkit.init().local_rank is that of this process": "local_rank get_local_rank",
    "meshkit.init().world_size is that of the job": "world_size get_world_size num_processes",
    "meshkit.shutdown() leaves the job": "destroy destroy_process_group destroy_model_parallel "
    "finalize cleanup close",
    "meshkit.build_mesh(dp=2, tp=2) makes a mesh": "mesh make_mesh create_mesh device_mesh "
    "DeviceMesh initialize_model_parallel ParallelDims Accelerator",
    "meshkit.spawn(fn, 4) starts ranks": "run launch start notebook_launcher",
    "meshkit.factor_world(8, tp=2) plans a layout, mesh.batch a batch": "plan plan_layout",
    "mesh.batch(global_batch=64, micro_batch=4) plans a batch": "plan_batch batch_plan",
    "mesh.seed and mesh.rng give seeds": "set_seed manual_seed seed_everything",
    "a mesh has it: mesh.{}": "agree barrier batch check_batch check_parameters clip_grad_norm "
    "commit coordinate device exchange first grad_norm gradient_group group group_rank guard "
    "loader neighbor peers recover redistribute rng sampler seed sequence shift size transfer "
    "verify view",
    "use torch.distributed.{}(..., group=mesh.group('dp'))": "all_reduce all_gather "
    "all_gather_into_tensor all_to_all all_to_all_single broadcast gather reduce reduce_scatter "
    "reduce_scatter_tensor scatter send recv isend irecv",
}
SECONDS = {
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
}
SUFFIX = r"_(size|degree|dim|ranks|world_size|parallel|parallelism|parallel_size)$"


def standard_axis(name: str) -> str | None:
    """Return the standard axis that a name of another library means, or None."""
    word = name
    while (shorter := re.sub(SUFFIX, "", word)) != word:
        word = shorter
    return SYNONYMS.get(word)


def option_owner(name: object) -> str:
    """Return the call that has an option of this name, or axes of this name; "" if none has."""
    if name in INIT_OPTIONS:
        return "meshkit.init"
    if name in BATCH_OPTIONS:
        return "mesh.batch"
    return "build_mesh" if name in MESH_OPTIONS or name in STANDARD else ""


def known_name(name: str, names: Collection[str]) -> str | None:
    """Return which of the names another name means, or None."""
    alias = ARGUMENTS.get(name) or standard_axis(name)
    return alias if alias in names else closest_name(name, names, 0.8)


def closest_name(name: str, names: Iterable[str], cutoff: float) -> str | None:
    """Return the name of which another one is probably a misspelling; None if several are."""
    closest = closest_names(name, names, cutoff)
    return closest[0] if len(closest) == 1 else None


def closest_names(name: str, names: Iterable[str], cutoff: float) -> list[str]:
    """Return the names that are nearest to a misspelt one, if difflib's ratio reaches the cutoff.

    The same letters in another order are nearest: ``pd`` means dp, though tp has an equal ratio. If
    ratios are equal, the same first letter is nearer: ``tpp`` means tp, and not pp.
    """
    nearness = {
        other: (
            sorted(other) == sorted(name),
            difflib.SequenceMatcher(None, other, name).ratio(),
            other[:1] == name[:1],
        )
        for other in names
    }
    nearest = max(nearness.values(), default=(False, 0.0, False))
    is_near = nearest[0] or nearest[1] >= cutoff
    return [other for other in nearness if is_near and nearness[other] == nearest]


def axis_hint(name: str, axes: Sequence[str] = STANDARD) -> str:
    """Return the call for a name such as ``dp_rank`` or ``get_data_parallel_group``; "" for others.

    An axis that another library names is the one of the same meaning among the axes.
    """
    word = name.removeprefix("get_").replace("world_size", "size")
    word = STANDARD_OF[word] if STANDARD_OF.get(word) in axes else word  # fsdp
    axis, _, what = word.rpartition("_") if word not in axes else (word, "", "")
    meant = standard_axis(axis) or ""
    if axis not in axes and not (meant and what in AXIS_CALLS):
        return ""
    same = [other for other in axes if STANDARD_OF.get(other) == meant] or [meant]
    axis = axis if axis in axes else " ".join(same)
    calls = [AXIS_CALLS[what]] if what in AXIS_CALLS else AXIS_CALLS.values()
    return f"use {', '.join(f'mesh.{call}({axis!r})' for call in calls)}"


def module_hint(name: str, public: Iterable[str]) -> str:
    """Return what an unknown attribute of meshkit may mean; "" if nothing is known."""
    if name.startswith("_"):
        return ""
    known = next((call for call, names in MODULE_CALLS.items() if name in names.split()), "")
    close = closest_name(name, public, 0.75)
    return known.format(name) or axis_hint(name) or f"did you mean meshkit.{close}?" * bool(close)


def guess_seconds(value: object) -> float | None:
    """Return 60 for ``"60"``, ``"60s"`` and ``"1 min"``; None for other values."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", str(value).strip().lower())
    if match is None or match[2] not in SECONDS:
        return None
    seconds = float(match[1]) * SECONDS[match[2]]
    return int(seconds) if seconds.is_integer() else seconds


def misfit_error(
    name: str,
    parameters: Sequence[str],
    num_positional: int,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    quote: Quote,
) -> MeshkitError | None:
    """Return the error for arguments that do not fit a call; None if their names say nothing.

    The first ``num_positional`` parameters are not by name only.
    """
    error = own_misfit_error(name, args, kwargs)
    if error is not None or name == "build_mesh":
        return error
    fitting = {option: value for option, value in kwargs.items() if option in parameters}
    others = {option: value for option, value in kwargs.items() if option not in parameters}
    lines, has_place = [], True
    if name == "init":
        taken = f"init takes its arguments by name: {', '.join(sorted(parameters))}."
        lines = [taken] * bool(args) + _join_address(fitting, others)
        meant = _meant_option(args[0]) if len(args) == 1 else ""
        fitting = {meant: args[0], **fitting} if meant else fitting
        has_place = not ((args and not meant) or (lines and "init_method" in kwargs))
    renamed, unknown, elsewhere = _rename_options(others, parameters, fitting)
    lines += renamed
    surplus, named = args[num_positional:], parameters[num_positional:]
    is_nameless = bool(surplus and named) and name != "init"
    if is_nameless:
        lines.append(f"{name} takes these arguments by name: {', '.join(named)}.")
        fitting = _name_values(surplus, named, fitting)
    is_batch = name in ("mesh.batch", "BatchPlan.solve")
    if is_batch:
        fitting |= complete_batch(fitting)
    if not lines:
        return None
    own = str(quote(args[:num_positional], fitting))
    is_other_call = bool(elsewhere) and not (args or fitting or name == "init")
    fix = f"{', and '.join([own] * (not is_other_call) + elsewhere)}." * has_place
    if is_nameless:
        fix = f"write the name before the value, for example {own}."
        is_axis = isinstance(surplus[0], str) and surplus[0] in STANDARD
        if is_axis and named[0] not in ("vary", "axes", "data"):  # no value of an option
            fix = f"leave out {surplus[0]!r}."
    return (BatchError if is_batch else SpecError)(*lines, *unknown, fix=fix)


def _meant_option(value: object) -> str:
    """Return the option of ``init`` that a value without name is of; "" if that is unknown."""
    if isinstance(value, str) and value.lower() in BACKENDS:  # as torch's init_process_group
        return "backend"
    return "device" if isinstance(value, str) and DEVICES.fullmatch(value) else ""


def _rename_options(
    others: Mapping[str, object], parameters: Sequence[str], fitting: dict[str, object]
) -> tuple[list[str], list[str], list[str]]:
    """Add the options of other names to those that fit a call.

    Returns lines on them, lines on unknown ones, and the calls that take those left.
    """
    lines, unknown, elsewhere = [], [], dict[str, list[str]]()
    for option, value in others.items():
        if new := known_name(option, parameters):
            lines.append(f"{option} is called {new} here.")
            fitting.setdefault(new, value)
        elif option in STANDARD and "axis" in parameters:
            values = parameters[parameters.index("axis") + 1 :][:1]
            fitting |= {"axis": option} | dict.fromkeys(values, value)
            lines.append(f"{option} is an axis, whose name is a str.")
        elif (ARGUMENTS.get(option) or option) in LAUNCHED:
            lines.append(f"{option} is known from the launcher.")
        elif owner := option_owner(word := standard_axis(option) or ARGUMENTS.get(option, option)):
            lines.append(f"{option} is an option of {owner}.")
            elsewhere.setdefault(owner, []).append(f"{word}={value!r}")
        else:
            unknown.append(f"there is no argument {option} here.")
    return lines, unknown, [f"{at}({', '.join(options)})" for at, options in elsewhere.items()]


def _name_values(
    values: Sequence[object], names: Sequence[str], fitting: Mapping[str, object]
) -> dict[str, object]:
    """Return the arguments that fit a call, with values that have no name by the next ones."""
    left = [name for name in names if name not in fitting]
    named = dict(zip(left, values, strict=False))
    for name, value in named.items():
        if name.endswith("timeout") and isinstance(value, str):
            named[name] = guess_seconds(value) or 60
    return {**named, **fitting}


def own_misfit_error(
    name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> MeshkitError | None:
    """Return the error for a call whose arguments say more than their names; None for others."""
    if name == "BatchPlan" and len(args) == 1:
        fix = f"BatchPlan.solve({by_keyword(kwargs)})."
        return BatchError("a plan takes all its sizes, and solve finds the last one.", fix=fix)
    if name == "factor_world" and not args and "world_size" not in kwargs:
        fix = f"{_complete_factors(kwargs)}."
        return SpecError("the number of ranks is missing, the first argument.", fix=fix)
    if name == "spawn" and len(args) > 3:
        return SpecError("the arguments of fn are one tuple.", fix=f"args={tuple(args[2:])!r}.")
    if (error := axes_error(name, args, kwargs) or _sides_error(name, args)) is not None:
        return error
    if name == "mesh.batch" and len(args) == 2 and hasattr(args[1], "micro_batch"):
        return BatchError("this is a plan already.", fix="use the plan as it is.")
    at = BY_POSITION.get(name)
    if at is not None and is_shape(args[at:]):
        return SpecError("the sizes have no names.", fix=f"{name_sizes(args[at:])}.")
    if name in ("mesh.sampler", "mesh.loader") and "plan" not in kwargs and len(args) <= 2:
        if any(hasattr(value, "micro_batch") for value in args[1:]):  # a plan
            return SpecError("the dataset is missing.", fix=f"{name}(dataset, plan).")
        return missing_plan_error(name, kwargs)
    if name == "mesh.guard" and len(args) > 1 and callable(args[-1]):
        fix = "@mesh.guard(timeout=60), with brackets, above the function."
        return SpecError("a guard takes no function; it returns what decorates one.", fix=fix)
    return device_mesh_error(args, kwargs) if name == "build_mesh" else None


def _sides_error(name: str, args: Sequence[object]) -> MeshkitError | None:
    """Return the error for a pattern after a tensor that has no place, or in two texts."""
    sides = [side for side in args[1:] if isinstance(side, str)]
    if name == "mesh.redistribution" and len(sides) == 1:
        return SpecError("the tensor is for what it returns.", fix=f"{name}({sides[0]!r})(x).")
    if name in ("mesh.redistribute", "mesh.begin") and len(sides) == 2 and "->" not in sides[0]:
        return SpecError("a pattern has two sides.", fix=f"{' -> '.join(sides)!r}.")
    return None


def _complete_factors(options: Mapping[str, object]) -> str:
    """Return the call of ``factor_world`` for options that lack the number of ranks."""
    counts = [value for name, value in options.items() if ARGUMENTS.get(name) == "world_size"]
    others = {
        standard_axis(name) or name: value
        for name, value in options.items()
        if ARGUMENTS.get(name) != "world_size"
    }
    sizes = [size for name, size in others.items() if name not in MESH_OPTIONS]
    is_whole = len(counts) + len(others) == len(options) and "sizes" not in others
    is_whole = is_whole and -1 not in counts and all(is_shape([size]) for size in (*counts, *sizes))
    if is_whole and len(counts) == 1:
        return f"factor_world({', '.join([str(counts[0]), *[by_keyword(others)] * bool(others)])})"
    if is_whole and not counts and sizes and -1 not in sizes:
        num_ranks = math.prod(size for size in sizes if isinstance(size, int))
        example = "for example " * ("dp" not in others)
        return f"{example}factor_world({num_ranks}, {by_keyword(others)})"
    return "for example factor_world(8, tp=2)"


def axes_error(
    name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> MeshkitError | None:
    """Return the error for axes or indices that are passed in the way of another call."""
    if name in BY_AXES and kwargs:
        own = getattr(getattr(args[0], "layout", args[0]), "axes", ()) if args else ()
        axes = [_meant_axis(option, value, own) for option, value in kwargs.items()]
        call = f"{name}({', '.join(map(repr, [*args[1:], *axes]))})"
        if None in axes:
            call = f"for example {name}({own[0] if own else 'dp'!r})"
        return SpecError("axes are passed by position.", fix=f"{call}.")
    if name == "layout.rank" and len(args) > 1:
        names: Sequence[str] = vars(args[0])["axes"]
        fits = len(args) == len(names) + 1 and all(type(index) is int for index in args[1:])
        indices = zip(names, args[1:] if fits else [0] * len(names), strict=True)
        fix = f"{'for example ' * (not fits)}layout.rank({by_keyword(dict(indices))})."
        return CoordinateError("an index is passed by the name of its axis.", fix=fix)
    if name == "layout.coordinate" and kwargs and "rank" not in kwargs:
        fix = f"layout.rank({by_keyword(kwargs)})."
        return CoordinateError("a coordinate is that of a rank, and rank that of indices.", fix=fix)
    return None


def _meant_axis(option: str, value: object, axes: Sequence[str]) -> object:
    """Return the axes that are meant by an option and its value; None if that is unknown."""
    if isinstance(value, str | tuple | list):
        return value
    if option in axes or option in STANDARD:
        return option
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return axes[value] if -len(axes) <= value < len(axes) else None


def mesh_class_error(args: Sequence[object], sizes: Mapping[str, object]) -> SpecError:
    """Return the error of the class Mesh, called with what ``build_mesh`` takes."""
    error = None if is_shape(args) else device_mesh_error(args, sizes)
    named = dict(zip(SHAPES.get(len(args), ()), args, strict=False)) if is_shape(args) else {}
    example = "for example build_mesh(dp=4, tp=2)."
    fix = f"build_mesh({by_keyword({**named, **sizes})})." if named or sizes else example
    fix = error.fix if error else fix
    return SpecError("Mesh is the class of a mesh, and build_mesh makes one.", fix=fix)


def by_keyword(values: Mapping[str, object]) -> str:
    """Return arguments as they are typed by name."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def is_shape(sizes: object) -> bool:
    """Return whether sizes are a sequence of sizes without names; -1 is one to infer."""
    return (
        isinstance(sizes, Sequence)
        and not isinstance(sizes, str | bytes)
        and len(sizes) > 0
        and all(type(size) is int and (size > 0 or size == -1) for size in sizes)
    )


def name_sizes(sizes: Sequence[object]) -> str:
    """Return how sizes without names are passed, the outermost first, with the usual names."""
    names = SHAPES.get(len(sizes))
    if names is None:
        return 'by keyword: dp=4, sp=2, or as a dict: {"dp": 4, "sp": 2}'
    pairs = ", ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
    return f"by keyword: {pairs}"


def complete_batch(sizes: Mapping[str, object]) -> dict[str, object]:
    """Return the size that a batch lacks beside its only one, as of one micro batch."""
    given = BATCH_OPTIONS & sizes.keys()
    if len(given) != 1:
        return {}
    return {"micro_batch" if given == {"accumulation_steps"} else "accumulation_steps": 1}


def missing_plan_error(name: str, options: Mapping[str, object]) -> MeshkitError:
    """Return the error of a sampler or a loader without a plan, with one of its batch options."""
    sizes = {ARGUMENTS.get(option, option): value for option, value in options.items()}
    sizes = {size: value for size, value in sizes.items() if size in BATCH_OPTIONS}
    sizes |= complete_batch(sizes)
    shown = by_keyword(sizes)
    plan = f"mesh.batch({shown or 'global_batch=64, micro_batch=4'})"
    return BatchError(
        "the plan is missing.",
        "It says how many samples a step has, and how they are divided.",
        fix=f"{'' if shown else 'for example '}{name}(dataset, {plan}).",
    )


def _join_address(fitting: dict[str, object], others: dict[str, object]) -> list[str]:
    """Join the host and the port of rank 0 to one URL; return the lines that say so."""
    hosts = [others.pop(name) for name in ("host", "master_addr", "hostname") if name in others]
    ports = [others.pop(name) for name in ("port", "master_port") if name in others]
    if not hosts and not ports:
        return []
    if "init_method" in fitting:
        return ["init_method is the URL of rank 0, with its host and its port."]
    host = f"{hosts[0]}" if hosts else "<host of rank 0>"
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    fitting["init_method"] = f"tcp://{host}:{ports[0] if ports else PORT}"
    usual = [] if ports else [f"No port is given; {PORT} is torch's usual one."]
    return ["the host and the port of rank 0 are one URL here, init_method.", *usual]


def device_mesh_error(args: Sequence[object], kwargs: Mapping[str, object]) -> SpecError | None:
    """Return the error if the arguments of ``build_mesh`` are those of ``init_device_mesh``."""
    is_device = bool(args) and isinstance(args[0], str)
    if is_device and "=" in str(args[0]):  # sizes as a command line has them
        return None
    torch_names = {*DEVICE_MESH, "shape", "names"}
    lists: list[Any] = [*args, *(v for name, v in kwargs.items() if name in torch_names)]
    lists = [value for value in lists if isinstance(value, list | tuple) and value]
    shape = next(filter(is_shape, lists), ())
    is_shape_alone = bool(shape) and all(value is None for value in args)
    is_torch = is_device or is_shape_alone or max(len(args), len(lists)) > 1
    if not is_torch and not DEVICE_MESH & kwargs.keys():
        return None
    named = [values for values in lists if all(isinstance(value, str) for value in values)]
    fits = bool(named) and len(named[0]) == len(shape)
    names = named[0] if fits else SHAPES.get(len(shape), ())
    sizes = dict(zip(names, shape, strict=False))
    given = {name: value for name, value in kwargs.items() if name in MESH_OPTIONS}
    others = {*MESH_OPTIONS, *INIT_OPTIONS, *BATCH_OPTIONS, *DEVICE_MESH, *ARGUMENTS}
    for name, size in kwargs.items():
        if type(size) is int and name not in others and not name.startswith("_"):
            sizes[standard_axis(name) or name] = size
    axes = ", ".join([f"{axis}={size}" for axis, size in sizes.items()]) or "dp=4, tp=2"
    if sizes.keys() - {*STANDARD}:  # a mapping takes any name
        axes = "{" + ", ".join([f'"{axis}": {size}' for axis, size in sizes.items()]) + "}"
    options = "".join(f", {name}={value!r}" for name, value in given.items())
    device = args[0] if is_device else kwargs.get("device_type")
    first = f"meshkit.init(device={device!r}), then " if isinstance(device, str) else ""
    override = "backend_override is backend= here, by the name of an axis: {'tp': 'gloo'}."
    return SpecError(
        "these are the arguments of torch's init_device_mesh.",
        "build_mesh takes the size of each axis by its name, and the device is that of the job.",
        *([override] if kwargs.get("backend_override") is not None else []),
        fix=f"{first}build_mesh({axes}{options}).",
    )
