"""Names and arguments of other calls and libraries, and the line to type in place of them.

::

    build_mesh(dp=8, seed=42)            seed is an option of meshkit.init
    build_mesh(dp=4, global_batch=64)    global_batch is a size of mesh.batch
    build_mesh(dp_size=4, tp_size=2)     the axes are dp and tp
    build_mesh(dp=4, batch_size=8)       batch_size is micro_batch, a size of mesh.batch
    build_mesh("cuda", (4, 2), ...)      these are the arguments of init_device_mesh
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from ..call import Call
from ..errors import Change, Fix, SpecError
from .axes import SYNONYMS
from .axis_names import (
    BATCH_OPTIONS,
    INIT_OPTIONS,
    RESERVED,
    STANDARD,
    option_owner,
    parse_axes,
)
from .roles import axis_role

SUFFIX = r"_(size|degree|dim|ranks|world_size|parallel|parallelism|parallel_size)$"
BATCH_NAMES = {  # sizes of a batch in other libraries
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
}
OTHER_NAMES = {
    **BATCH_NAMES,
    "timeouts": "timeout",
    "axis_order": "order",
    "dim_order": "order",
}
DEVICE_MESH_NAMES = {"device_type", "mesh_shape", "mesh_dim_names", "backend_override"}
# axes for a shape without names
EXAMPLES = {1: ("dp",), 2: ("dp", "tp"), 3: ("pp", "dp", "tp")}


def standard_axis(name: str) -> str | None:
    """Return the standard axis that a name of another library means, or None.

    Example:
        >>> standard_axis("tensor_model_parallel_size"), standard_axis("dp_shard")
        ('tp', None)
    """
    word = name
    while (shorter := re.sub(SUFFIX, "", word)) != word:
        word = shorter
    return SYNONYMS.get(word)


def check_options(sizes: Mapping[str, object], names: Iterable[str]) -> None:
    """Check that none of the names is an option of another call, or another name of an axis."""
    renamed = _rename(names)
    moved = [name for name in sizes if name in INIT_OPTIONS or name in BATCH_OPTIONS]
    if not renamed and not moved:
        return
    given = {**{new: sizes[name] for name, new in renamed.items()}, **sizes}
    moved += [new for new in renamed.values() if new in INIT_OPTIONS | BATCH_OPTIONS]
    lines = [f"{name} is called {new} here." for name, new in renamed.items()]
    lines += [f"{name} is an option of {option_owner(name)}, not an axis." for name in moved]
    changes: dict[str, object] = dict.fromkeys((*moved, *renamed))
    stay = [new for new in renamed.values() if new not in moved and new not in sizes]
    changes |= {new: _intended_size(given[new]) if new in STANDARD else given[new] for new in stay}
    init = {name: given[name] for name in moved if name in INIT_OPTIONS}
    batch = {name: given[name] for name in moved if name in BATCH_OPTIONS}
    first = f"{Call('meshkit.init', kwargs=init)}, then " if init else ""
    then = f", then {Call('mesh.batch', kwargs=_complete(batch))}" if batch else ""
    fix = (first, Change(**changes), f"{then}.")
    raise SpecError(lines[0], *lines[1:], fix=fix, sizes=dict(sizes))


def check_view_names(sizes: Mapping[str, object]) -> None:
    """Check that no keyword of a view is another name of a standard axis, such as ``dp_size``."""
    unknown = [name for name in sizes if axis_role(name) == "unknown"]
    check_options(sizes, [name for name in unknown if standard_axis(name)])


def _rename(names: Iterable[str]) -> dict[str, str]:
    """Return the names that stand for an axis or an option, with that axis or option.

    Names of other libraries stay, unless the whole mesh can be written with standard axes.
    """
    unknown = [n for n in names if not (n in STANDARD or n in INIT_OPTIONS or n in BATCH_OPTIONS)]
    renamed = {name: _other_name(name) for name in unknown}
    is_complete = all(renamed.values())
    kept = {name for name in unknown if axis_role(name) != "unknown" and not is_complete}
    return {name: new for name, new in renamed.items() if new and name not in kept}


def _other_name(name: str) -> str | None:
    """Return the axis or the option that a name stands for, or None."""
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    if name in RESERVED or axis_role(name) != "unknown":
        return standard_axis(name)
    close = difflib.get_close_matches(name, sorted(RESERVED), n=1, cutoff=0.8)
    return standard_axis(name) or (close[0] if close else None)


def _intended_size(size: object) -> object:
    """Return the size that a text or a float stands for; None for a switch, which is no size."""
    return None if size is None or isinstance(size, bool) else guess_size(size)


def guess_size(size: object) -> int:
    """Return 4 for ``"4"`` and 4.0, and -1 for ``"-1"`` and ``"auto"``.

    Other values give 1, which switches the axis off.
    """
    try:
        number = 0 if isinstance(size, bool) else int(float(size))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = -1 if size == "auto" else 0
    return number if number == -1 else max(number, 1)


def _complete(batch: Mapping[str, object]) -> dict[str, object]:
    """Return sizes of a batch that give the third: a single one with a micro batch of 1."""
    if len(batch) > 1:
        return dict(batch)
    return {**batch, "accumulation_steps" if "micro_batch" in batch else "micro_batch": 1}


def explain_device_mesh_call(
    args: Sequence[object], kwargs: Mapping[str, object]
) -> SpecError | None:
    """Return the error if the arguments are those of ``init_device_mesh``."""
    device = args[0] if args and isinstance(args[0], str) else kwargs.get("device_type")
    if len(args) < 2 and device is None and not DEVICE_MESH_NAMES & kwargs.keys():
        return None
    shapes = [value for value in (*args, kwargs.get("mesh_shape")) if _is_shape(value)]
    shape = tuple(shapes[0]) if shapes else ()  # type: ignore[arg-type]
    names = parse_axes(kwargs.get("mesh_dim_names") or EXAMPLES.get(len(shape), ()))
    is_complete = len({*names}) == len(names) == len(shape)
    sizes = dict(zip(names, shape, strict=True)) if is_complete else {}
    others = {name: value for name, value in kwargs.items() if name not in DEVICE_MESH_NAMES}
    return SpecError(
        "these are the arguments of torch's init_device_mesh.",
        "build_mesh takes the size of each axis by its name, and the device is that of the job.",
        fix=_translate(device, sizes, others),
    )


def _is_shape(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | Mapping)


def _translate(device: object, sizes: Mapping[str, object], others: dict[str, object]) -> Fix:
    """Return the calls of init and build_mesh with the same device, names and sizes."""
    if not sizes:
        return "for example build_mesh(dp=4, tp=2)."
    first = f"{Call('meshkit.init', kwargs={'device': device})}, then " if device else ""
    if not sizes.keys() <= {*STANDARD}:
        return f"{first}{Call('build_mesh', (dict(sizes),), others)}."
    if [*sizes] != sorted(sizes, key=STANDARD.index):
        others = {**others, "order": " ".join(sizes)}
    return f"{first}{Call('build_mesh', kwargs={**sizes, **others})}."
