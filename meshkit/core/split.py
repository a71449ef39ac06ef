"""Split the world into parts that stand side by side, each to be a mesh of its own."""

from __future__ import annotations

from itertools import accumulate

from .axes import check_each, check_one_unknown
from .call import Call
from .errors import SpecError, told
from .integers import integer


def split_world(world_size: int | None = None, /, **parts: int) -> dict[str, range]:
    """The ranks of each part, one part after the other. Pure arithmetic. O(parts).

    For several models in one job, as in reinforcement learning: every rank calls ``build_mesh``
    once a part, and works in those of which it is a part (``mesh.inside``).

    Args:
        world_size: how many ranks there are; None means as many as the parts have.
        **parts: the name of a part to its number of ranks; with a world size one may be -1.

    Returns:
        Name to range, for ``build_mesh(ranks=...)``, in the order written.

    Raises:
        SpecError: where a number cannot be, or the parts are not the whole world.

    Example:
        >>> split_world(16, actor=8, critic=4, reference=-1)
        {'actor': range(0, 8), 'critic': range(8, 12), 'reference': range(12, 16)}
    """
    call = Call("split_world", () if world_size is None else (world_size,), parts)
    if not parts:
        fix = f"{call.but(actor=-1 if world_size is not None else 4)}, say."
        raise SpecError(told(f"{call} names no part.", fix=fix))
    sizes = check_each(call, parts)
    check_one_unknown(call, sizes)
    if world_size is not None or -1 in sizes.values():
        sizes = _filled(call, sizes, world_size)
    ends = [*accumulate(sizes.values())]
    return {name: range(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}


def _filled(call: Call, sizes: dict[str, int], world_size: int | None) -> dict[str, int]:
    """The numbers of ranks, the open one inferred, so that they add up to the world."""
    known = sum(size for size in sizes.values() if size != -1)
    unknown = [name for name, size in sizes.items() if size == -1]
    total = integer(world_size)
    if total is None:
        nothing = f"there is nothing to infer {' '.join(unknown)} from"
        line = f"{call}: {nothing if world_size is None else f'a world of {world_size!r} ranks'}."
        fix = f"{Call(call.name, (known + len(unknown),), sizes)}, say."
        raise SpecError(told(line, fix=fix))
    left = total - known
    if left < len(unknown) or (left and not unknown):
        last = unknown[0] if unknown else next(reversed(sizes))
        room = left + (0 if unknown else sizes[last])
        ways = [f"start {known + len(unknown)} ranks"]
        ways += [f"{call.but(**{last: room})}"] if room > 0 else []
        parts = " + ".join(f"{name} {size}" for name, size in sizes.items() if size != -1)
        line = f"{call}: the parts are {known} ranks, the world has {total}."
        raise SpecError(told(line, f"{parts} = {known}.", fix=f"{', or '.join(ways)}."))
    return {**sizes, **dict.fromkeys(unknown, left)}
