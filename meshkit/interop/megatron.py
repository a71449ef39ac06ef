"""Megatron-core: its rank tables as layouts, its ``ProcessGroupCollection`` from meshes.

Megatron lays the same ranks out twice, once for the dense layers and once for the experts, in one
order, the fastest axis first. Ours is the last, so its order is read from right to left::

    order = "tp-cp-ep-dp-pp"      dense    Layout(pp, dp, ep=1, cp, tp)
                                  experts  Layout(pp, dp, ep, cp=1, tp)

Members of a group over several axes come in this order too. Source: ``RankGenerator`` and
``initialize_model_parallel`` in ``megatron/core/parallel_state.py`` of 0.16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.call import public
from ..core.errors import Change, SpecError
from ..core.grid.axis_names import STANDARD
from ..core.grid.factor import factor_world
from ..core.grid.layout import Layout
from ..live.mesh import Mesh

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection
    from torch.distributed import ProcessGroup

ORDER = "tp-cp-ep-dp-pp"  # what initialize_model_parallel takes where no other is given

# the fields of a ProcessGroupCollection, by the axes in which their members differ
DENSE = {
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "dp": "dp",
    "mp": "pp tp",
    "dp_cp": "dp cp",
    "intra_dp_cp": "dp cp",  # of the one instance of the distributed optimizer
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
# where no expert is split, an expert is a dense layer: field to field
ALL_DENSE = {
    "expt_tp": "tp",
    "expt_dp": "dp_cp",
    "intra_expt_dp": "dp_cp",
    "tp_ep": "tp",
    "tp_ep_pp": "mp",
}


@public("layouts")
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
    """How Megatron lays ranks out: the dense layers and the experts. Pure arithmetic, O(axes).

    Args:
        world_size: how many ranks there are; the two dp are inferred from it.
        tp: ranks that split a dense layer.
        pp: stages.
        cp: ranks that split a sequence.
        ep: ranks that share the experts out.
        etp: ranks that split an expert; None means ``tp``.
        order: Megatron's, the fastest axis first. Axes of size 1 may be left out.

    Returns:
        Both with the axes of the order, from right to left, for ``build_mesh(sizes, order=axes)``
        and ``mesh.view(sizes, order=axes)``.

    Raises:
        SpecError: where the sizes do not divide the world or are not in the order; where the
            stages of the two would differ, which Megatron refuses too.

    Example:
        >>> layouts(16, tp=2, pp=2, ep=4, etp=1)
        (Layout(pp=2, dp=4, ep=1, cp=1, tp=2), Layout(pp=2, dp=2, ep=4, cp=1, tp=1))
    """
    sizes: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp, "ep": ep}
    written = order.lower().split("-")
    unwritten = [axis for axis, size in sizes.items() if axis not in written and size == 1]
    axes = [*written, *unwritten][::-1]  # the last are the outermost
    dense = factor_world(world_size, order=axes, **{**sizes, "ep": 1})
    split = {**sizes, "cp": 1, "tp": tp if etp is None else etp}
    experts = factor_world(world_size, order=axes, **split)
    if dense.strides("pp") != experts.strides("pp"):
        raise SpecError(
            "the stages of dense layers and experts hold different ranks.",
            f"Rank 0 is in one pipeline with {dense.peers(0, 'pp')[1:].tolist()} by the dense "
            f"layout, with {experts.peers(0, 'pp')[1:].tolist()} by that of the experts.",
            fix=("an order that ends with pp: ", Change(order=ORDER), "."),
            sizes=sizes,
            world_size=world_size,
        )
    return dense, experts


def groups(layout: Layout) -> list[str]:
    """The groups over several axes that Megatron asks for, for ``build_mesh(groups=...)``. Local.

    Args:
        layout: that of the dense layers or of the experts; axes it does not have are left out.

    Example:
        >>> groups(Layout(pp=2, dp=2, cp=1, tp=2))
        ['pp tp', 'dp cp', 'cp tp', 'dp cp tp']
    """
    fields = EXPERT if layout.sizes.get("ep", 1) > 1 else {**DENSE, **EXPERT}
    asked = (" ".join(_present(layout, axes)) for axes in fields.values())
    return [axes for axes in dict.fromkeys(asked) if " " in axes]


def ends(dense: Layout) -> Layout:
    """The first and the last stage, as a layout of their own. Local, O(ranks).

    More than two stages share no group of the first and the last, over which Megatron adds up the
    gradients of tied embeddings. Build it: ``build_mesh(e.sizes, order=e.axes, ranks=e.ranks)``.

    Args:
        dense: with an axis pp of 2 or more.

    Example:
        >>> ends(Layout(pp=4, dp=2)).groups("pp").tolist()
        [[0, 6], [1, 7]]
    """
    first_and_last = dense.groups("pp")[:, [0, -1]].T  # (2, ranks of a stage)
    return Layout(ranks=first_and_last.ravel(), pp=2, rest=first_and_last.shape[1])


def process_groups(
    dense: Mesh, experts: Mesh | None = None, *, ends: Mesh | None = None
) -> ProcessGroupCollection:
    """The groups of meshes as Megatron-core's ``ProcessGroupCollection``.

    Local: groups are looked up, none is made. Those that were not built are refused before
    anything is returned. One instance of the distributed optimizer is assumed, and no hierarchical
    cp. ``embd`` and ``pos_embd`` are Megatron's own defaults: the first stage holds positions, the
    first and the last hold words; both are None on all others. Where they cannot be had (``embd``
    of more than 2 stages without ``ends``; ``pos_embd``, a group of one, where pp is longer than 1
    and no mesh has an axis of size 1) the field is not set, and Megatron says so where it is used.

    Args:
        dense: with any of the axes pp dp cp tp, nested as in Megatron's order.
        experts: with any of pp dp ep tp, a ``dense.view``; None where no layer has experts, or
            none is split: then an expert's groups are those of a dense layer, which are Megatron's
            own wherever dp and cp are neighbours in its order.
        ends: the mesh of :func:`ends`, where there are more than 2 stages.

    Raises:
        SpecError: for a group that was not built, with the argument that builds it; for an axis
            that Megatron does not have, or where nothing stands for one that is absent; for
            ``experts`` of other stages, and ``ends`` that are not those of ``dense``.
        CoordinateError: on a rank outside ``dense``.
        MeshkitError: after ``close``, or after ``shutdown``.
        ModuleNotFoundError: where megatron-core is not installed.

    Example:
        ::

            dense, experts = layouts(8, tp=2, pp=2, ep=2, etp=1)
            mesh = meshkit.build_mesh(dense.sizes, order=dense.axes, groups=groups(dense))
            view = mesh.view(experts.sizes, order=experts.axes, groups=groups(experts))
            pg_collection = process_groups(mesh, view)
    """
    from megatron.core.process_groups_config import ProcessGroupCollection

    _check_axes("dense", dense, DENSE)
    if experts is not None:
        _check_axes("experts", experts, EXPERT)
        _check_stages(dense.layout, experts.layout)
    found = {field: _group(dense, axes) for field, axes in DENSE.items()}
    if experts is None:
        found |= {field: found[same] for field, same in ALL_DENSE.items()}
        found["ep"] = _group(dense, "")
    else:
        found |= {field: _group(experts, axes) for field, axes in EXPERT.items()}
    found["intra_dist_opt"] = dense.group()
    none = {"hcp": None, "inter_dist_opt": None}
    embeddings = _embeddings(dense, experts, ends)
    return ProcessGroupCollection(**found, **none, **embeddings)


def _check_axes(which: str, mesh: Mesh, fields: dict[str, str]) -> None:
    """Refuse an axis of several ranks that no group of these fields would reach."""
    known = set(" ".join(fields.values()).split())
    for axis, size in mesh.layout.sizes.items():
        if size > 1 and axis not in known:
            raise SpecError(
                f"process_groups: {which} is {mesh.layout!r}; Megatron has no axis {axis} of size "
                f"{size} here; it has {' '.join(a for a in STANDARD if a in known)}.",
                fix=f"{axis}=1, or the axis that it is to Megatron: layouts(...) has them.",
                sizes=mesh.layout.sizes,
            )


def _check_stages(dense: Layout, experts: Layout) -> None:
    """Refuse experts whose pipelines are others; the same on every rank."""
    here, there = (_pipeline(layout, dense.ranks[0]) for layout in (dense, experts))
    if here != there or [*dense.ranks] != [*experts.ranks]:
        raise SpecError(
            f"process_groups: the experts, {experts!r}, have other stages than the dense layers, "
            f"{dense!r}.",
            f"The first pipeline is {there} of the experts, {here} of the dense layers.",
            fix="experts = dense.view(...), with the same pp, at the same place.",
            sizes=experts.sizes,
        )


def _pipeline(layout: Layout, rank: int) -> list[int]:
    """The ranks of the stages of a rank; itself where there is one."""
    ranks: list[int] = layout.peers(rank, "pp").tolist() if "pp" in layout.axes else [rank]
    return ranks


def _present(layout: Layout, axes: str) -> list[str]:
    """Those of the axes that a layout has, from the outside in, as Megatron orders members."""
    return [axis for axis in layout.axes if axis in axes.split()]


def _group(mesh: Mesh, axes: str) -> ProcessGroup:
    """The group over those of the axes that the mesh has; of this rank alone where it has none."""
    present = _present(mesh.layout, axes)
    if present:
        return mesh.group(*present)
    ones = _ones(mesh)
    if not ones:
        raise SpecError(
            f"process_groups: Megatron asks for a group over {axes or 'ep'}, and {mesh.layout!r} "
            "has no such axis, nor one of size 1 to stand for it.",
            fix=f"give the mesh the axis {(axes or 'ep').split()[0]}=1.",
            sizes=mesh.layout.sizes,
        )
    return mesh.group(ones[0])


def _ones(mesh: Mesh) -> list[str]:
    return [axis for axis, size in mesh.layout.sizes.items() if size == 1]


def _embeddings(
    dense: Mesh, experts: Mesh | None, ends: Mesh | None
) -> dict[str, ProcessGroup | None]:
    """Those of ``embd`` and ``pos_embd`` that the meshes have groups for."""
    pipeline = _pipeline(dense.layout, dense.rank)
    fields: dict[str, ProcessGroup | None] = {}
    if len(pipeline) <= 2:
        fields["embd"] = _group(dense, "pp")
    elif ends is not None:
        fields["embd"] = _of_ends(dense, ends)
    alone = next((mesh for mesh in (dense, experts, ends) if mesh and _ones(mesh)), None)
    if alone is not None:
        first = dense.rank == pipeline[0]  # and so inside the ends
        fields["pos_embd"] = alone.group(_ones(alone)[0]) if first else None
    return fields


def _of_ends(dense: Mesh, built: Mesh) -> ProcessGroup | None:
    """The group of the first and last stage; None in between."""
    right = ends(dense.layout).groups("pp").tolist()
    if sorted(built.layout.groups("pp").tolist()) != sorted(right):
        raise SpecError(
            f"process_groups: {built.layout!r} are not the ends of {dense.layout!r}.",
            f"The ends of the first pipeline are {right[0]}.",
            fix="e = ends(dense.layout); build_mesh(e.sizes, order=e.axes, ranks=e.ranks).",
            sizes=built.layout.sizes,
        )
    return built.group("pp") if built.inside else None
