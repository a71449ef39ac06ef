"""Accelerate on the groups of a mesh: its ParallelismConfig, with the DeviceMesh filled in.

``Accelerator(parallelism_config=config)`` and ``prepare_data_loader(torch_device_mesh=...)`` take
it from there::

    mesh               dp=4 tp=2
    config.device_mesh dp_shard=4 tp=2, and by further names: dp, dp_shard_cp, dp_cp (all dp_shard)

Run, on gloo: the config beside Accelerate's own, axis by axis, and its data loader. Never run: an
``Accelerator`` that is given such a config, and so its FSDP2, HSDP, DDP, TP and CP. Accelerate
1.15 refuses a ParallelismConfig of more than one rank without an accelerator.
"""

from __future__ import annotations

from contextlib import ExitStack
from copy import copy
from typing import TYPE_CHECKING, Any, Literal

from torch.distributed.device_mesh import DeviceMesh

from ..core.call import public
from ..core.errors import MeshkitError, SpecError
from ..core.grid.layout import Layout
from ..launch.current_job import require_job
from ..live.mesh import Mesh
from ..live.setup.failure import announce_failure
from .axis_names import check_data, rename_axes

if TYPE_CHECKING:
    from accelerate import ParallelismConfig

AXES = ("dp_replicate", "dp_shard", "cp", "tp")  # as Accelerate nests them


@public("parallelism_config")
def parallelism_config(
    mesh: Mesh,
    *,
    data: Literal["dp_shard", "dp_replicate"] = "dp_shard",
    **options: Any,  # noqa: ANN401  # whatever ParallelismConfig takes
) -> tuple[ParallelismConfig, Mesh]:
    """Accelerate's description of a mesh, with a DeviceMesh of the mesh's groups in it.

    Collective over the world. Makes a view of the mesh, which makes no group for a mesh of dp, cp
    and tp. Accelerate wants three further names on the DeviceMesh: ``dp``, ``dp_shard_cp`` and
    ``dp_cp``. Where such a name stands for one axis, or for all ranks, no group is made for it
    either; where it stands for several axes but not for all ranks (``dp_replicate dp_shard`` beside
    tp, say), torch makes one, once for equal axes, which stays till the end of the job.

    Args:
        mesh: over all ranks of the world in order, with axes ``dp``, ``dp_replicate``,
            ``dp_shard``, ``cp`` and ``tp`` at most, nested in this order; any other must be of one
            rank. Accelerate leaves sp to DeepSpeed, which makes groups of its own.
        data: what ``dp`` is to Accelerate: ``"dp_shard"`` (FSDP2) or ``"dp_replicate"`` (DDP; with
            an axis ``dp_shard`` beside it, HSDP).
        **options: more fields of ``ParallelismConfig``, such as ``tp_handler``.

    Returns:
        The config, and the view whose groups are in ``config.device_mesh`` (None for one rank):
        close the view, or the mesh last of all, when both are not used any more.

    Raises:
        SpecError: before anything is made, for an axis that Accelerate does not have, for ranks
            that do not count up through its axes, as its data loader takes for granted, and for
            what ParallelismConfig refuses. The other ranks are told.
        ImportError: where Accelerate is not installed.
        DisagreementError: where ranks ask for different sizes. Other options are not compared.

    Example:
        ``config, view = parallelism_config(mesh)``
    """
    config_class = _config_class()
    world = require_job().world
    try:
        check_data(data, ("dp_shard", "dp_replicate"))
        sizes = rename_axes(mesh.layout, "Accelerate", AXES, data)
        _check_counting(mesh.layout, data, world.world_size)
        config = _config(config_class, sizes, options)
    except MeshkitError as error:
        announce_failure(world, error)
        raise
    split = {name: sizes[name] for name in AXES if sizes[name] > 1}
    with ExitStack() as stack:
        view = stack.enter_context(mesh.view(split or {data: 1}, order=" ".join(split or (data,))))
        config.device_mesh = _named(view.device_mesh(), config) if split else None
        stack.pop_all()
    return config, view


def _config_class() -> Any:  # noqa: ANN401  # untyped where Accelerate is not installed
    """Accelerate's own class."""
    try:
        from accelerate import ParallelismConfig
    except ImportError as error:
        text = "meshkit.interop.accelerate needs accelerate 1.15: pip install 'meshkit[interop]'"
        raise ImportError(text) from error
    return ParallelismConfig


def _config(
    config_class: Any,  # noqa: ANN401
    sizes: dict[str, int],
    options: dict[str, Any],
) -> ParallelismConfig:
    """The config, every size said, so that none is read from the environment.

    Raises:
        SpecError: for what Accelerate refuses: dp_replicate with tp, and without dp_shard, say.
    """
    said = {f"{name}_size": size for name, size in {**sizes, "sp": 1}.items()}
    try:
        return config_class(**said, **options)
    except (TypeError, ValueError) as error:
        raise SpecError(
            "Accelerate refuses.", str(error), fix="what Accelerate asks for.", sizes=sizes
        ) from error


def _check_counting(layout: Layout, data: str, world: int) -> None:
    """Refuse ranks that do not count up through the axes as Accelerate nests them.

    Its data loader divides the rank by tp x cp to know which batches are this rank's.

    Raises:
        SpecError: with both orders.
    """
    split = [axis for axis in layout.axes if layout.size(axis) > 1]
    nested = sorted(split, key=lambda axis: AXES.index(data if axis == "dp" else axis))
    ranks = [*layout.ranks]
    if nested == split and ranks == [*range(world)]:
        return
    order = f", order={' '.join(nested)!r}" if nested != split else ""
    raise SpecError(
        f"ranks do not count up through {' '.join(nested)}.",
        f"The mesh nests {' '.join(split)} over {len(ranks)} ranks of {world}, from {ranks[0]} on;"
        " Accelerate's data loader reads a rank's batches off its number.",
        fix=f"build_mesh over all ranks in order{order}.",
        sizes=layout.sizes,
        world_size=world,
    )


def _named(device_mesh: DeviceMesh, config: ParallelismConfig) -> DeviceMesh:
    """The DeviceMesh, known by the further names that Accelerate looks for."""
    names = {
        "dp": (*config.dp_dim_names,),
        "dp_shard_cp": (*config.dp_shard_cp_dim_names,),
        "dp_cp": (*config.dp_cp_dim_names,),
    }
    flat: dict[tuple[str, ...], DeviceMesh] = {}
    for name, axes in names.items():
        if axes:
            flat[axes] = _also(device_mesh, name, axes, flat.get(axes))
    return device_mesh


def _also(
    device_mesh: DeviceMesh, name: str, axes: tuple[str, ...], known: DeviceMesh | None
) -> DeviceMesh:
    """One more name for some axes of a DeviceMesh; ``known`` is what stands for them already.

    The one place of what is private to torch: ``_flatten``, as ``build_device_mesh`` of Accelerate
    calls it, makes a group for each name. For one axis, and for axes that have such a name, a copy
    under the new name is entered where torch 2.13 keeps what ``_flatten`` made, so that no group is
    made. A torch that keeps it elsewhere is left to ``_flatten``.
    """
    one = device_mesh[axes] if len(axes) == 1 else known
    if one is None or not (hasattr(one, "_flatten_mapping") and hasattr(one, "_mesh_dim_names")):
        return device_mesh[axes]._flatten(name)
    twin = copy(one)
    twin._mesh_dim_names = (name,)
    device_mesh._flatten_mapping[name] = twin
    return twin
