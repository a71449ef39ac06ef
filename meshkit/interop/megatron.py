"""Megatron-core: its rank tables as layouts, and its ``ProcessGroupCollection`` from meshes.

Megatron lays out the same ranks twice, for the dense layers and for the experts, in one order. Its
order begins with the fastest axis; a layout ends with it::

    order = "tp-cp-ep-dp-pp"      dense    Layout(pp, dp, ep=1, cp, tp)
                                  experts  Layout(pp, dp, ep, cp=1, tp)

Members of a group over several axes have the same order. Source: ``RankGenerator`` and
``initialize_model_parallel`` in ``megatron/core/parallel_state.py`` of version 0.16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..call import quotes_call
from ..errors import SpecError
from ..layout.group_plan import factor_world
from ..layout.layout import Layout
from ..mesh.mesh import Mesh
from ..synonyms import STANDARD

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection
    from torch.distributed import ProcessGroup

ORDER = "tp-cp-ep-dp-pp"  # the default of initialize_model_parallel

# field of a ProcessGroupCollection to the axes along which its members differ
DENSE = {
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "dp": "dp",
    "mp": "pp tp",
    "dp_cp": "dp cp",
    "intra_dp_cp": "dp cp",  # with one instance of the distributed optimizer
    "tp_cp": "tp cp",
    "tp_dp_cp": "tp dp cp",
}
EXPERT = {
    "ep": "ep",
    "expt_tp": "tp",
    "expt_dp": "dp",
    "intra_expt_dp": "dp",
    "tp_ep": "tp ep",
    "tp_ep_pp": "tp ep pp",
}
# without split experts an expert is a dense layer: field to the equal field
ALL_DENSE = {
    "expt_tp": "tp",
    "expt_dp": "dp_cp",
    "intra_expt_dp": "dp_cp",
    "tp_ep": "tp",
    "tp_ep_pp": "mp",
}


@quotes_call("layouts")
def layouts(
    world_size: int,
    *,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    order: str = ORDER,
) -> tuple[Layout, Layout]:
    """Return Megatron's layouts of the ranks, for the dense layers and for the experts. Pure.

    Args:
        world_size: the number of ranks; dp of both layouts is inferred from it.
        tp: the number of ranks that split a dense layer.
        pp: the number of stages.
        cp: the number of ranks that split a sequence.
        ep: the number of ranks that the experts are divided over.
        etp: the number of ranks that split an expert; None means ``tp``.
        order: Megatron's order, the fastest axis first. Axes of size 1 may be left out.

    Returns:
        Two layouts with the axes of the order from right to left, for
        ``build_mesh(sizes, order=axes)`` and ``mesh.view(sizes, order=axes)``. Take batches
        and samplers from the mesh of the dense layers, as experts may have smaller tp and cp.

    Raises:
        SpecError: if the sizes do not divide the world, if an axis is not in the order, or if the
            two layouts have different stages. Megatron rejects this, too.

    Cost: O(axes).

    Example:
        >>> layouts(16, tp=2, pp=2, ep=4, etp=1)
        (Layout(pp=2, dp=4, ep=1, cp=1, tp=2), Layout(pp=2, dp=2, ep=4, cp=1, tp=1))
    """
    sizes: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp, "ep": ep}
    listed = order.lower().split("-")
    unlisted = [axis for axis, size in sizes.items() if axis not in listed and size == 1]
    axes = [*listed, *unlisted][::-1]  # the outermost first
    dense = factor_world(world_size, order=axes, **{**sizes, "ep": 1})
    expert_sizes = {**sizes, "cp": 1, "tp": tp if etp is None else etp}
    experts = factor_world(world_size, order=axes, **expert_sizes)
    if dense.strides("pp") != experts.strides("pp"):
        raise SpecError(
            "the stages of dense layers and experts hold different ranks.",
            f"The pipeline of rank 0 is {dense.peers(0, 'pp').tolist()} for dense layers, "
            f"{experts.peers(0, 'pp').tolist()} for experts.",
            fix=f"use an order that ends with pp: order={ORDER!r}.",
            sizes=sizes,
            world_size=world_size,
        )
    return dense, experts


def groups(layout: Layout) -> list[str]:
    """Return Megatron's groups over several axes, for ``build_mesh(groups=...)``. Pure.

    Args:
        layout: the layout of the dense layers or of the experts. Axes that it lacks are left out.

    Example:
        >>> groups(Layout(pp=2, dp=2, cp=1, tp=2))
        ['pp tp', 'dp cp', 'cp tp', 'dp cp tp']
    """
    fields = EXPERT if layout.sizes.get("ep", 1) > 1 else {**DENSE, **EXPERT}
    axis_sets = (" ".join(_present_axes(layout, axes)) for axes in fields.values())
    return [axes for axes in dict.fromkeys(axis_sets) if " " in axes]


def ends(dense: Layout) -> Layout:
    """Return the layout of the first and the last stage. Pure.

    Megatron sums the gradients of tied embeddings over these two stages. With more than two stages
    a mesh has no such group. Create it with ``build_mesh(e.sizes, order=e.axes, ranks=e.ranks)``.
    ``dense`` is the layout of the dense layers, with an axis pp of 2 or more. O(ranks).

    Example:
        >>> ends(Layout(pp=4, dp=2)).groups("pp").tolist()
        [[0, 6], [1, 7]]
    """
    first_and_last = dense.groups("pp")[:, [0, -1]].T  # (2, ranks of a stage)
    return Layout(ranks=first_and_last.ravel(), pp=2, rest=first_and_last.shape[1])


@quotes_call("process_groups")
def process_groups(
    dense: Mesh, experts: Mesh | None = None, *, ends: Mesh | None = None
) -> ProcessGroupCollection:
    """Return the groups of meshes as Megatron-core's ``ProcessGroupCollection``.

    Local: no group is created. One instance of the distributed optimizer is assumed, and no
    hierarchical cp. ``embd`` and ``pos_embd`` follow Megatron's defaults: the first stage holds
    positions, the first and the last hold words. Both are None on all other ranks.

    Two fields may stay unset, and Megatron then raises when it needs them: ``embd`` with more than
    2 stages but no ``ends``, and ``pos_embd`` with several stages but no axis of size 1 in a mesh.

    Args:
        dense: a mesh with any of the axes pp dp cp tp, in Megatron's order.
        experts: a ``dense.view`` with any of pp dp ep tp; None if no layer has experts, or if none
            is split. An expert then has the groups of a dense layer. They are equal to Megatron's
            if dp and cp are neighbors in its order.
        ends: the mesh of :func:`ends`, for more than 2 stages.

    Raises:
        SpecError: if a group was not created (with the argument that creates it), if Megatron has
            no such axis, if nothing stands for a missing axis, if ``experts`` has other stages, or
            if ``ends`` does not belong to ``dense``.
        CoordinateError: on a rank outside ``dense``.
        MeshkitError: after ``close`` or ``shutdown``.
        ModuleNotFoundError: if megatron-core is not installed.

    Example:
        ::

            dense, experts = layouts(8, tp=2, pp=2, ep=2, etp=1)
            mesh = meshkit.build_mesh(dense.sizes, order=dense.axes, groups=groups(dense))
            view = mesh.view(experts.sizes, order=experts.axes, groups=groups(experts))
            pg_collection = process_groups(mesh, view)
    """
    from megatron.core.process_groups_config import ProcessGroupCollection

    _check_axes_known("dense", dense, DENSE)
    if experts is not None:
        _check_axes_known("experts", experts, EXPERT)
        _check_same_stages(dense.layout, experts.layout)
    fields = {field: _group(dense, axes) for field, axes in DENSE.items()}
    if experts is None:
        fields |= {field: fields[equal] for field, equal in ALL_DENSE.items()}
        fields["ep"] = _group(dense, "")
    else:
        fields |= {field: _group(experts, axes) for field, axes in EXPERT.items()}
    fields["intra_dist_opt"] = dense.group()
    unused = {"hcp": None, "inter_dist_opt": None}
    return ProcessGroupCollection(**fields, **unused, **_embedding_groups(dense, experts, ends))


def _check_axes_known(name: str, mesh: Mesh, fields: dict[str, str]) -> None:
    """Check that some group of the fields spans each axis of several ranks."""
    known = set(" ".join(fields.values()).split())
    for axis, size in mesh.layout.sizes.items():
        if size > 1 and axis not in known:
            raise SpecError(
                f"{name} is {mesh.layout!r}, and Megatron has no axis {axis} here.",
                f"Its axes are {' '.join(a for a in STANDARD if a in known)}.",
                fix=f"{axis}=1, or one of these axes: layouts(...) returns their sizes.",
                sizes=mesh.layout.sizes,
            )


def _check_same_stages(dense: Layout, experts: Layout) -> None:
    """Check that dense layers and experts have the same stages. Equal on every rank."""
    first = dense.ranks[0]
    dense_pipeline, expert_pipeline = _pipeline(dense, first), _pipeline(experts, first)
    if dense_pipeline != expert_pipeline or [*dense.ranks] != [*experts.ranks]:
        raise SpecError(
            f"the experts, {experts!r}, have other stages than the dense layers, {dense!r}.",
            f"The first pipeline is {expert_pipeline} for experts, {dense_pipeline} for dense "
            "layers.",
            fix="experts = dense.view(...), with the same size and position of pp.",
            sizes=experts.sizes,
        )


def _pipeline(layout: Layout, rank: int) -> list[int]:
    """Return the ranks of the stages of a rank; only the rank itself without an axis pp."""
    ranks: list[int] = layout.peers(rank, "pp").tolist() if "pp" in layout.axes else [rank]
    return ranks


def _present_axes(layout: Layout, axes: str) -> list[str]:
    """Return those of the axes that a layout has, the outermost first, as Megatron's members."""
    return [axis for axis in layout.axes if axis in axes.split()]


def _group(mesh: Mesh, axes: str) -> ProcessGroup:
    """Return the group over those of the axes that the mesh has; over none, a group of one rank."""
    present = _present_axes(mesh.layout, axes)
    if present:
        return mesh.group(*present)
    ones = _axes_of_size_one(mesh)
    if not ones:
        raise SpecError(
            f"Megatron needs a group over {axes or 'ep'}, and {mesh.layout!r} has neither such an "
            "axis nor one of size 1.",
            fix=f"give the mesh the axis {(axes or 'ep').split()[0]}=1.",
            sizes=mesh.layout.sizes,
        )
    return mesh.group(ones[0])


def _axes_of_size_one(mesh: Mesh) -> list[str]:
    return [axis for axis, size in mesh.layout.sizes.items() if size == 1]


def _embedding_groups(
    dense: Mesh, experts: Mesh | None, ends: Mesh | None
) -> dict[str, ProcessGroup | None]:
    """Return ``embd`` and ``pos_embd``, each if the meshes have a group for it."""
    pipeline = _pipeline(dense.layout, dense.rank)
    fields: dict[str, ProcessGroup | None] = {}
    if len(pipeline) <= 2:
        fields["embd"] = _group(dense, "pp")
    elif ends is not None:
        fields["embd"] = _ends_group(dense, ends)
    meshes = (mesh for mesh in (dense, experts, ends) if mesh is not None)
    with_one = next((mesh for mesh in meshes if _axes_of_size_one(mesh)), None)
    if with_one is not None:
        is_first = dense.rank == pipeline[0]  # and therefore inside the mesh of the ends
        fields["pos_embd"] = with_one.group(_axes_of_size_one(with_one)[0]) if is_first else None
    return fields


def _ends_group(dense: Mesh, ends_mesh: Mesh) -> ProcessGroup | None:
    """Return the group of the first and last stage; None on the stages between them."""
    expected = ends(dense.layout).groups("pp").tolist()
    if sorted(ends_mesh.layout.groups("pp").tolist()) != sorted(expected):
        raise SpecError(
            f"{ends_mesh.layout!r} are not the ends of {dense.layout!r}.",
            f"The ends of the first pipeline are {expected[0]}.",
            fix="e = ends(dense.layout); build_mesh(e.sizes, order=e.axes, ranks=e.ranks).",
            sizes=ends_mesh.layout.sizes,
        )
    return ends_mesh.group("pp") if ends_mesh.inside else None
