"""A mesh as the model parallel unit of ``deepspeed.initialize(mpu=...)``, and a plan as its config.

The method names are those that DeepSpeed 0.19 calls (``deepspeed/utils/groups.py``,
``utils/bwc.py``, ``runtime/model_checkpointing/utils.py``). This file does not import DeepSpeed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch.distributed as dist

from ..call import quotes_call
from ..data.batch import BatchPlan
from ..errors import BatchError, SpecError
from ..layout.axes import check_axes_exist, data_axes, parse_axes
from ..mesh.mesh import Mesh
from ..text import article

NAMES = {  # role of axes to DeepSpeed's names for their group
    "data": ("data_parallel",),
    "model": ("model_parallel",),
    "tensor": ("tensor_model_parallel", "slice_parallel"),
    "sequence": ("sequence_parallel",),
    "sequence_data": ("sequence_data_parallel",),
    "pipeline": ("pipeline_model_parallel", "pipe_parallel"),
}
DEFAULT_AXES = {"model": ("pp", "tp"), "tensor": ("tp",), "sequence": ("sp",), "pipeline": ("pp",)}
REQUIRED = ("data", "model", "tensor")  # DeepSpeed calls the others only if they exist

FIELDS = {  # field of a config and method of an engine to the attribute of a plan
    "train_batch_size": "global_batch",
    "train_micro_batch_size_per_gpu": "micro_batch",
    "gradient_accumulation_steps": "accumulation_steps",
}

Axes = str | Iterable[str]


@quotes_call("config", by_name=("plan",))
def config(plan: BatchPlan) -> dict[str, int]:
    """Return the fields of DeepSpeed's config that hold the batch of a plan. Pure.

    DeepSpeed infers a field that is left out from the others, rounded down, and from the ranks of
    ``mpu``. A train_batch_size that counts ranks of sp or tp then gives more micro batches than
    were meant. Therefore pass all three fields.

    ``engine.backward`` divides the loss by the accumulation steps, so leave ``micro.weight`` out.

    Args:
        plan: the result of ``mesh.batch``, or a :class:`meshkit.BatchPlan`.

    Raises:
        BatchError: if the plan is uneven, because DeepSpeed has no micro batches without weight.
        SpecError: if ``plan`` is no plan.

    Example:
        >>> config(BatchPlan.solve(dp=4, global_batch=64, micro_batch=2))["train_batch_size"]
        64
    """
    if not isinstance(plan, BatchPlan):
        fix = "config(mesh.batch(global_batch=64, micro_batch=2)), with the batch of the job."
        raise SpecError(f"plan is {article(type(plan).__name__)}, not a batch plan.", fix=fix)
    if plan.uneven:
        whole = plan.micro_batch * plan.dp
        below = plan.global_batch // whole * whole
        nearest = [str(batch) for batch in (below, below + whole) if batch]
        raise BatchError(
            "the plan is uneven.",
            f"{plan}.",
            "DeepSpeed runs equally many micro batches, all with samples, on every rank.",
            fix=f"global_batch={' or global_batch='.join(nearest)}.",
            global_batch=plan.global_batch,
            below=below or None,
            above=below + whole,
        )
    return {field: getattr(plan, attribute) for field, attribute in FIELDS.items()}


@quotes_call("check_engine", by_name=("engine", "plan"))
def check_engine(engine: Any, plan: BatchPlan) -> None:  # noqa: ANN401  # untyped
    """Check that a live engine of DeepSpeed has the batch of a plan. Local.

    Args:
        engine: the result of ``deepspeed.initialize``.
        plan: the plan by which samples are read.

    Raises:
        BatchError: if the engine has another batch, micro batch or number of accumulation steps,
            with those of both; if the plan is uneven.
        SpecError: for ZeRO stage 3 with several sequence ranks, see :class:`Mpu`.
    """
    _check_stage(engine.zero_optimization_stage(), engine.sequence_parallel_size)
    planned = config(plan)
    actual = {field: int(getattr(engine, field)()) for field in planned}
    differing = [field for field in planned if actual[field] != planned[field]]
    if differing:
        raise BatchError(
            f"the engine has another batch than the plan: {', '.join(differing)}.",
            *(f"{field}: engine {actual[field]}, plan {planned[field]}." for field in planned),
            fix="deepspeed.initialize(config={**settings, **config(plan)}, ...), with config of "
            "meshkit.interop.deepspeed.",
            global_batch=planned["train_batch_size"],
        )


def _check_stage(stage: int, sequence_ranks: int) -> None:
    """Raise for ZeRO 3 with several sequence ranks, over which its stage3.py sums nothing."""
    if stage == 3 and sequence_ranks > 1:
        raise SpecError(
            f"ZeRO stage 3 does not sum gradients over {sequence_ranks} sequence ranks.",
            "DeepSpeed reduces gradients over the data ranks alone there.",
            fix='"stage": 2 in zero_optimization, or a mesh without a sequence axis.',
        )


class Mpu:
    """The model parallel unit of DeepSpeed, with the groups of a mesh.

    Local: no group is created. All groups are looked up in the constructor, so a missing group is
    an error before DeepSpeed starts. Each name below has the methods ``get_NAME_group()``,
    ``get_NAME_rank()``, ``get_NAME_world_size()`` and ``get_NAME_group_ranks()``::

        data_parallel                          dp ep     those that the mesh has
        model_parallel                         pp tp
        tensor_model_parallel, slice_parallel  tp
        pipeline_model_parallel, pipe_parallel pp        if the mesh has it
        sequence_parallel                      sp        if the mesh has it
        sequence_data_parallel                 dp ep sp  if the mesh has sp

    There is also ``get_tensor_model_parallel_src_rank()``.

    DeepSpeed averages gradients over dp and sums them over sp. So each rank must call
    ``engine.backward`` with its share of the mean over the whole sequence. If all ranks have
    equally many tokens, this is the mean over the local tokens divided by sp. ZeRO stage 3 does not
    sum over sp: ``get_model_parallel_group`` raises if its optimizer calls it on a mesh with sp.

    Args:
        mesh: any mesh with dp, and with tp, pp or an axis of size 1.
        data: the axes along which ranks read different samples; None is ``dp``, ``ep`` and the
            other names of data and experts in the mesh.
        model: the axes that split the model; None is those of ``pp tp`` in the mesh.
        tensor: the axes that split each layer; None is ``tp`` if the mesh has it.
        sequence: the axes that split each sequence, for example ``cp``; None is ``sp`` if the mesh
            has it.
        pipeline: the axes that split the layers into stages; None is ``pp`` if the mesh has it.

    Raises:
        SpecError: if an axis longer than 1 has no role, because its ranks would train apart; if a
            role has no axis and the mesh has none of size 1; or if a group was not created.
        UnknownAxisError: if an axis is not in the mesh.
        CoordinateError: on a rank outside the mesh.
        MeshkitError: after ``mesh.close``, from the constructor and from every method.

    Example:
        ``deepspeed.initialize(model=model, optimizer=optimizer, mpu=Mpu(mesh), config=config)``
    """

    @quotes_call("Mpu")
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
        chosen = {"data": data, "model": model, "tensor": tensor, "sequence": sequence}
        roles = _axes_by_role(mesh, {**chosen, "pipeline": pipeline})
        _check_all_axes_used(mesh, roles)
        self._mesh = mesh
        self._axes = {role: axes or _axis_of_size_one(mesh, role) for role, axes in roles.items()}
        for role, axes in self._axes.items():
            self._add_methods(role, axes)

    def get_tensor_model_parallel_src_rank(self) -> int:
        """Return the global rank of the first member of the tensor parallel group. Local."""
        ranks: list[int] = self.get_tensor_model_parallel_group_ranks()
        return ranks[0]

    def _add_methods(self, role: str, axes: tuple[str, ...]) -> None:
        """Add the methods of a role. Each one looks the group up again, so it fails after close."""
        group = partial(self._mesh.group, *axes)
        group()  # raises if the group was not created
        methods: dict[str, Callable[[], object]] = {
            "group": self._get_model_group if role == "model" else group,
            "rank": lambda: group().rank(),
            "world_size": lambda: group().size(),
            "group_ranks": lambda: dist.get_process_group_ranks(group()),
        }
        for name in NAMES[role]:
            self.__dict__.update({f"get_{name}_{suffix}": do for suffix, do in methods.items()})

    def _get_model_group(self) -> dist.ProcessGroup:
        """Return the model parallel group; refuse the optimizer of ZeRO 3 if it cannot sum."""
        frame: Any = inspect.currentframe()
        if frame.f_back.f_globals.get("__name__") == "deepspeed.runtime.zero.stage3":
            sizes = self._mesh.layout.sizes
            _check_stage(3, math.prod(sizes[axis] for axis in self._axes.get("sequence", ())))
        return self._mesh.group(*self._axes["model"])

    def __getattr__(self, name: str) -> Callable[[], Any]:
        # DeepSpeed uses hasattr for optional methods
        methods = sorted(method for method in vars(self) if method.startswith("get_"))
        raise AttributeError(f"this Mpu has no {name}; it has {', '.join(methods)}")

    def __repr__(self) -> str:
        return f"Mpu({self._mesh!r})"


def _axes_by_role(mesh: Mesh, chosen: dict[str, Axes | None]) -> dict[str, tuple[str, ...]]:
    """Return the axes of each role that DeepSpeed sees; empty if a required role has none."""
    present = mesh.layout.axes
    roles = {role: tuple(a for a in axes if a in present) for role, axes in DEFAULT_AXES.items()}
    roles = {"data": data_axes(mesh.layout.sizes), **roles}
    for role, names in chosen.items():
        if names is not None:
            roles[role] = parse_axes(names)
            check_axes_exist(roles[role], present)
    if roles["sequence"]:
        roles["sequence_data"] = (*roles["data"], *roles["sequence"])
    return {role: axes for role, axes in roles.items() if axes or role in REQUIRED}


def _check_all_axes_used(mesh: Mesh, roles: dict[str, tuple[str, ...]]) -> None:
    """Check that every axis of several ranks has a role."""
    used = {axis for axes in roles.values() for axis in axes}
    for axis, size in mesh.layout.sizes.items():
        if size > 1 and axis not in used:
            sequence, data = (" ".join((*roles.get(r, ()), axis)) for r in ("sequence", "data"))
            raise SpecError(
                f"the axis {axis} of size {size} is neither data, model, sequence nor pipeline.",
                f"The mesh is {mesh.layout!r}.",
                "Its ranks would train apart, because DeepSpeed reduces no gradient over it.",
                fix=f"sequence={sequence!r}, or data={data!r}.",
                sizes=mesh.layout.sizes,
            )


def _axis_of_size_one(mesh: Mesh, role: str) -> tuple[str, ...]:
    """Return an axis of size 1. Its group holds only this rank."""
    axis = next((axis for axis, size in mesh.layout.sizes.items() if size == 1), None)
    if axis is None:
        raise SpecError(
            f"DeepSpeed needs a {NAMES[role][0]} group, and the mesh has neither an axis for it "
            "nor one of size 1.",
            fix=f"add an axis of size 1 to the mesh, for example tp=1, or pass {role}=...",
            sizes=mesh.layout.sizes,
        )
    return (axis,)
