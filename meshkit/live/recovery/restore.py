"""Give each rank the state of its coordinate after a recovery.

Ranks that hold their state keep it. A rank that is behind, or new in its place, gets the state of a
rank that holds it, over the default group. A tensor that is sharded over the ranks of a data axis
that may shrink has no second holder, so the recovery names the checkpoint that is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...core.errors import MeshkitError, SpecError
from ...core.grid.layout import Layout
from ...core.recovery.held_state import Sources
from ...core.recovery.regroup import Regrouping
from ...core.text import article, count_noun, format_ranks, format_sizes
from ...launch.current_job import require_job
from ...launch.torch_internals import default_timeout, timeout_of
from ..group_registry import MeshGroups
from .state_codec import decode, dtensors_in, encode, templates_of
from .transfer import Handle, begin_send, receive, wait_for

MAX_PARTS = 4  # parts of the state that an error names


@dataclass(frozen=True)
class Restoration:
    """The facts by which a rank restores its state.

    Attributes:
        mesh: the groups of this rank in the new mesh.
        regrouped: the ranks that live and their coordinates.
        sources: the step, and the source of each rank that lacks its state.
        lost_ranks: the ranks that were lost, by their numbers before.
        lacks_state: whether this rank lacks its state.
    """

    mesh: MeshGroups
    regrouped: Regrouping
    sources: Sources
    lost_ranks: Sequence[int]
    lacks_state: bool


def restore_state(
    recovery: Restoration, objects: Sequence[object], held: Sequence[object] | None
) -> None:
    """Bring the objects of every rank to the state of the step. Collective.

    See :meth:`meshkit.live.recovery.recovery.Recovery.restore`.
    """
    _check_arguments(objects, held)
    check_not_lost(recovery, [*objects, *(held or ())])
    rank, sources = recovery.mesh.rank, recovery.sources.by_rank
    targets = [target for target, source in sources.items() if source == rank]
    states = [_state_of(thing) for thing in objects]
    limit = _time_of(recovery.mesh)
    sends = _begin_sends([_state_of(thing) for thing in held or objects], targets)
    state: list[Any] | None = None
    if rank in sources and recovery.lacks_state:
        tree, tensors = receive(sources[rank], _transfer_device(), limit)
        state = decode(tree, tensors, templates_of(states))
    elif held is not None and rank in recovery.mesh.plan.layout:
        own: list[Tensor] = []
        tree = encode([_state_of(thing) for thing in held], own)
        state = decode(tree, own, templates_of(states))
    wait_for(sends, limit)
    for thing, value in zip(objects, state or (), strict=False):
        _load(thing, value)


def _begin_sends(states: list[Any], targets: Sequence[int]) -> list[Handle]:
    """Begin to send the states to each rank that lacks them."""
    if not targets:
        return []
    tensors: list[Tensor] = []
    tree, device = encode(states, tensors), _transfer_device()
    return [send for target in targets for send in begin_send(target, tree, tensors, device)]


def _transfer_device() -> torch.device:
    """Return the device of messages over the default group."""
    device = require_job().world.device or torch.device("cpu")
    return torch.device("cpu") if "gloo" in str(dist.get_backend()) else device


def _time_of(mesh: MeshGroups) -> timedelta:
    """Return how long a message may take: the least timeout of the mesh, also inside a guard."""
    limits = [limit for group in mesh.groups.by_key.values() if (limit := timeout_of(group))]
    job = require_job()
    return min(limits, default=job.default_timeout or default_timeout(str(job.world.backend)))


def check_not_lost(recovery: Restoration, objects: Sequence[object]) -> None:
    """Raise if no rank holds a part of the state, with the checkpoint that is needed. Local."""
    regrouped, step = recovery.regrouped, recovery.sources.step or 0
    fix = f"load a checkpoint of step {step} or before on all ranks, and go on from its step."
    if recovery.sources.lost:
        parts = "; ".join(format_sizes(part) for part in recovery.sources.lost[:MAX_PARTS])
        raise MeshkitError(f"no rank that lives holds the state of {parts}.", fix=fix)
    if not recovery.lost_ranks and not recovery.sources.by_rank:
        return
    for tensor in dtensors_in([_state_of(thing) for thing in objects]):
        for layout in (regrouped.before, regrouped.after):
            axis = _sharded_axis(tensor, layout, regrouped.replica_axes)
            if axis is not None:
                line = f"a tensor of shape {tuple(tensor.shape)} is sharded over {axis}."
                evidence = f"No other rank holds the shards of rank {_first_lost(recovery)}."
                raise MeshkitError(line, evidence, fix=fix)


def _first_lost(recovery: Restoration) -> str:
    old_ranks = recovery.regrouped.old_ranks
    ranks = recovery.lost_ranks or [old_ranks[rank] for rank in recovery.sources.by_rank]
    return format_ranks([*ranks])


def _sharded_axis(tensor: Any, layout: Layout, axes: Sequence[str]) -> str | None:  # noqa: ANN401
    """Return the first of the axes over which a DTensor is sharded on a layout; None if none is."""
    ranks, place = tensor.device_mesh.mesh, tensor.device_mesh.get_coordinate()
    for dim, placement in enumerate(tensor.placements):
        if place is None or placement.is_replicate():  # _StridedShard is no Shard
            continue
        index = tuple(slice(None) if d == dim else i for d, i in enumerate(place))
        row = [int(rank) for rank in ranks[index].flatten() if int(rank) in layout]
        for axis in axes:
            if len({layout.coordinate(rank)[axis] for rank in row}) > 1:
                return axis
    return None


def _check_arguments(objects: Sequence[object], held: Sequence[object] | None) -> None:
    """Raise if an object has no state, or ``held`` has another number of objects."""
    for thing in (*objects, *(held or ())):
        is_stateful = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
        if not is_stateful and not isinstance(thing, dict):
            raise SpecError(
                f"{article(type(thing).__name__)} has no state_dict.",
                fix="pass modules, optimizers, or dicts of tensors and numbers.",
            )
    if held is not None and len(held) != len(objects):
        line = f"held has {count_noun(len(held), 'object')}, not {len(objects)}."
        raise SpecError(line, fix="one object in held for each, in the same order.")


def _state_of(thing: Any) -> Any:  # noqa: ANN401  # anything with a state
    return thing if isinstance(thing, dict) else thing.state_dict()


def _load(thing: Any, state: Any) -> None:  # noqa: ANN401
    """Load a state into a module, an optimizer or a dict."""
    if isinstance(thing, dict):
        _update(thing, state)
    else:
        thing.load_state_dict(state)


@torch.no_grad()
def _update(target: dict[Any, Any], state: Mapping[Any, Any]) -> None:
    """Copy tensors into those of a dict, and replace all other values."""
    for key in target.keys() - state.keys():
        del target[key]
    for key, value in state.items():
        old = target.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            _update(old, value)
        elif isinstance(old, Tensor) and isinstance(value, Tensor) and old.shape == value.shape:
            old.copy_(value)
        else:
            target[key] = value
