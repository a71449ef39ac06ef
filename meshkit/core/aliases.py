"""Names of arguments in other libraries and in other calls, with their names here.

::

    build_mesh(dp_size=4)              dp_size is called dp here
    build_mesh(dp=8, seed=42)          seed is no axis; it is an option of meshkit.init
    mesh.batch(global_batch_size=64)   global_batch_size is called global_batch here
    spawn(fn, nprocs=2)                nprocs is called world_size here
    build_mesh("cuda", (4, 2))         these are the arguments of init_device_mesh
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from .errors import BatchError, MeshkitError, SpecError

INIT_OPTIONS = frozenset(
    {"seed", "device", "init_method", "rank", "world_size", "local_rank", "verbose"}
)
BATCH_OPTIONS = frozenset({"global_batch", "micro_batch", "accumulation_steps"})
MESH_OPTIONS = frozenset(
    {
        *("order", "sizes", "groups", "ranks", "timeout", "arrival_timeout", "backend"),
        *("place", "crossing", "within", "across"),
    }
)
AXES = {
    **dict.fromkeys(("data", "dp"), "dp"),
    **dict.fromkeys(("tensor", "tensor_model", "tp"), "tp"),
    **dict.fromkeys(("pipe", "pipeline", "pipeline_model", "stage", "stages", "pp"), "pp"),
    **dict.fromkeys(("context", "cp"), "cp"),
    **dict.fromkeys(("sequence", "seq", "ulysses", "sp"), "sp"),
    **dict.fromkeys(("expert", "experts", "expert_model", "ep"), "ep"),
}
SUFFIX = r"_(size|degree|dim|ranks|world_size|parallel|parallelism|parallel_size)$"
ARGUMENTS = {
    **dict.fromkeys(
        ("global_batch_size", "train_batch_size", "total_batch_size", "train_global_batch_size"),
        "global_batch",
    ),
    **dict.fromkeys(
        (
            *("micro_batch_size", "per_device_train_batch_size", "per_device_batch_size"),
            *("train_micro_batch_size_per_gpu", "local_batch_size", "batch_size"),
        ),
        "micro_batch",
    ),
    **dict.fromkeys(
        (
            *("gradient_accumulation_steps", "grad_accumulation_steps", "grad_accum_steps"),
            *("accumulate_grad_batches", "gradient_accumulation", "accumulation"),
        ),
        "accumulation_steps",
    ),
    **{"timeouts": "timeout", "axis_order": "order", "dim_order": "order"},
    **{"device_id": "device", "url": "init_method", "dist_backend": "backend"},
    "nprocs": "world_size",
}
ABSENT = ("join", "daemon", "start_method", "store", "group_name", "pg_options")
SHAPES = {1: ("dp",), 2: ("dp", "tp"), 3: ("pp", "dp", "tp")}  # axes of a shape without names
DEVICE_MESH = {"device_type", "mesh_shape", "mesh_dim_names", "backend_override"}

Quote = Callable[[Sequence[object], Mapping[str, object]], object]


def standard_axis(name: str) -> str | None:
    """Return the standard axis that a name of another library means, or None.

    Example:
        >>> standard_axis("tensor_model_parallel_size"), standard_axis("dp_shard")
        ('tp', None)
    """
    word = name
    while (shorter := re.sub(SUFFIX, "", word)) != word:
        word = shorter
    return AXES.get(word)


def option_owner(name: object) -> str:
    """Return the call that has an option of this name, or axes of this name; "" if none has."""
    if name in INIT_OPTIONS:
        return "meshkit.init"
    if name in BATCH_OPTIONS:
        return "mesh.batch"
    return "build_mesh" if name in MESH_OPTIONS or name in AXES.values() else ""


def known_name(name: str, names: Collection[str]) -> str | None:
    """Return which of the names another name means, or None."""
    alias = ARGUMENTS.get(name) or standard_axis(name)
    close = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.8)
    return alias if alias in names else close[0] if close else None


def misfit_error(
    name: str,
    parameters: Collection[str],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    quote: Quote,
) -> MeshkitError | None:
    """Return the error for arguments that do not fit a call; None if their names say nothing."""
    if name == "build_mesh":
        return device_mesh_error(args, kwargs)
    lines: list[str] = []
    fitting = {option: value for option, value in kwargs.items() if option in parameters}
    if name == "init" and args:
        fitting["init_method" if "://" in str(args[0]) else "backend"] = args[0]
        args = ()
        lines.append("init takes its arguments by name.")
    elsewhere = ""
    for option in kwargs.keys() - fitting:
        if new := known_name(option, parameters):
            lines.append(f"{option} is called {new} here.")
            fitting.setdefault(new, kwargs[option])
        elif owner := option_owner(axis := standard_axis(option) or option):
            lines.append(f"{option} is an option of {owner}.")
            elsewhere += f", and {owner}({axis}=...)"
        elif option in ABSENT:
            lines.append(f"there is no argument {option} here.")
        else:
            return None
    if not lines:
        return None
    kind = BatchError if name in ("mesh.batch", "BatchPlan.solve") else SpecError
    return kind(*sorted(lines), fix=f"{quote(args, fitting)}{elsewhere}.")


def device_mesh_error(args: Sequence[object], kwargs: Mapping[str, object]) -> SpecError | None:
    """Return the error if the arguments of ``build_mesh`` are those of ``init_device_mesh``."""
    is_device = bool(args) and isinstance(args[0], str)
    if len(args) < 2 and not is_device and not DEVICE_MESH & kwargs.keys():
        return None
    shapes = [value for value in (*args, kwargs.get("mesh_shape")) if _is_shape(value)]
    shape = [*shapes[0]] if shapes else [4, 2]  # type: ignore[misc]
    names = kwargs.get("mesh_dim_names") or SHAPES.get(len(shape), ())
    sizes = zip(names if _is_shape(names) else (), shape, strict=False)  # type: ignore[call-overload]
    axes = ", ".join(f"{axis}={size}" for axis, size in sizes) or "dp=4, tp=2"
    device = args[0] if is_device else kwargs.get("device_type")
    first = f"meshkit.init(device={device!r}), then " if isinstance(device, str) else ""
    return SpecError(
        "these are the arguments of torch's init_device_mesh.",
        "build_mesh takes the size of each axis by its name, and the device is that of the job.",
        fix=f"{first}build_mesh({axes}).",
    )


def _is_shape(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | Mapping)
