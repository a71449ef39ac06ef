"""Models of Transformers on the groups of a mesh: split over tp, pp and data.

Transformers 5.23 creates a DeviceMesh and groups of its own unless a model gets one.
``from_pretrained(device_mesh=...)`` overwrites its argument. This adapter passes a view of the mesh
with the four axis names of Transformers. Its groups exist already::

    mesh   dp=2 tp=2
    view   pp=1 dp_replicate=1 fsdp=2 tp=2

cp belongs to torch's ``context_parallel``, which divides the attention. The data axis next to it
holds its ranks, too, so that gradients are averaged over both.

Tested with gloo: tp, fsdp and dp_replicate with tp, dp_replicate with fsdp, fsdp with cp, and pp
alone, forward. Never run: a GPU, pp with tp, and ``context_parallel``, which has no CPU kernel.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

from ..call import Call, quotes_call
from ..errors import SpecError
from ..groups.open_mesh import announcing_failure
from ..launch.job import require_job
from ..layout.axes import CONTEXT, DATA
from ..layout.layout import Layout
from ..mesh.mesh import Mesh
from ..synonyms import STANDARD
from ..text import article

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.distributed import DistributedConfig


AXES = ("pp", "dp_replicate", "fsdp", "tp")
NAMES_OF_DP = ("fsdp", "dp_replicate")


@quotes_call("distribute")
def distribute(
    model: PreTrainedModel,
    mesh: Mesh,
    *,
    data: Literal["fsdp", "dp_replicate"] = "fsdp",
    **options: Any,  # noqa: ANN401  # any field of DistributedConfig
) -> tuple[PreTrainedModel, Mesh]:
    """Split a model of Transformers over a mesh; each rank keeps its part.

    Collective over the world. First load the whole model on every rank, with equal weights. The
    function creates a view of the mesh, which shares the groups of the mesh. FSDP2 averages
    gradients over ``fsdp`` and ``dp_replicate`` in ``backward``. The axes of the mesh may nest in
    any order. If Transformers raises, the view is closed, and the model stays as Transformers left
    it.

    With cp, run the model inside torch's ``context_parallel(mesh.device_mesh("cp"), ...)``. The
    loss of a rank is then the mean over its own tokens.

    Args:
        model: a model with a ``tp_plan`` and an ``fsdp_plan`` if the mesh has such axes, from its
            class or from ``options``. It is changed.
        mesh: a mesh over all ranks of the world with axes ``pp``, ``dp``, ``dp_replicate``,
            ``fsdp``, ``tp`` and ``cp``. Any other axis must have size 1. cp must be next to a data
            axis, as in the standard order, and counts as a part of it.
        data: the role of ``dp``. ``"fsdp"`` splits the parameters over it. ``"dp_replicate"``
            keeps them whole (HSDP if there is an axis ``fsdp``, too).
        **options: more fields of ``transformers.distributed.DistributedConfig``.

    Returns:
        The model, and the view with the axes ``pp``, ``dp_replicate``, ``fsdp`` and ``tp``. When
        the model is no longer used, close the view, and the mesh last.

    Raises:
        SpecError: before any group is created, if Transformers does not know an axis, the mesh is
            not the whole world, Transformers rejects the config, or the model is not one of
            Transformers. The other ranks then raise DisagreementError.
        ImportError: if Transformers is missing, or has no ``TransformersDeviceMesh``.
        DisagreementError: if ranks request different sizes. Other options are not compared.

    Example:
        ``model, view = distribute(LlamaForCausalLM.from_pretrained(path), mesh)``
    """
    mesh_class = device_mesh_class()
    world = require_job().world
    keywords = {"data": None if data == "fsdp" else data, **options}
    with announcing_failure(world, Call("distribute", (model, mesh), keywords, ("model", "mesh"))):
        sizes = sizes_of_view(model, mesh.layout, data, world.world_size)
        config = make_config(sizes, options)
        if config.ep_size > 1:
            fix = "meshkit.interop.transformers_experts.distribute_experts(model, mesh, ep=...)."
            raise SpecError("experts need groups that a view does not have.", fix=fix)
    with ExitStack() as stack:
        view = stack.enter_context(mesh.view(sizes, order=" ".join(sizes)))
        dense = view.device_mesh(" ".join(AXES))
        distributed = model.maybe_distribute_model(model, config, mesh_class(dense, None))
        stack.pop_all()
    return distributed, view


def device_mesh_class() -> Any:  # noqa: ANN401  # untyped if Transformers is missing
    """Return the class of Transformers that wraps a DeviceMesh."""
    try:
        from transformers.distributed.utils import TransformersDeviceMesh
    except ImportError as error:
        needs = "meshkit.interop.transformers needs transformers 5.23"
        raise ImportError(f"{needs}: pip install transformers") from error
    return TransformersDeviceMesh


def sizes_of_view(model: object, layout: Layout, data: str, world: int) -> dict[str, int]:
    """Return the sizes of the view, the outermost first."""
    if data not in NAMES_OF_DP:
        fix = f"data={' or data='.join(map(repr, NAMES_OF_DP))}."
        raise SpecError(f"data is {data!r}.", fix=fix)
    sizes = rename_axes(fold_context(layout), data)
    if layout.num_ranks != world:
        raise SpecError(
            f"the mesh holds {layout.num_ranks} ranks of {world}.",
            "Transformers waits for all ranks of the world, and saves on rank 0.",
            fix=f"build_mesh over all {world} ranks.",
            sizes=layout.sizes,
            world_size=world,
        )
    if not hasattr(model, "maybe_distribute_model"):
        kind = article(type(model).__name__)
        fix = "for example AutoModelForCausalLM.from_pretrained(path)."
        raise SpecError(f"the model is {kind}, not one of Transformers.", fix=fix)
    return sizes


def rename_axes(layout: Layout, data: str) -> dict[str, int]:
    """Return the sizes by the names of Transformers, those of 1 first, the others as before."""
    long_axes = {axis: size for axis, size in layout.sizes.items() if size > 1}
    unknown = [axis for axis in long_axes if axis not in (*AXES, "dp")]
    if unknown:
        kept: dict[str, int] = {a: layout.size(a) for a in ("pp", "tp") if a in layout.axes}
        kept["dp"] = layout.num_ranks // math.prod(kept.values())
        ordered = {axis: kept[axis] for axis in STANDARD if axis in kept}
        raise SpecError(
            f"Transformers has no axis {' or '.join(unknown)}.",
            f"Its axes are {', '.join(AXES)};"
            f" {', '.join(f'{axis} is {layout.size(axis)}' for axis in unknown)}.",
            fix=f"{Call('build_mesh', kwargs=ordered)}, or other axes of this library.",
            sizes=layout.sizes,
        )
    if "dp" in long_axes and data in long_axes:
        other = next(name for name in NAMES_OF_DP if name != data)
        raise SpecError(
            f"dp would get the name {data}, which another axis has.",
            f"dp is {long_axes['dp']}, {data} is {long_axes[data]}.",
            fix=f"use another name for dp: data={other!r}.",
            sizes=layout.sizes,
        )
    sizes = {data if axis == "dp" else axis: size for axis, size in long_axes.items()}
    return dict.fromkeys((axis for axis in AXES if axis not in sizes), 1) | sizes


def fold_context(layout: Layout) -> Layout:
    """Return the layout with cp as a part of the data axis next to it, or else as dp."""
    sizes = {axis: size for axis, size in layout.sizes.items() if size > 1}
    axes = [*sizes]
    cp = next((axis for axis in axes if axis in CONTEXT), None)
    if cp is None:
        return layout
    at = axes.index(cp)
    beside = [axis for axis in (*axes[:at][-1:], *axes[at + 1 :][:1]) if axis in DATA]
    if not beside and any(axis in DATA for axis in axes):
        order = [axis for axis in STANDARD if axis in layout.axes]
        raise SpecError(
            f"{cp} is not next to a data axis.",
            f"The axes longer than 1 nest as {' '.join(axes)}.",
            "Gradients are averaged over both, which must be one axis for Transformers.",
            fix=f"build_mesh(..., order={' '.join(order)!r}).",
            sizes=layout.sizes,
        )
    name = beside[0] if beside else "dp"
    folded = {name if axis in (cp, name) else axis: size for axis, size in sizes.items()}
    return layout.view(**{**folded, name: sizes[cp] * sizes.get(name, 1)})


def make_config(sizes: dict[str, int], options: dict[str, Any]) -> DistributedConfig:
    """Return the config of Transformers for the sizes."""
    from transformers.distributed import DistributedConfig

    try:
        config = DistributedConfig(**{f"{name}_size": n for name, n in sizes.items()}, **options)
    except (TypeError, ValueError) as error:
        raise SpecError(
            "Transformers rejects the config.",
            str(error),
            fix="options that Transformers accepts.",
            sizes=sizes,
        ) from error
    return config
