"""The only place that creates or destroys process groups.

It walks through the steps of a :class:`GroupPlan` in their order, which is the same on every rank,
and computes nothing of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch.distributed as dist

from ...core.arrays import Ints
from ...core.errors import MeshkitError, SpecError
from ...core.grid.group_plan import Axes, GroupPlan, GroupStep
from ...launch.torch_internals import advance_group_counter, clear_dtensor_cache, set_timeout
from .options import GroupOptions
from .registry import GroupKey, GroupRegistry, Groups

KEEPS_ORDER = "sort_ranks" in inspect.signature(dist.new_group).parameters  # torch 2.13


def check_orders(plan: GroupPlan) -> None:
    """Refuse groups whose members are not in ascending order where torch would sort them.

    Raises:
        SpecError: on torch below 2.13; a rank's place in such a group would not be its coordinate.
    """
    if KEEPS_ORDER:
        return
    for step in plan.steps:
        if (step.members[:, 1:] < step.members[:, :-1]).any():
            axes = " ".join(step.axes) or "the whole mesh"
            raise SpecError(
                f"the ranks of group({axes}) are not in ascending order.",
                "torch below 2.13 sorts them, and places would not be coordinates.",
                fix="torch 2.13 or newer; or list axes from the outside in, and ranks ascending.",
            )


def create_groups(plan: GroupPlan, rank: int, terms: GroupOptions, shared: GroupRegistry) -> Groups:
    """Create the groups of a plan that are not there yet. Collective over the default group.

    Args:
        plan: equal on every rank.
        rank: this rank; it may be outside the layout, and still takes part.
        terms: equal on every rank.
        shared: the groups that are there; equal on every rank. It is not changed.

    Returns:
        This rank's groups. Where one fails, those made before it are destroyed again.

    Raises:
        RuntimeError: torch's own, where a group cannot be made, or a peer does not come.
        MeshkitError: where torch made another group than it was asked for.
    """
    found, rest = _there(plan, terms, shared)
    names = dist.get_pg_count() + sum(_names(step, terms) for step, _, _ in rest)
    made: list[dist.ProcessGroup] = []
    new: dict[GroupKey, dist.ProcessGroup | None] = {}
    try:
        for step, key, alike in rest:
            found[key] = new[alike] = _make(step, rank, terms, terms.limits[key], made)
    except BaseException:
        destroy_groups(made)
        _count_up(names, rank)
        raise
    used: dict[GroupKey, tuple[Axes, ...]] = {}
    for axes in plan.axis_sets:
        alike = _alike(plan, axes, terms)
        used[alike] = (*used.get(alike, ()), axes)
    return Groups({key: group for key, group in found.items() if group is not None}, used, new)


def _alike(plan: GroupPlan, axes: Axes, terms: GroupOptions) -> GroupKey:
    """What groups must have in common to be one group."""
    return plan.layout.strides(*axes), terms.runs_on, terms.time(plan.group_key(axes))


def _there(
    plan: GroupPlan, terms: GroupOptions, shared: GroupRegistry
) -> tuple[dict[Axes, dist.ProcessGroup | None], list[tuple[GroupStep, Axes, GroupKey]]]:
    """The groups of a plan that are there, by key; and the steps whose groups are to be made."""
    found: dict[Axes, dist.ProcessGroup | None] = {}
    rest = []
    for step in plan.steps:
        key, alike = plan.group_key(step.axes), _alike(plan, step.axes, terms)
        origin, group = shared.find(alike)
        group = group if origin != "default" else _default(step, terms, alike[2])
        if origin == "default" and group is None:
            rest.append((step, key, alike))
        else:
            found[key] = group
    return found, rest


def ends_together(groups: Iterable[dist.ProcessGroup]) -> bool:
    """Whether the end of these groups is a matter of all their ranks, as nccl's is."""
    return any("nccl" in group.name() for group in groups)


def abort_groups(groups: Iterable[dist.ProcessGroup]) -> None:
    """Break off what runs on groups, so that whoever waits in it gets an error. Local.

    Nothing where the backend cannot, as gloo, or torch below 2.13.
    """
    for group in dict.fromkeys(groups):
        with suppress(AttributeError, RuntimeError):
            group.abort()


def destroy_groups(groups: Iterable[dist.ProcessGroup]) -> None:
    """Destroy groups and give back their descriptors and threads. Local on gloo.

    Groups that are gone already, with the default group or by hand, are passed over.
    """
    gone = [*groups]
    for group in gone:
        with suppress(ValueError, AssertionError):  # "Invalid process group specified": gone
            dist.destroy_process_group(group)
    if gone:
        clear_dtensor_cache()


def _default(step: GroupStep, terms: GroupOptions, limit: timedelta) -> dist.ProcessGroup | None:
    """The default group, where it has exactly these members in this order, backend and timeout."""
    world = dist.group.WORLD
    if world is None or limit != terms.usual(terms.world):
        return None
    alike = terms.backend in (None, dist.get_backend(world))
    return world if alike and step.members.tolist() == [list(range(world.size()))] else None


def _names(step: GroupStep, terms: GroupOptions) -> int:
    """How many groups torch counts when it makes those of a step; it names groups by that."""
    if _splits(step, terms.backend) or _is_alone(step, terms):
        return 0
    return len(step.members)


def _count_up(names: int, rank: int) -> None:
    """Let torch count on to where a whole creation would have come.

    A creation that fails stops on each rank at another group; groups made after it would have other
    names on each. Of a group of others torch only takes note. Not where all ranks take part in it.
    """
    other, left = 0 if rank else 1, max(0, names - dist.get_pg_count())
    if _bound() is None and dist.get_world_size() > 1 and not advance_group_counter(left):
        for _ in range(left):
            dist.new_group([other])


def _make(
    step: GroupStep,
    rank: int,
    terms: GroupOptions,
    limit: timedelta | None,
    made: list[dist.ProcessGroup],
) -> dist.ProcessGroup | None:
    """This rank's group among those of a step; every rank takes part in making all of them.

    It is in ``made`` as soon as it exists, whatever comes after.
    """
    words = f"meshkit {' '.join(step.axes) or 'mesh'}"
    if _splits(step, terms.backend):
        return _split(step, rank, limit, words, made)
    first = terms.connect if terms.waits else limit
    new = partial(dist.new_group, timeout=first, backend=terms.backend, group_desc=words)
    if _is_alone(step, terms):
        alone: dist.ProcessGroup = new([rank], use_local_synchronization=True)
        if rank in step.members:
            made.append(alone)
            return _timed(alone, terms, limit)
        destroy_groups(
            [alone]
        )  # of a rank outside the mesh: made so that all ranks have one history
        return None
    before, mine, after = _parted(step.members, rank)
    _pass_over(before, new)
    for ranks in mine:
        keep: dict[str, Any] = {"sort_ranks": False} if ranks != sorted(ranks) else {}
        made.append(new(ranks, **keep))
        _timed(_checked(made[-1], ranks), terms, limit)
    _pass_over(after, new)
    return made[-1] if mine else None


def _parted(members: Ints, rank: int) -> tuple[Ints, list[list[int]], Ints]:
    """The groups before this rank's own, that one, and those after it."""
    at = np.flatnonzero((members == rank).any(axis=1))
    place = int(at[0]) if len(at) else len(members)
    own: list[list[int]] = members[place : place + 1].tolist()
    return members[:place], own, members[place + 1 :]


def _pass_over(others: Ints, new: Callable[[list[int]], object]) -> None:
    """Take note of groups of other ranks, of which torch tells its names."""
    if _bound() is None and advance_group_counter(len(others)):
        return
    for ranks in others.tolist():
        new(ranks)


def _timed(
    group: dist.ProcessGroup, terms: GroupOptions, limit: timedelta | None
) -> dist.ProcessGroup:
    """The group, connected under one time, with the time that its collectives may take."""
    if terms.waits:
        set_timeout(group, limit)
    return group


def _is_alone(step: GroupStep, terms: GroupOptions) -> bool:
    """Whether the groups of a step are made by each rank for itself, on every rank."""
    return step.members.shape[1] == 1 and not _all_take_part(terms.backend)


def _bound() -> object:
    """The device to which the default group is bound; None where it is not."""
    return getattr(dist.group.WORLD, "bound_device_id", None)


def _all_take_part(backend: str | None) -> bool:
    """Whether torch splits each group from the default group, in which every rank takes part."""
    world = dist.group.WORLD
    return world is not None and _bound() is not None and backend in (None, dist.get_backend(world))


def _splits(step: GroupStep, backend: str | None) -> bool:
    """Whether the groups of a step can be split from the default group, by one call for all.

    NCCL can, from a group that is bound to its device; torch then puts ranks in ascending order.
    """
    world, members = dist.group.WORLD, step.members
    nccl = world is not None and dist.get_backend(world) == "nccl" and backend in (None, "nccl")
    return nccl and _bound() is not None and bool((members[:, 1:] > members[:, :-1]).all())


def _split(
    step: GroupStep,
    rank: int,
    timeout: timedelta | None,
    words: str,
    made: list[dist.ProcessGroup],
) -> dist.ProcessGroup | None:
    """This rank's group, split from the default group by one call on every rank.

    The ranks that are in no group of the step form one more, which they give back at once: a
    split of a part can hang when its groups are destroyed.
    """
    parts: list[list[int]] = step.members.tolist()
    rest = sorted(set(range(dist.get_world_size())).difference(*parts))
    split: Any = dist.split_group(  # not None: each rank is in a part
        split_ranks=[*parts, *([rest] if rest else [])], timeout=timeout, group_desc=words
    )
    if rank in rest:
        destroy_groups([split])
        return None
    made.append(split)
    return _checked(split, next(ranks for ranks in parts if rank in ranks))


def _checked(group: dist.ProcessGroup, ranks: list[int]) -> dist.ProcessGroup:
    """The group, if torch made what was asked for."""
    members = dist.get_process_group_ranks(group)
    if members != ranks or group.rank() != ranks.index(dist.get_rank()):
        raise MeshkitError(
            f"new_group({ranks}) returned a group of {members}.",
            fix="report this with the version of torch.",
        )
    return group
