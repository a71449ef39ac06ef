"""Transformers on the groups of a mesh: its model, split over tp, pp and data.

Transformers 5.23 makes a DeviceMesh and groups of its own unless its model is handed one;
``from_pretrained(device_mesh=...)`` overwrites what it is given. Here it is handed a view of the
mesh with its own four names, out of groups that exist but for one of a single rank::

    mesh   dp=2 tp=2
    view   pp=1 dp_replicate=1 fsdp=2 tp=2
             └───────┴─ a group of one, the only one made

Run, on gloo: tp, fsdp and dp_replicate with tp, dp_replicate with fsdp, and pp alone, forward.
Never run: a GPU, and pp with tp.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

from ..core.call import public
from ..core.errors import Change, MeshkitError, SpecError
from ..core.grid.layout import Layout
from ..core.text import article
from ..launch.current_job import require_job
from ..live.mesh import Mesh
from ..live.setup.failure import announce_failure
from .axis_names import check_data, rename_axes

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.distributed import DistributedConfig

AXES = ("pp", "dp_replicate", "fsdp", "tp")


@public("distribute")
def distribute(
    model: PreTrainedModel,
    mesh: Mesh,
    *,
    data: Literal["fsdp", "dp_replicate"] = "fsdp",
    **options: Any,  # noqa: ANN401  # whatever DistributedConfig takes
) -> tuple[PreTrainedModel, Mesh]:
    """Split a model of Transformers over a mesh, each rank keeping its part.

    Collective over the world. Load the model whole on every rank first, with equal weights. Makes
    a view of the mesh, whose groups are those of the mesh; for axes of one rank, one group of one.
    Gradients are averaged over ``fsdp`` and ``dp_replicate`` by FSDP2, in ``backward``. The axes
    of the mesh may nest in any order. Where Transformers itself raises, its view is closed and the
    model is what Transformers left of it.

    Args:
        model: with a ``tp_plan`` and an ``fsdp_plan`` where the mesh has such axes, as the model's
            class or ``options`` give it. It is changed.
        mesh: over all ranks of the world, with axes ``pp``, ``dp``, ``dp_replicate``, ``fsdp`` and
            ``tp`` at most; any other must be of one rank.
        data: what ``dp`` is to Transformers: ``"fsdp"`` splits the parameters over it,
            ``"dp_replicate"`` keeps them whole (with an axis ``fsdp`` beside it: HSDP).
        **options: more fields of ``transformers.distributed.DistributedConfig``.

    Returns:
        The model, and the view by which ``pp``, ``dp_replicate``, ``fsdp`` and ``tp`` can be
        asked. Close the view, or the mesh last of all, when the model is not used any more.

    Raises:
        SpecError: before anything is made, for an axis that Transformers does not have, for a mesh
            that is not the whole world, for what Transformers' config refuses, and for something
            that is no model of Transformers. The other ranks are told.
        ImportError: where Transformers is not installed, or has no ``TransformersDeviceMesh``.
        DisagreementError: where ranks ask for different sizes. Other options are not compared.

    Example:
        ``model, view = distribute(LlamaForCausalLM.from_pretrained(path), mesh)``
    """
    mesh_class = _device_mesh_class()
    world = require_job().world
    try:
        sizes = _sizes(model, mesh.layout, data, world.world_size)
        config = _config(sizes, options)
    except MeshkitError as error:
        announce_failure(world, error)
        raise
    with ExitStack() as stack:
        view = stack.enter_context(mesh.view(sizes, order=" ".join(sizes)))
        dense = view.device_mesh(" ".join(AXES))
        split = model.maybe_distribute_model(model, config, mesh_class(dense, None))
        stack.pop_all()
    return split, view


def _device_mesh_class() -> Any:  # noqa: ANN401  # untyped where Transformers is not installed
    """What Transformers wraps a DeviceMesh in."""
    try:
        from transformers.distributed.utils import TransformersDeviceMesh
    except ImportError as error:
        needs = "meshkit.interop.transformers needs transformers 5.23"
        raise ImportError(f"{needs}: pip install 'meshkit[interop]'") from error
    return TransformersDeviceMesh


def _sizes(model: object, layout: Layout, data: str, world: int) -> dict[str, int]:
    """The sizes of the view, from the outside in.

    Raises:
        SpecError: for what can be refused before a config exists.
    """
    check_data(data, ("fsdp", "dp_replicate"))
    sizes = rename_axes(layout, "Transformers", AXES, data)
    if layout.num_ranks != world:
        raise SpecError(
            f"the mesh holds {layout.num_ranks} ranks of {world}.",
            "Transformers waits for all ranks of the world, and saves on its rank 0.",
            fix=f"build_mesh over all {world} ranks.",
            sizes=layout.sizes,
            world_size=world,
        )
    if not hasattr(model, "maybe_distribute_model"):
        kind = article(type(model).__name__)
        fix = "AutoModelForCausalLM.from_pretrained(path), say."
        raise SpecError(f"the model is {kind}, none of Transformers'.", fix=fix)
    return sizes


def _config(sizes: dict[str, int], options: dict[str, Any]) -> DistributedConfig:
    """Transformers' own words for the sizes.

    Raises:
        SpecError: for what Transformers refuses, and for experts, which need other groups.
    """
    from transformers.distributed import DistributedConfig

    try:
        config = DistributedConfig(**{f"{name}_size": n for name, n in sizes.items()}, **options)
    except (TypeError, ValueError) as error:
        raise SpecError(
            "Transformers refuses.", str(error), fix="what Transformers asks for.", sizes=sizes
        ) from error
    if config.ep_size > 1:
        fix = (Change(ep_size=None, enable_expert_parallel=None), ".")
        raise SpecError("experts need groups that no view has.", fix=fix)
    return config
