"""Names of axes and options, here and in other libraries, and calls in the words of those.

::

    build_mesh(dp_size=4)                   build_mesh(dp=4)
    init(host="a", port=29500)              init(init_method='tcp://a:29500')
    build_mesh("cuda", (4, 2))              meshkit.init(device='cuda'), then build_mesh(dp=4, tp=2)

A fix keeps every value that has a place in it. A line of evidence names each option that has none.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from .errors import BatchError, MeshkitError, SpecError

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
    "world_size": "nprocs nproc_per_node",
    "nodes": "nnodes num_nodes",
    "seq": "seq_len seq_length sequence_length max_seq_len",
}
ARGUMENTS = {other: name for name, others in OTHER_NAMES.items() for other in others.split()}
PORT = 29500  # torch's usual one
SHAPES = {1: ("dp",), 2: ("dp", "tp"), 3: ("pp", "dp", "tp")}  # axes of a shape without names
# calls that take sizes by name, and the number of arguments before the sizes by position
BY_POSITION = {"build_mesh": 0, "factor_world": 1, "Layout": 1}
DEVICE_MESH = {"device_type", "mesh_shape", "mesh_dim_names", "backend_override"}
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
    close = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.8)
    return alias if alias in names else close[0] if close else None


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
    lines, unknown, elsewhere = [], [], dict[str, list[str]]()
    has_place = True
    if name == "init":
        taken = f"init takes its arguments by name: {', '.join(sorted(parameters))}."
        lines = [taken] * bool(args) + _join_address(fitting, others)
        has_place = not (args or (lines and "init_method" in kwargs))
    for option, value in others.items():
        if new := known_name(option, parameters):
            lines.append(f"{option} is called {new} here.")
            fitting.setdefault(new, value)
        elif owner := option_owner(word := standard_axis(option) or ARGUMENTS.get(option, option)):
            lines.append(f"{option} is an option of {owner}.")
            elsewhere.setdefault(owner, []).append(f"{word}={value!r}")
        else:
            unknown.append(f"there is no argument {option} here.")
    if name in ("mesh.batch", "BatchPlan.solve"):
        fitting |= complete_batch(fitting)
    surplus, named = args[num_positional:], parameters[num_positional:]
    if surplus and named and name != "init":
        lines.append(f"{name} takes these arguments by name: {', '.join(named)}.")
    if not lines:
        return None
    kind = BatchError if name in ("mesh.batch", "BatchPlan.solve") else SpecError
    calls = [str(quote(args, fitting)), *(f"{at}({', '.join(o)})" for at, o in elsewhere.items())]
    fix = f"{', and '.join(calls)}." * has_place
    if surplus and named and name != "init":
        value = repr(surplus[0]) if isinstance(surplus[0], int | float | str) else "..."
        fix = f"write the name before the value, for example {named[0]}={value}."
    return kind(*lines, *unknown, fix=fix)


def own_misfit_error(
    name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> MeshkitError | None:
    """Return the error for a call whose arguments say more than their names; None for others."""
    at = BY_POSITION.get(name)
    if at is not None and is_shape(args[at:]):
        return SpecError("the sizes have no names.", fix=f"{name_sizes(args[at:])}.")
    if name in ("mesh.sampler", "mesh.loader") and "plan" not in kwargs and len(args) <= 2:
        return missing_plan_error(name, kwargs)
    return device_mesh_error(args, kwargs) if name == "build_mesh" else None


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
    shown = ", ".join(f"{size}={value!r}" for size, value in sizes.items())
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
    if len(args) < 2 and not is_device and not DEVICE_MESH & kwargs.keys():
        return None
    shapes = [v for v in (*args, kwargs.get("mesh_shape")) if isinstance(v, Sequence)]
    shape = next((shape for shape in shapes if not isinstance(shape, str)), (4, 2))
    names = kwargs.get("mesh_dim_names") or SHAPES.get(len(shape), ())
    sizes = zip(names if isinstance(names, Sequence) else (), shape, strict=False)
    given = {name: value for name, value in kwargs.items() if name in MESH_OPTIONS}
    axes = ", ".join([f"{axis}={size}" for axis, size in sizes] or ["dp=4", "tp=2"])
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
