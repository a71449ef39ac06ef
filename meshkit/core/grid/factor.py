"""Factor a number of ranks into named axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from ..call import Call, drop_none, public
from ..errors import CALL, Change, Fix, SpecError, join_fixes
from ..text import article
from ..validate import parse_integer
from .axis_names import check_count, check_each, check_one_inferred, check_sizes, infer_sizes
from .hybrid import check_no_plain_sizes, hybrid_layout
from .layout import Layout
from .order import order_axes


@public("factor_world")
def factor_world(
    world_size: int,
    *,
    order: str | Iterable[str] | None = None,
    within: Mapping[str, int] | None = None,
    across: Mapping[str, int] | None = None,
    **sizes: int,
) -> Layout:
    """Factor a number of ranks into a layout. Pure arithmetic: no torch, no processes. O(axes).

    Args:
        world_size: how many ranks there are.
        order: axis names from the outside in. None is the standard order ``pp dp ep cp sp tp``,
            whatever the order of the arguments.
        **sizes: axis name to size; one may be -1. ``dp`` is inferred where it is left out, unless
            ``order`` leaves it out too.
        within: instead of ``sizes``: axis to its size on one node. Their product is the number of
            ranks that a node holds, of consecutive ranks.
        across: axis to its size over nodes; an axis may have both, and is ``across * within``
            then, its coordinate ``outer * within + inner``. Where nothing gives ``dp``, it is
            inferred across nodes. These are the ``mesh_shape`` and ``dcn_mesh_shape`` of JAX's
            ``create_hybrid_device_mesh``, the ``ici_`` and ``dcn_`` sizes of MaxText.

    Raises:
        SpecError: where names, sizes, order and world size do not fit together.
        SpecError: if an axis has no standard position and ``order`` is None.

    Example:
        >>> factor_world(64, tp=8, sp=2)
        Layout(dp=4, sp=2, tp=8)
        >>> factor_world(8, order="tp dp", tp=2)
        Layout(tp=2, dp=4)
        >>> mixed = factor_world(8, within={"dp": 2, "tp": 2}, across={"pp": 2})
        >>> mixed, factor_world(8, within={"pp": 2, "tp": 2}, across={"dp": 2}).grid.tolist()
        (Layout(pp=2, dp=2, tp=2), [[[0, 1], [4, 5]], [[2, 3], [6, 7]]])
    """
    parts = drop_none(within=within, across=across)
    num_ranks = parse_integer(world_size)
    if num_ranks is None or num_ranks < 1:
        raise SpecError(
            f"a world of {world_size!r} ranks.", fix="an int of 1 or more.", sizes=dict(sizes)
        )
    check_count(num_ranks, sizes)
    if parts:
        check_no_plain_sizes(sizes, across)
        return hybrid_layout(num_ranks, within, across, order)
    nested = ordered_sizes(sizes, order)
    return Layout(ranks=None, **infer_sizes(nested, num_ranks, f"world_size = {num_ranks}"))


def ordered_sizes(sizes: Mapping[str, object], order: str | Iterable[str] | None) -> dict[str, int]:
    """The sizes checked and nested from the outside in, with dp, before the -1 is inferred.

    Raises:
        SpecError: as :func:`factor_world`, for all that can be known without a world size.
    """
    # no sizes at all ask for dp alone
    inferable = "dp" in sizes or order is not None
    return order_axes(check_sizes(sizes, inferable=inferable) if sizes else {}, order)


def merge_sizes(sizes: object, axes: Mapping[str, object]) -> Mapping[str, object]:
    """Sizes given as a mapping, as from a config, and by keyword, together.

    Raises:
        SpecError: for sizes that are no mapping, and for an axis that is given twice.
    """
    if sizes is not None and not isinstance(sizes, Mapping):
        raise SpecError(
            f"sizes is {article(type(sizes).__name__)}.",
            fix='axes by keyword, such as dp=4, sp=2, or as a dict: {"dp": 4, "sp": 2}.',
        )
    mapped: Mapping[str, object] = sizes or {}
    both = sorted(mapped.keys() & axes.keys())
    if both:
        raise SpecError(f"{CALL} gives {both[0]} twice.", fix=f"give {both[0]} once.")
    return {**mapped, **axes}


@public("split_world")
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
    if not parts:
        fix = (Change(actor=-1 if world_size is not None else 4), ", say.")
        raise SpecError(f"{CALL} names no part.", fix=fix)
    sizes = check_each(parts)
    check_one_inferred(sizes)
    if world_size is not None or -1 in sizes.values():
        sizes = _filled(sizes, world_size)
    ends = [*accumulate(sizes.values())]
    return {name: range(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}


def _filled(sizes: dict[str, int], world_size: int | None) -> dict[str, int]:
    """The numbers of ranks, the open one inferred, so that they add up to the world."""
    known = sum(size for size in sizes.values() if size != -1)
    unknown = [name for name, size in sizes.items() if size == -1]
    total = parse_integer(world_size)
    if total is None:
        nothing = f"there is nothing to infer {' '.join(unknown)} from"
        line = f"{nothing if world_size is None else f'a world of {world_size!r} ranks'}."
        fix = f"{Call('split_world', (known + len(unknown),), sizes)}, say."
        raise SpecError(line, fix=fix)
    left = total - known
    if left < len(unknown) or (left and not unknown):
        last = unknown[0] if unknown else next(reversed(sizes))
        room = left + (0 if unknown else sizes[last])
        ways: list[Fix] = [f"start {known + len(unknown)} ranks"]
        ways += [Change(**{last: room})] if room > 0 else []
        parts = " + ".join(f"{name} {size}" for name, size in sizes.items() if size != -1)
        line = f"the parts are {known} ranks, the world has {total}."
        raise SpecError(line, f"{parts} = {known}.", fix=(*join_fixes(ways), "."))
    return {**sizes, **dict.fromkeys(unknown, left)}
