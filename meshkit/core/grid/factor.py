"""Factor a number of ranks into named axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from ..call import Call, either, quotes_call
from ..errors import CALL, SpecError
from ..validate import parse_integer
from .hybrid import check_no_plain_sizes, hybrid_layout
from .layout import Layout
from .sizes import (
    check_num_ranks,
    check_one_inferred,
    check_sizes,
    infer_sizes,
    ordered_sizes,
    read_sizes,
)


@quotes_call("factor_world")
def factor_world(
    world_size: int,
    sizes: Mapping[str, int] | None = None,
    *,
    order: str | Iterable[str] | None = None,
    within: Mapping[str, int] | None = None,
    across: Mapping[str, int] | None = None,
    **axes: int,
) -> Layout:
    """Factor a number of ranks into a layout. Pure arithmetic: no torch, no processes.

    Args:
        world_size: the number of ranks.
        sizes: axis name to size, for example from a config. The names may be any: axes nest as
            written, the outermost first, with standard axes among them in the standard order. If
            all names are standard, it is the same as ``**axes``.
        order: axis names, the outermost first: ``"tp dp"``, ``"tp,dp"``, ``("tp", "dp")``, or in
            Megatron's spelling, the fastest-varying axis first, ``"dp-tp"``. None is the standard
            order ``pp dp ep cp sp tp``; the order of the keywords does not matter.
        **axes: axis name to size; one may be -1. ``dp`` is inferred if it is left out, unless
            ``order`` leaves it out too. A name that is not standard needs ``order``.
        within: instead of ``sizes``: axis to its size on one node. Their product is the number of
            ranks of a node, which are consecutive.
        across: axis to its size over nodes. An axis may have both, and its size is
            ``across * within``, its coordinate ``outer * within + inner``. If nothing gives
            ``dp``, it is inferred across nodes. These are the ``mesh_shape`` and
            ``dcn_mesh_shape`` of JAX's ``create_hybrid_device_mesh``, the ``ici_`` and ``dcn_``
            sizes of MaxText.

    Raises:
        SpecError: if names, sizes, order and world size do not fit together.
        SpecError: if an axis has no standard position and ``order`` is None.

    Cost: O(axes); with ``within`` or ``across`` O(ranks).

    Example:
        >>> factor_world(64, tp=8, sp=2)
        Layout(dp=4, sp=2, tp=8)
        >>> factor_world(8, order="tp dp", tp=2)
        Layout(tp=2, dp=4)
        >>> factor_world(8, {"data": 4, "model": 2})
        Layout(data=4, model=2)
        >>> mixed = factor_world(8, within={"dp": 2, "tp": 2}, across={"pp": 2})
        >>> mixed, factor_world(8, within={"pp": 2, "tp": 2}, across={"dp": 2}).grid.tolist()
        (Layout(pp=2, dp=2, tp=2), [[[0, 1], [4, 5]], [[2, 3], [6, 7]]])
    """
    num_ranks = parse_integer(world_size)
    if num_ranks is None or num_ranks < 1:
        line = f"world_size is {world_size!r}."
        raise SpecError(line, fix="an int of 1 or more.", sizes=dict(axes))
    merged, order = read_sizes(sizes, axes, order)
    check_num_ranks(num_ranks, merged)
    if within is not None or across is not None:
        check_no_plain_sizes(merged, across)
        return hybrid_layout(num_ranks, within, across, order)
    ordered = ordered_sizes(merged, order, num_ranks)
    return Layout(ranks=None, **infer_sizes(ordered, num_ranks, f"world_size = {num_ranks}"))


@quotes_call("split_world")
def split_world(world_size: int | None = None, /, **parts: int) -> dict[str, range]:
    """Return consecutive ranks for each part of a job. Pure arithmetic.

    Several models in one job, as in reinforcement learning, each have their own ranks. Every rank
    calls ``build_mesh`` once for each part, and uses those meshes that contain it
    (``mesh.inside``).

    Args:
        world_size: the number of ranks; None means the sum of the parts.
        **parts: the name of a part to its number of ranks; with a world size one may be -1.

    Returns:
        Name to range, for ``build_mesh(ranks=...)``, in the order written.

    Raises:
        SpecError: if a number is invalid, or the parts do not add up to the world.

    Cost: O(parts).

    Example:
        >>> split_world(16, actor=8, critic=4, reference=-1)
        {'actor': range(0, 8), 'critic': range(8, 12), 'reference': range(12, 16)}
    """
    if not parts:
        fix = f"for example actor={4 if world_size is None else -1}."
        raise SpecError(f"{CALL} names no part.", fix=fix)
    sizes = check_sizes(parts, any_name=True)
    check_one_inferred(sizes)
    if world_size is not None or -1 in sizes.values():
        sizes = _infer_part(sizes, world_size)
    ends = [*accumulate(sizes.values())]
    return {name: range(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}


def _infer_part(sizes: dict[str, int], world_size: int | None) -> dict[str, int]:
    """Return the numbers of ranks with the -1 replaced, so that they add up to the world."""
    known = sum(size for size in sizes.values() if size != -1)
    unknown = [name for name, size in sizes.items() if size == -1]
    total = parse_integer(world_size)
    if total is None:
        nothing = f"there is nothing to infer {' '.join(unknown)} from"
        line = f"{nothing if world_size is None else f'world_size is {world_size!r}'}."
        fix = f"for example {Call('split_world', (known + len(unknown),), sizes)}."
        raise SpecError(line, fix=fix)
    left = total - known
    if left < len(unknown) or (left and not unknown):
        last = unknown[0] if unknown else next(reversed(sizes))
        fitting = left if unknown else left + sizes[last]
        ways = [f"start {known + len(unknown)} ranks"]
        ways += [f"{last}={fitting}"] if fitting > 0 else []
        terms = " + ".join(f"{name} {size}" for name, size in sizes.items() if size != -1)
        line = f"the parts have {known} ranks, the world has {total}."
        raise SpecError(line, f"{terms} = {known}.", fix=either(*ways))
    return {**sizes, **dict.fromkeys(unknown, left)}
