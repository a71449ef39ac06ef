"""DeepSpeed: a mesh as the model parallel unit that ``deepspeed.initialize(mpu=...)`` asks.

The names are those that DeepSpeed 0.19 asks for (``deepspeed/utils/groups.py``, ``utils/bwc.py``,
``runtime/model_checkpointing/utils.py``). This file imports no DeepSpeed: it calls us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch.distributed as dist

from ..core.call import public
from ..core.errors import Change, SpecError
from ..core.grid.axis_names import check_axes_exist, parse_axes
from ..live.mesh import Mesh

# what DeepSpeed calls the groups over the axes of a role
NAMES = {
    "data": ("data_parallel",),
    "model": ("model_parallel",),
    "tensor": ("tensor_model_parallel", "slice_parallel"),
    "sequence": ("sequence_parallel",),
    "sequence_data": ("sequence_data_parallel",),
    "pipeline": ("pipeline_model_parallel", "pipe_parallel"),
}
USUAL = {
    "data": ("dp",),
    "model": ("pp", "tp"),
    "tensor": ("tp",),
    "sequence": ("sp",),
    "pipeline": ("pp",),
}
ALWAYS = ("data", "model", "tensor")  # the others are asked only where there is such an axis

Axes = str | Iterable[str]


class Mpu:
    """What ``deepspeed.initialize(mpu=Mpu(mesh))`` asks, answered by the groups of a mesh.

    Local: no group is made, no rank is waited for, and every group is looked up once here, so that
    one that was not built is refused before DeepSpeed starts. For each name there are
    ``get_NAME_group()``, ``get_NAME_rank()``, ``get_NAME_world_size()`` and
    ``get_NAME_group_ranks()``; and there is ``get_tensor_model_parallel_src_rank()``::

        data_parallel                          dp
        model_parallel                         pp tp
        tensor_model_parallel, slice_parallel  tp
        pipeline_model_parallel, pipe_parallel pp        where the mesh has it
        sequence_parallel                      sp        where the mesh has it
        sequence_data_parallel                 dp sp     where the mesh has sp

    Over dp, DeepSpeed averages gradients. Over sp it adds them up: what each rank calls
    ``engine.backward`` with must be its share of the mean over the whole sequence. Of a mean over
    as many local tokens on every rank, that is the mean divided by sp.

    Args:
        mesh: any mesh with dp, and tp or pp or an axis of size 1 to stand for what is absent.
        data: the axes along which ranks read different samples; None is ``dp``.
        model: those that split the model; None is those of ``pp tp`` that the mesh has.
        tensor: those that split each layer; None is ``tp`` where the mesh has it.
        sequence: those that split each sequence; None is ``sp`` where the mesh has it. Other
            axes for it, ``cp`` say, are said here.
        pipeline: those that split the layers into stages; None is ``pp`` where the mesh has it.

    Raises:
        SpecError: where an axis longer than 1 has no role, as ranks along it would drift apart;
            where nothing stands for an absent axis; for a group that was not built.
        UnknownAxisError: for an axis given that the mesh does not have.
        CoordinateError: on a rank outside the mesh.
        MeshkitError: after ``mesh.close``, here and in every method.

    Example:
        ``deepspeed.initialize(model=model, optimizer=optimizer, mpu=Mpu(mesh), config=config)``
    """

    @public("Mpu")
    def __init__(
        self,
        mesh: Mesh,
        *,
        data: Axes | None = None,
        model: Axes | None = None,
        tensor: Axes | None = None,
        sequence: Axes | None = None,
        pipeline: Axes | None = None,
    ) -> None:
        asked = (data, model, tensor, sequence, pipeline)  # in the order of USUAL
        said = {role: axes for role, axes in zip(USUAL, asked, strict=True) if axes is not None}
        found = _roles(mesh, said)
        _check_all_used(mesh, found)
        self._mesh = mesh
        for role, axes in found.items():
            self._answer(role, axes or _alone(mesh, role))

    def get_tensor_model_parallel_src_rank(self) -> int:
        """The global rank of the first of this rank's tensor parallel group. Local."""
        ranks: list[int] = self.get_tensor_model_parallel_group_ranks()
        return ranks[0]

    def _answer(self, role: str, axes: tuple[str, ...]) -> None:
        """Make the methods of a role, each of which asks the mesh anew."""
        group = partial(self._mesh.group, *axes)
        group()  # refuses, in the mesh's own words, what was not built
        answers: dict[str, Callable[[], object]] = {
            "group": group,
            "rank": lambda: group().rank(),
            "world_size": lambda: group().size(),
            "group_ranks": lambda: dist.get_process_group_ranks(group()),
        }
        for name in NAMES[role]:
            self.__dict__.update({f"get_{name}_{what}": do for what, do in answers.items()})

    def __getattr__(self, name: str) -> Callable[[], Any]:
        # DeepSpeed looks with hasattr for what the mesh may not have
        has = sorted(one for one in vars(self) if one.startswith("get_"))
        raise AttributeError(f"this Mpu has no {name}; it has {', '.join(has)}")

    def __repr__(self) -> str:
        return f"Mpu({self._mesh!r})"


def _roles(mesh: Mesh, said: dict[str, Axes]) -> dict[str, tuple[str, ...]]:
    """Role to axes, for the roles that DeepSpeed shall see."""
    has = mesh.layout.axes
    found = {role: tuple(a for a in axes if a in has) for role, axes in USUAL.items()}
    for role, names in said.items():
        found[role] = parse_axes(names)
        check_axes_exist(found[role], has)
    if found["sequence"]:
        found["sequence_data"] = (*found["data"], *found["sequence"])
    return {role: axes for role, axes in found.items() if axes or role in ALWAYS}


def _check_all_used(mesh: Mesh, roles: dict[str, tuple[str, ...]]) -> None:
    """Refuse an axis of several ranks that DeepSpeed would not see."""
    used = {axis for axes in roles.values() for axis in axes}
    for axis, size in mesh.layout.sizes.items():
        if size > 1 and axis not in used:
            sequence, data = (" ".join((*roles.get(r, ()), axis)) for r in ("sequence", "data"))
            raise SpecError(
                f"the axis {axis} of size {size} is neither data, model, sequence nor pipeline.",
                f"The mesh is {mesh.layout!r}.",
                "Ranks along it would train apart, as DeepSpeed reduces no gradient over it.",
                fix=(Change(sequence=sequence), ", or ", Change(data=data), "."),
                sizes=mesh.layout.sizes,
            )


def _alone(mesh: Mesh, role: str) -> tuple[str, ...]:
    """An axis of size 1, whose group holds this rank alone."""
    one = next((axis for axis, size in mesh.layout.sizes.items() if size == 1), None)
    if one is None:
        raise SpecError(
            f"DeepSpeed asks for a {NAMES[role][0]} group, and the mesh has no axis for "
            "it, nor one of size 1.",
            fix=f"give the mesh one, tp=1 say, or name the axes: {role}=...",
            sizes=mesh.layout.sizes,
        )
    return (one,)
