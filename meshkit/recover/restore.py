"""Give each rank the state of its coordinate after a recovery.

A rank that holds its state keeps it. A rank that is behind, or has a new coordinate, gets the state
of a rank that holds it, over the default group. First the ranks of the mesh share how much they
send, or the error of a rank that cannot. Then the bytes follow that ``torch.save`` writes.
``torch.load`` reads them with ``weights_only``, so it unpickles no code. A tensor that is sharded
over a data axis that may shrink has no second holder. Then all ranks raise, and the error names the
checkpoint that is needed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.serialization import default_restore_location

from ..errors import MeshkitError, SpecError
from ..groups.groups import batch_messages, message_timeout
from ..groups.registry import MeshGroups
from ..launch.job import require_job
from ..launch.judges import failure_error
from ..launch.process import current_process
from ..launch.regroup import Regrouping, Sources
from ..launch.store import error_from_json, error_to_json, read_value
from ..launch.tensors import check_writable, is_dtensor
from ..launch.torch_aborts import collective_count, wait_in_time
from ..launch.torch_groups import backend_of
from ..layout.layout import Layout
from ..text import article, count_noun, format_ranks, format_sizes

MAX_PARTS = 4  # parts of the state that an error names
CHUNK = 1 << 28  # bytes of one message
PLAIN = (bool, int, float, str, type(None))  # the types of values that move as they are
NOT_RESTORED = "a rank cannot restore its state, and no rank has changed its own."
DTENSOR = "meshkit.dtensor"  # marks the dict that stands for a DTensor

Prepared = tuple[object, bytes]  # a state, and the bytes of it that this rank sends
Templates = Mapping[tuple[str, ...], Any]  # dims and placements to a DTensor of this rank


class Restoration(NamedTuple):
    """The facts by which a rank restores its state; see ``Recovery``."""

    mesh: MeshGroups
    regrouped: Regrouping
    sources: Sources
    lost_ranks: Sequence[int]
    lacks_state: bool


def restore_state(
    recovery: Restoration, objects: Sequence[object], held: Sequence[object] | None
) -> None:
    """Bring the objects of every rank to the state of the step. See ``Recovery.restore``."""
    rank, sources = recovery.mesh.rank, recovery.sources.by_rank
    targets = [target for target, source in sources.items() if source == rank]
    source = sources.get(rank) if recovery.lacks_state else None
    keeps_own = held is not None and source is None and rank in recovery.mesh.plan.layout
    prepare = partial(_prepare, recovery, objects, held, targets, keeps_own)
    if rank not in recovery.mesh.plan.layout:  # a spare
        prepare()
        return
    group, limit = recovery.mesh.find(), message_timeout(recovery.mesh)
    prepared, lengths = _agree(group, prepare, limit)
    local, data = prepared
    received = _exchange(data, targets, source, lengths, limit)
    if source is not None or keeps_own:
        own = dtensors_in([_state_of(thing) for thing in objects])
        templates = {tuple(_key(tensor)): tensor for tensor in own}
        states = from_local(local if source is None else received, templates)
        for thing, state in zip(objects, states, strict=True):
            if isinstance(thing, dict):
                _update(thing, state)
            else:
                thing.load_state_dict(state)  # type: ignore[attr-defined]


def _prepare(
    recovery: Restoration,
    objects: Sequence[object],
    held: Sequence[object] | None,
    targets: Sequence[int],
    keeps_own: bool,
) -> Prepared:
    """Return the state that this rank sends or keeps, after all that it can check. Local."""
    check_objects(objects, held)
    present = [thing for thing in held or () if thing is not None]
    check_not_lost(recovery, [*objects, *present])
    for thing in objects:
        if isinstance(thing, dict | nn.Module):
            _check_writable(_state_of(thing), "state")
    if not targets and not keeps_own:
        return None, b""
    if len(present) < len(held or ()):
        line = f"held is None for an object, but rank {recovery.mesh.rank} holds its state."
        raise SpecError(line, fix="the object of the old mesh; None is for newcomers and spares.")
    local, buffer = to_local([_state_of(thing) for thing in held or objects]), io.BytesIO()
    if targets:
        torch.save(local, buffer)
    return local, buffer.getvalue()


def _agree(
    group: dist.ProcessGroup, prepare: Callable[[], Prepared], limit: timedelta
) -> tuple[Prepared, dict[int, int]]:
    """Return what this rank has prepared, and how many bytes each rank sends. Collective.

    If a rank fails to prepare, it raises its error, and all others raise a report of it.
    """
    try:
        prepared = prepare()
    except Exception as error:
        report = failure_error(NOT_RESTORED, require_job().world.rank, current_process(), error)
        _share(group, json.dumps(error_to_json(report)).encode(), limit, has_failed=True)
        raise
    lengths, text = _share(group, prepared[1], limit, has_failed=False)
    if text:
        raise read_value("report", text, lambda text: error_from_json(json.loads(text)))
    return prepared, lengths


def _share(
    group: dist.ProcessGroup, data: bytes, limit: timedelta, *, has_failed: bool
) -> tuple[dict[int, int], bytes]:
    """Return how many bytes each rank has, and those of the first one that failed. Collective."""
    own = torch.tensor([has_failed, len(data)], device=_device_of_messages(group))
    ranks = dist.get_process_group_ranks(group)
    rows = [torch.empty_like(own) for _ in ranks]
    _wait_for(group, lambda: [dist.all_gather(rows, own, group, async_op=True)], limit)
    facts = dict(zip(ranks, torch.stack(rows).tolist(), strict=True))
    first = next((rank for rank, (failed, _) in facts.items() if failed), None)
    lengths = {rank: length for rank, (_, length) in facts.items()}
    if first is None:
        return lengths, b""
    text = torch.zeros(lengths[first], dtype=torch.uint8, device=own.device)
    if first == dist.get_rank():
        text.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    _wait_for(group, lambda: [dist.broadcast(text, first, group, async_op=True)], limit)
    return lengths, text.cpu().numpy().tobytes()


def _exchange(
    data: bytes,
    targets: Sequence[int],
    source: int | None,
    lengths: dict[int, int],
    limit: timedelta,
) -> object:
    """Send a state to its targets, and return that of the source, if there is one."""
    world = cast(dist.ProcessGroup, dist.group.WORLD)
    own, via = require_job().world.device or torch.device("cpu"), _device_of_messages(world)
    outgoing = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0)
    length = 0 if source is None else lengths[source]
    incoming = torch.empty(length, dtype=torch.uint8, device=via)
    chunks, parts = torch.split(outgoing.to(via), CHUNK), torch.split(incoming, CHUNK)
    sends = [(chunk, target) for target in targets for chunk in chunks]
    _communicate(sends, [(part, source) for part in parts], limit)
    if source is None:
        return None

    def place(storage: Any, location: str) -> Any:  # noqa: ANN401  # torch has no public type
        return storage if location == "cpu" else default_restore_location(storage, str(own))  # type: ignore[no-untyped-call]

    content = io.BytesIO(incoming.cpu().numpy().tobytes())
    return torch.load(content, map_location=place, weights_only=True)


def _device_of_messages(group: dist.ProcessGroup) -> torch.device:
    """Return the device of what travels over a group."""
    own = require_job().world.device or torch.device("cpu")
    return torch.device("cpu") if "gloo" in backend_of(group) else own


def _communicate(
    sends: Sequence[tuple[Tensor, int]],
    receives: Sequence[tuple[Tensor, int | None]],
    limit: timedelta,
) -> None:
    """Send and receive in batches, since NCCL runs the messages of a pair in their order."""
    received = [(tensor, peer) for tensor, peer in receives if peer is not None]
    batches, world = batch_messages(sends, received), cast(dist.ProcessGroup, dist.group.WORLD)
    begin = dist.batch_isend_irecv
    _wait_for(world, lambda: [work for batch in batches for work in begin(batch)], limit)


def _wait_for(group: dist.ProcessGroup, begin: Callable[[], list[Any]], limit: timedelta) -> None:
    """Begin works on a group, and wait until they are done.

    Without a limit gloo waits for a message only as long as the group may take to connect.
    """
    counts, before = require_job().counts, collective_count(group) or 0
    works = begin()
    counts.own[group.group_name] += (collective_count(group) or 0) - before
    for work in works:
        wait_in_time(work, group, limit)
    require_job().check_not_aborted()


def to_local(value: Any, path: str = "state") -> Any:  # noqa: ANN401
    """Return a state with a dict in place of each DTensor, which holds the shard of this rank.

    Scalars of NumPy become numbers of Python, since ``weights_only`` refuses them.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in PLAIN:
        return value
    if isinstance(value, Mapping) and all(isinstance(key, int | str | np.generic) for key in value):
        names = {key: f"{path}[{key!r}]" for key in value}
        return {to_local(key, n): to_local(value[key], n) for key, n in names.items()}
    if isinstance(value, list | tuple):
        parts = [to_local(part, f"{path}[{index}]") for index, part in enumerate(value)]
        return tuple(parts) if isinstance(value, tuple) else parts
    if isinstance(value, Tensor) and value.layout == torch.strided:
        if not is_dtensor(value):
            return _without_rest(value)
        shard: Any = value
        facts = {"shape": [*value.shape], "stride": [*value.stride()]}
        return {DTENSOR: _key(shard), "shard": _without_rest(shard.to_local()), **facts}
    kind = "a dict whose keys are no numbers and texts" if isinstance(value, Mapping) else None
    raise SpecError(
        f"{path} is {kind or article(type(value).__name__)}.",
        "A state has dense tensors, numbers, texts, None, lists, tuples and dicts.",
        fix="restore a state_dict() of these types.",
    )


def _without_rest(tensor: Tensor) -> Tensor:
    """Return a tensor without the rest of its storage, which ``torch.save`` would write too."""
    tensor = tensor.detach()
    is_whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if is_whole else tensor.clone()


def from_local(value: Any, templates: Templates) -> Any:  # noqa: ANN401
    """Return the state that :func:`to_local` has prepared, with DTensors of this rank."""
    if isinstance(value, list | tuple):
        return type(value)(from_local(part, templates) for part in value)
    if not isinstance(value, dict):
        return value
    if DTENSOR not in value:
        return {key: from_local(part, templates) for key, part in value.items()}
    template = templates.get(tuple(value[DTENSOR]))
    if template is None:
        dims, *placements = value[DTENSOR]
        raise SpecError(
            f"no DTensor here has the dims {dims!r} with {', '.join(placements)}.",
            fix="build the model on the new mesh as on the old one, and restore it with its "
            "optimizer: mesh.recovery.restore(model, optimizer).",
        )
    whole = {"shape": torch.Size(value["shape"]), "stride": tuple(value["stride"])}
    place = template.device_mesh, template.placements
    return type(template).from_local(value["shard"], *place, run_check=False, **whole)


def dtensors_in(value: object) -> Iterator[Any]:
    """Yield the DTensors in a state dict."""
    if is_dtensor(value):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from dtensors_in(part)


def _key(tensor: Any) -> list[str]:  # noqa: ANN401  # a DTensor, not imported
    names = tensor.device_mesh.mesh_dim_names or ()
    return [" ".join(names), *map(str, tensor.placements)]


def check_not_lost(recovery: Restoration, objects: Sequence[object]) -> None:
    """Raise if no rank holds a part of the state, with the checkpoint that is needed. Local."""
    regrouped, step = recovery.regrouped, recovery.sources.step or 0
    fix = f"load a checkpoint of step {step} or before on all ranks, and go on from its step."
    if recovery.sources.lost:
        parts = "; ".join(format_sizes(part) for part in recovery.sources.lost[:MAX_PARTS])
        raise MeshkitError(f"no rank that lives holds the state of {parts}.", fix=fix)
    if not recovery.lost_ranks and not recovery.sources.by_rank:
        return
    old_ranks = regrouped.old_ranks
    lost = recovery.lost_ranks or [old_ranks[rank] for rank in recovery.sources.by_rank]
    for tensor in dtensors_in([_state_of(thing) for thing in objects]):
        for layout in (regrouped.before, regrouped.after):
            axis = _sharded_axis(tensor, layout, regrouped.replica_axes)
            if axis is not None:
                raise MeshkitError(
                    f"a tensor of shape {tuple(tensor.shape)} is sharded over {axis}.",
                    f"No other rank holds the shards of rank {format_ranks([*lost])}.",
                    fix=fix,
                )


def _sharded_axis(tensor: Any, layout: Layout, axes: Sequence[str]) -> str | None:  # noqa: ANN401
    """Return the first of the axes over which a DTensor is cut on a layout; None if none is."""
    ranks, place = tensor.device_mesh.mesh, tensor.device_mesh.get_coordinate()
    for dim, placement in enumerate(tensor.placements):
        if place is None or placement.is_replicate():
            continue
        index = tuple(slice(None) if d == dim else i for d, i in enumerate(place))
        row = [int(rank) for rank in ranks[index].flatten() if int(rank) in layout]
        for axis in axes:
            if len({layout.coordinate(rank)[axis] for rank in row}) > 1:
                return axis
    return None


def check_objects(objects: Sequence[object], held: Sequence[object] | None) -> None:
    """Raise if an object has no state, or ``held`` has another number of objects."""
    for thing in (*objects, *(thing for thing in held or () if thing is not None)):
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


def _check_writable(state: Mapping[Any, Any], path: str) -> None:
    """Raise if a tensor of a state cannot be filled in place. Local."""
    for key, value in state.items():
        name = f"{path}[{key!r}]"
        if isinstance(value, dict):
            _check_writable(value, name)
        elif isinstance(value, Tensor) and not is_dtensor(value) and value.layout == torch.strided:
            check_writable(value, name, f"{name}.clone() in its place.")


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


@torch.no_grad()
def _update(target: dict[Any, Any], state: Mapping[Any, Any]) -> None:
    """Copy tensors into those of a dict of equal shape and dtype, and replace all other values."""
    for key in target.keys() - state.keys():
        del target[key]
    for key, value in state.items():
        old = target.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            _update(old, value)
        elif isinstance(old, Tensor) and isinstance(value, Tensor) and _form(old) == _form(value):
            old.copy_(value)
        else:
            target[key] = value
