"""Translate the arguments of torch's ``init_device_mesh`` into those of ``build_mesh``.

::

    init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))      build_mesh(dp=4, tp=2)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..call import Call
from ..errors import Fix, SpecError
from .axis_names import STANDARD, parse_axes

EXAMPLES = {1: ("dp",), 2: ("dp", "tp"), 3: ("pp", "dp", "tp")}  # names for a shape without names
FOREIGN = {"device_type", "mesh_shape", "mesh_dim_names", "backend_override"}


def explain_device_mesh_call(
    args: Sequence[object], kwargs: Mapping[str, object]
) -> SpecError | None:
    """Return the error if the arguments are those of ``init_device_mesh``."""
    device = args[0] if args and isinstance(args[0], str) else kwargs.get("device_type")
    if len(args) < 2 and device is None and not FOREIGN & kwargs.keys():
        return None
    shapes = [value for value in (*args, kwargs.get("mesh_shape")) if _is_shape(value)]
    shape = tuple(shapes[0]) if shapes else ()  # type: ignore[arg-type]
    names = parse_axes(kwargs.get("mesh_dim_names") or EXAMPLES.get(len(shape), ()))
    is_complete = len({*names}) == len(names) == len(shape)
    sizes = dict(zip(names, shape, strict=True)) if is_complete else {}
    others = {name: value for name, value in kwargs.items() if name not in FOREIGN}
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
