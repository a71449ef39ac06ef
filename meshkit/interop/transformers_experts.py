"""Models of Transformers with experts: the dense and the expert mesh from one call, and one norm.

Transformers 5.23 cuts dense layers over fsdp and tp, and experts over efsdp and ep, the same ranks
in the same order. It makes two DeviceMeshes for this. Here they are two views of one mesh, which
share each equal group::

    mesh     dp_replicate=1 dp=4 tp=2
    dense    pp=1 dp_replicate=1 fsdp=4  tp=2     a batch each of 4
    expert   pp=1 dp_replicate=1 efsdp=2 ep=4     2 copies of each expert

Tested with gloo, forward and backward: ep equal to tp, ep of several tp, with dp_replicate, and
without tp. Never run: a GPU, pp, and another ``ep_implementation`` than that of ``"auto"``.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..call import Call, parse_integer, quotes_call
from ..errors import SpecError
from ..groups.open_mesh import announcing_failure
from ..launch.job import require_job
from ..mesh.mesh import Mesh
from .transformers import AXES, device_mesh_class, make_config, sizes_of_view

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EXPERT_AXES = ("pp", "dp_replicate", "efsdp", "ep")


class ExpertViews(NamedTuple):
    """Two views of one mesh, for the dense layers and for the experts.

    ``dense.grad_norm(model)`` and ``dense.clip_grad_norm(model, 1.0)`` take all gradients, those of
    the experts too: each DTensor says how it is cut. Close both views, and the mesh last.
    """

    dense: Mesh  # pp, dp_replicate, fsdp and tp
    expert: Mesh  # pp, dp_replicate, efsdp and ep

    def close(self) -> None:
        """Close both views. Collective over the world."""
        self.expert.close()
        self.dense.close()


@quotes_call("distribute_experts")
def distribute_experts(
    model: PreTrainedModel,
    mesh: Mesh,
    *,
    ep: int,
    data: Literal["fsdp", "dp_replicate"] = "fsdp",
    **options: Any,  # noqa: ANN401  # any field of DistributedConfig
) -> tuple[PreTrainedModel, ExpertViews]:
    """Split a model with experts over a mesh; each rank keeps its part.

    Collective over the world, as :func:`meshkit.interop.transformers.distribute` is, with its
    arguments and errors. FSDP2 averages the gradients of dense layers and of experts in
    ``backward``.

    Args:
        model: a model with an ``ep_plan``, from its class or from ``options``. It is changed.
        mesh: as there. If tp is longer than 1, fsdp is the axis next outside of it.
        ep: the number of ranks that share the experts: a multiple of tp that divides fsdp x tp.
        data: the role of ``dp``, as there.
        **options: more fields of ``transformers.distributed.DistributedConfig``.

    Returns:
        The model, and the views of the dense layers and of the experts.

    Raises:
        SpecError: also if ``ep`` does not fit the mesh, before any group is created.

    Example:
        ``model, views = distribute_experts(model, build_mesh(dp=4, tp=2), ep=4)``
    """
    mesh_class = device_mesh_class()
    world = require_job().world
    keywords = {"ep": ep, "data": None if data == "fsdp" else data, **options}
    call = Call("distribute_experts", (model, mesh), keywords, ("model", "mesh"))
    with announcing_failure(world, call):
        sizes = sizes_of_view(model, mesh.layout, data, world.world_size)
        experts = _expert_sizes(sizes, ep)
        config = make_config({**sizes, "ep": ep}, options)
    with ExitStack() as stack:
        dense = stack.enter_context(mesh.view(sizes, order=" ".join(sizes)))
        expert = stack.enter_context(mesh.view(experts, order=" ".join(experts)))
        meshes = dense.device_mesh(" ".join(AXES)), expert.device_mesh(" ".join(EXPERT_AXES))
        pair = mesh_class(*meshes)
        distributed = model.maybe_distribute_model(model, config, pair)
        stack.pop_all()
    return distributed, ExpertViews(dense, expert)


def _expert_sizes(sizes: dict[str, int], ep: object) -> dict[str, int]:
    """Return the sizes of the expert view: efsdp and ep where the dense one has fsdp and tp."""
    fsdp, tp, order = sizes["fsdp"], sizes["tp"], [*sizes]
    number = parse_integer(ep)
    if number is None or number < 2 or number % tp or fsdp * tp % number:
        fits = [n for n in range(2, fsdp * tp + 1) if n % tp == 0 and fsdp * tp % n == 0]
        line = f"ep is {ep!r}, and fsdp x tp is {fsdp} x {tp}."
        fix = f"ep={' or ep='.join(map(str, fits))}." if fits else "a mesh with fsdp or tp above 1."
        raise SpecError(line, "ep is a multiple of tp, and divides fsdp x tp.", fix=fix)
    if min(fsdp, tp) > 1 and order.index("tp") != order.index("fsdp") + 1:
        line = f"the axes nest as {' '.join(axis for axis in order if sizes[axis] > 1)}."
        raise SpecError(line, "ep takes tp and the ranks of fsdp around it.", fix="fsdp, then tp.")
    place = "tp" if tp > 1 else "fsdp"
    experts: dict[str, int] = {}
    for axis in order:
        if axis == place:
            experts |= {"efsdp": fsdp * tp // number, "ep": number}
        elif axis not in ("fsdp", "tp"):
            experts[axis] = sizes[axis]
    return experts
